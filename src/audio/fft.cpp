#include "audio/fft.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace speech {
namespace {

Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
// Not std::complex: its product looks for NaN first.
Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

Complex root(int k, int n) {
  double angle = -2 * std::numbers::pi * k / n;
  return {std::cos(angle), std::sin(angle)};
}

}  // namespace

RealFft::RealFft(int size) : size_(size), length_(size % 2 == 0 ? size / 2 : size) {
  if (size < 1) fail(Status::internal, "RealFft: size {}", size);
  int rest = length_;
  for (int factor : {4, 2, 3, 5}) {
    for (; rest % factor == 0; rest /= factor) factors_.push_back(factor);
  }
  for (int factor = 7; rest > 1; factor += 2) {
    if (factor > rest / factor) factor = rest;
    for (; rest % factor == 0; rest /= factor) factors_.push_back(factor);
  }
  for (int k = 0; k < length_; ++k) roots_.push_back(root(k, length_));
  if (size % 2 == 0) {
    for (int k = 0; k <= length_; ++k) untwist_.push_back(root(k, size));
  }
}

// Stockham's self-sorting transform (Swarztrauber 1984), one pass for each factor: `stride`
// transforms of length n interleaved become stride * r of length n / r. The result is in x.
void RealFft::transform(Complex* x, Complex* other) const {
  Complex* from = x;
  Complex* to = other;
  int n = length_, stride = 1;
  for (int r : factors_) {
    int m = n / r;
    int step = length_ / r;  // roots_[j * step] is the j-th r-th root of one
    for (int p = 0; p < m; ++p) {
      const Complex* in = from + stride * p;
      Complex* out = to + stride * r * p;
      auto twiddle = [&](int k) { return roots_[static_cast<size_t>(p * k * stride)]; };
      if (r == 4) {
        Complex w1 = twiddle(1), w2 = twiddle(2), w3 = twiddle(3);
        for (int q = 0; q < stride; ++q) {
          Complex a = in[q], b = in[q + stride * m], c = in[q + 2 * stride * m],
                  d = in[q + 3 * stride * m];
          Complex s = a + c, t = a - c, u = b + d, v{b.im - d.im, d.re - b.re};  // -i (b - d)
          out[q] = s + u;
          out[q + stride] = (t + v) * w1;
          out[q + 2 * stride] = (s - u) * w2;
          out[q + 3 * stride] = (t - v) * w3;
        }
      } else if (r == 2) {
        Complex w1 = twiddle(1);
        for (int q = 0; q < stride; ++q) {
          Complex a = in[q], b = in[q + stride * m];
          out[q] = a + b;
          out[q + stride] = (a - b) * w1;
        }
      } else {
        for (int k = 0; k < r; ++k) {
          Complex w = twiddle(k);
          for (int q = 0; q < stride; ++q) {
            Complex sum = in[q];
            for (int j = 1; j < r; ++j) {
              sum = sum +
                    in[q + j * stride * m] * roots_[static_cast<size_t>(int64_t{j} * k % r * step)];
            }
            out[q + k * stride] = sum * w;
          }
        }
      }
    }
    std::swap(from, to);
    n = m;
    stride *= r;
  }
  if (from != x) std::copy_n(from, length_, x);
}

void RealFft::forward(std::span<const double> in, std::span<Complex> out,
                      std::vector<Complex>& scratch) const {
  if (in.size() != static_cast<size_t>(size_) || out.size() != static_cast<size_t>(bins())) {
    fail(Status::internal, "RealFft of {}: {} values in, {} out", size_, in.size(), out.size());
  }
  scratch.resize(static_cast<size_t>(2 * length_));
  Complex* x = scratch.data();
  if (size_ % 2 == 1) {
    for (int i = 0; i < size_; ++i) x[i] = {in[static_cast<size_t>(i)], 0};
    transform(x, x + length_);
    std::copy_n(x, bins(), out.data());
    return;
  }
  // Two interleaved real signals are one complex signal of half the length; their transforms come
  // apart by symmetry: E = (Z[k] + conj Z[-k]) / 2, O = (Z[k] - conj Z[-k]) / 2i.
  for (int i = 0; i < length_; ++i) {
    x[i] = {in[static_cast<size_t>(2 * i)], in[static_cast<size_t>(2 * i + 1)]};
  }
  transform(x, x + length_);
  for (int k = 0; k <= length_; ++k) {
    Complex a = x[k == length_ ? 0 : k], b = x[k == 0 ? 0 : length_ - k];
    Complex even{(a.re + b.re) / 2, (a.im - b.im) / 2};
    Complex odd{(a.im + b.im) / 2, (b.re - a.re) / 2};
    out[static_cast<size_t>(k)] = even + untwist_[static_cast<size_t>(k)] * odd;
  }
}

}  // namespace speech
