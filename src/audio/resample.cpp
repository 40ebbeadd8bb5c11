#include "audio/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace speech {
namespace {

constexpr int kZeroCrossings = 64;
constexpr double kRolloff = 0.9475937167399596, kBeta = 14.769656459379492;
constexpr int kLargestTerm = 4096;

// Modified Bessel function of order 0 by its power series: all terms are positive, so nothing
// cancels.
double bessel_i0(double x) {
  double sum = 1, term = 1;
  for (int k = 1; term > sum * 1e-18; ++k) {
    term *= (x / (2 * k)) * (x / (2 * k));
    sum += term;
  }
  return sum;
}

// Eight sums side by side, added in a fixed order.
double dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

int reduced(int value, int other) {
  return value / std::gcd(value, other);
}

}  // namespace

// Output m = q * to + phase is the sum over k of taps[phase][k] * x[q * from + first[phase] + k].
struct Resampler::Filter {
  int64_t from, to;  // reduced
  int64_t width;     // input samples that an output may reach back
  std::vector<int64_t> first;
  std::vector<std::vector<double>> taps;

  Filter(int from_rate, int to_rate)
      : from(reduced(from_rate, to_rate)), to(reduced(to_rate, from_rate)) {
    if (from > kLargestTerm || to > kLargestTerm) {
      fail_option(
          Status::invalid_argument, "audio",
          "audio of {} Hz cannot be resampled to {} Hz: the ratio {}/{} has a term over {}; "
          "resample it to {} Hz first",
          from_rate, to_rate, from, to, kLargestTerm, to_rate);
    }
    auto f = static_cast<double>(from);
    double base = static_cast<double>(std::min(from, to)) * kRolloff;
    width = static_cast<int64_t>(std::ceil(kZeroCrossings * f / base));
    double beta = static_cast<float>(kBeta);
    double peak = static_cast<float>(bessel_i0(beta));
    for (int64_t phase = 0; phase < to; ++phase) {
      std::vector<double> row;
      int64_t row_first = 0;
      for (int64_t k = 0; k < 2 * width + from; ++k) {
        double t = (-static_cast<double>(phase) / static_cast<double>(to) +
                    static_cast<double>(k - width) / f) *
                   base;
        if (std::abs(t) >= kZeroCrossings) {
          if (row.empty()) continue;
          break;
        }
        if (row.empty()) row_first = k - width;
        double angle = std::numbers::pi * t, edge = t / kZeroCrossings;
        double sinc = t == 0 ? 1.0 : std::sin(angle) / angle;
        double window = bessel_i0(beta * std::sqrt(1 - edge * edge)) / peak;
        row.push_back(sinc * window * base / f);
      }
      first.push_back(row_first);
      taps.push_back(std::move(row));
    }
  }
};

int64_t resampled_length(int64_t samples, int from, int to) {
  if (from == to) return samples;
  int64_t f = reduced(from, to), t = reduced(to, from);
  double exact = static_cast<double>(samples * t) / static_cast<double>(f);
  auto length = static_cast<int64_t>(std::ceil(static_cast<float>(exact)));
  return std::min(length, (samples / f + 1) * t);
}

Resampler::Resampler(int from, int to) : from_(from), to_(to) {
  if (from < 1 || to < 1) {
    fail_option(Status::invalid_argument, "audio", "a sample rate of {} Hz is not possible",
                std::min(from, to));
  }
  if (from == to) return;
  filter_ = std::make_shared<Filter>(from, to);
  input_.assign(static_cast<size_t>(filter_->width), 0.0);
  input_start_ = -filter_->width;
}

void Resampler::push(std::span<const float> in, std::vector<float>& out) {
  received_ += static_cast<int64_t>(in.size());
  if (!filter_) {
    out.insert(out.end(), in.begin(), in.end());
    return;
  }
  input_.insert(input_.end(), in.begin(), in.end());
  run(received_, out);
}

void Resampler::end(std::vector<float>& out) {
  if (!filter_) return;
  // Zeros as far as the last output reaches.
  int64_t reach = 2 * filter_->width + 2 * filter_->from;
  input_.insert(input_.end(), static_cast<size_t>(reach), 0.0);
  run(received_ + reach, out);
}

// Computes the outputs whose taps lie before input sample `end`.
void Resampler::run(int64_t end, std::vector<float>& out) {
  const Filter& f = *filter_;
  int64_t length = resampled_length(received_, from_, to_);
  for (; given_ < length; ++given_) {
    int64_t phase = given_ % f.to;
    const std::vector<double>& taps = f.taps[static_cast<size_t>(phase)];
    int64_t first = given_ / f.to * f.from + f.first[static_cast<size_t>(phase)];
    auto count = static_cast<int64_t>(taps.size());
    if (first + count > end) break;
    out.push_back(
        static_cast<float>(dot(taps.data(), input_.data() + (first - input_start_), count)));
  }
  // Forget what no later output reads, once it is worth the move.
  int64_t dead = given_ / f.to * f.from - f.width - input_start_;
  if (dead > 4096 + static_cast<int64_t>(input_.size()) / 2) {
    input_.erase(input_.begin(), input_.begin() + dead);
    input_start_ += dead;
  }
}

std::vector<float> resample(std::span<const float> samples, int from, int to) {
  Resampler resampler(from, to);
  std::vector<float> out;
  out.reserve(
      static_cast<size_t>(resampled_length(static_cast<int64_t>(samples.size()), from, to)));
  // In blocks, so that the copy in double stays small.
  constexpr size_t kBlock = 1 << 16;
  while (!samples.empty()) {
    size_t count = std::min(samples.size(), kBlock);
    resampler.push(samples.first(count), out);
    samples = samples.subspan(count);
  }
  resampler.end(out);
  return out;
}

}  // namespace speech
