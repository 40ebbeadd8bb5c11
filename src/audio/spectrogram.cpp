#include "audio/spectrogram.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace speech {

std::vector<double> hann_window(int size, bool periodic) {
  std::vector<double> window(static_cast<size_t>(size), 1.0);
  if (size == 1) return window;
  double period = periodic ? size : size - 1;
  for (int n = 0; n < size; ++n) {
    window[static_cast<size_t>(n)] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * n / period);
  }
  return window;
}

Stft::Stft(int size, int hop, std::span<const double> window, Padding padding)
    : size_(size), hop_(hop), padding_(padding), fft_(size) {
  if (hop < 1 || window.size() > static_cast<size_t>(size)) {
    fail(Status::internal, "Stft: hop {}, window of {} in {}", hop, window.size(), size);
  }
  window_.assign(static_cast<size_t>(size), 0.0);
  size_t left = (static_cast<size_t>(size) - window.size()) / 2;
  std::copy(window.begin(), window.end(), window_.begin() + static_cast<std::ptrdiff_t>(left));
}

void Stft::power(std::span<const float> x, int64_t start, int64_t first,
                 std::span<double> out) const {
  auto samples = static_cast<int64_t>(x.size());
  auto at = [&](int64_t i) -> double {
    if (i >= 0 && i < samples) return x[static_cast<size_t>(i)];
    if (padding_ == Padding::zeros) return 0.0;
    i = i < 0 ? -i : 2 * (samples - 1) - i;
    if (i < 0 || i >= samples) {
      fail(Status::internal, "Stft: {} samples are too few to reflect {}", samples, size_ / 2);
    }
    return x[static_cast<size_t>(i)];
  };
  std::vector<double> frame(static_cast<size_t>(size_));
  std::vector<Complex> spectrum(static_cast<size_t>(bins())), scratch;
  for (size_t done = 0; done < out.size(); done += spectrum.size(), ++first) {
    int64_t begin = start + first * hop_;
    if (begin >= 0 && begin + size_ <= samples) {
      const float* p = x.data() + begin;
      for (size_t i = 0; i < frame.size(); ++i) frame[i] = window_[i] * p[i];
    } else {
      for (size_t i = 0; i < frame.size(); ++i) {
        frame[i] = window_[i] * at(begin + static_cast<int64_t>(i));
      }
    }
    fft_.forward(frame, spectrum, scratch);
    for (size_t k = 0; k < spectrum.size(); ++k) {
      out[done + k] = spectrum[k].re * spectrum[k].re + spectrum[k].im * spectrum[k].im;
    }
  }
}

namespace {

constexpr double kLinearHzPerMel = 200.0 / 3, kLogStartHz = 1000, kLogStartMel = 15;
const double kLogStep = std::log(6.4) / 27;

}  // namespace

double hz_to_mel(double hz, MelScale scale) {
  if (scale == MelScale::htk) return 2595 * std::log10(1 + hz / 700);
  if (hz < kLogStartHz) return hz / kLinearHzPerMel;
  return kLogStartMel + std::log(hz / kLogStartHz) / kLogStep;
}

double mel_to_hz(double mel, MelScale scale) {
  if (scale == MelScale::htk) return 700 * (std::pow(10.0, mel / 2595) - 1);
  if (mel < kLogStartMel) return mel * kLinearHzPerMel;
  return kLogStartHz * std::exp(kLogStep * (mel - kLogStartMel));
}

std::vector<double> mel_filters(MelScale scale, bool area_norm, int mels, int size, int rate,
                                double lowest, double highest) {
  int bins = size / 2 + 1;
  double low = hz_to_mel(lowest, scale), high = hz_to_mel(highest, scale);
  auto edge = [&](int i) { return mel_to_hz(low + (high - low) * i / (mels + 1), scale); };
  std::vector<double> filters(static_cast<size_t>(mels) * static_cast<size_t>(bins), 0.0);
  for (int m = 0; m < mels; ++m) {
    double left = edge(m), middle = edge(m + 1), right = edge(m + 2);
    for (int k = 0; k < bins; ++k) {
      double hz = static_cast<double>(k) * rate / size;
      double weight = std::min((hz - left) / (middle - left), (right - hz) / (right - middle));
      if (weight <= 0) continue;
      if (area_norm) weight *= 2 / (right - left);
      filters[static_cast<size_t>(m) * static_cast<size_t>(bins) + static_cast<size_t>(k)] = weight;
    }
  }
  return filters;
}

FilterBank::FilterBank(std::span<const float> matrix, int filters, int bins)
    : FilterBank(std::vector<double>(matrix.begin(), matrix.end()), filters, bins) {}

FilterBank::FilterBank(std::span<const double> matrix, int filters, int bins) : bins_(bins) {
  if (filters < 0 || bins < 0 ||
      matrix.size() != static_cast<size_t>(filters) * static_cast<size_t>(bins)) {
    fail(Status::internal, "FilterBank: {} values for [{}, {}]", matrix.size(), filters, bins);
  }
  for (int f = 0; f < filters; ++f) {
    auto row = matrix.subspan(static_cast<size_t>(f) * static_cast<size_t>(bins),
                              static_cast<size_t>(bins));
    auto zero = [](double w) { return w == 0; };
    auto begin = std::find_if_not(row.begin(), row.end(), zero);
    auto end = std::find_if_not(row.rbegin(), row.rend(), zero).base();
    rows_.push_back({static_cast<int>(begin - row.begin()), {}});
    if (begin < end) rows_.back().weights.assign(begin, end);
  }
}

void FilterBank::apply(std::span<const double> spectrum, std::span<double> out) const {
  if (spectrum.size() != static_cast<size_t>(bins_) || out.size() != rows_.size()) {
    fail(Status::internal, "FilterBank of [{}, {}]: {} bins in, {} out", rows_.size(), bins_,
         spectrum.size(), out.size());
  }
  for (size_t f = 0; f < rows_.size(); ++f) {
    const Row& row = rows_[f];
    const double* p = spectrum.data() + row.first;
    double sum = 0;
    for (size_t i = 0; i < row.weights.size(); ++i) sum += row.weights[i] * p[i];
    out[f] = sum;
  }
}

}  // namespace speech
