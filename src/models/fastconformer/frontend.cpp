#include "models/fastconformer/frontend.h"

#include <cmath>

namespace speech::fastconformer {

Frontend::Frontend(const FrontendConfig& config, std::span<const float> window,
                   std::span<const float> filterbank)
    : config_(config),
      stft_(config.n_fft, config.hop_length, std::vector<double>(window.begin(), window.end()),
            Padding::zeros),
      bank_(filterbank, config.n_mels, config.n_fft / 2 + 1) {}

std::vector<float> Frontend::features(std::span<const float> samples, Trace* trace) const {
  // Pre-emphasis: y[0] = s[0], y[i] = s[i] - a s[i - 1].
  std::vector<float> y(samples.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = i == 0 ? samples[0] : samples[i] - config_.preemphasis * samples[i - 1];
  }

  // ln(mel energy + guard), frame by frame. NeMo computes one frame more than it uses.
  const int64_t frames = this->frames(static_cast<int64_t>(samples.size()));
  const int64_t computed = trace ? frames + 1 : frames;
  const auto mels = static_cast<size_t>(config_.n_mels);
  std::vector<float> out(static_cast<size_t>(computed) * mels);
  std::vector<double> power(static_cast<size_t>(stft_.bins())), energy(mels);
  for (int64_t t = 0; t < computed; ++t) {
    stft_.power(y, -config_.n_fft / 2, t, power);
    bank_.apply(power, energy);
    for (size_t m = 0; m < mels; ++m) {
      out[static_cast<size_t>(t) * mels + m] =
          static_cast<float>(std::log(energy[m] + static_cast<double>(config_.log_guard)));
    }
  }
  if (trace) trace->add("01_logmel", {computed, config_.n_mels}, out);
  out.resize(static_cast<size_t>(frames) * mels);

  // Mean 0 and (unbiased) deviation 1 in each bin.
  std::vector<double> mean(mels), square(mels);
  for (size_t i = 0; i < out.size(); ++i) mean[i % mels] += out[i];
  for (double& m : mean) m /= static_cast<double>(frames);
  for (size_t i = 0; i < out.size(); ++i) {
    const double d = out[i] - mean[i % mels];
    square[i % mels] += d * d;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const double deviation =
        frames > 1 ? std::sqrt(square[i % mels] / static_cast<double>(frames - 1)) : 0;
    out[i] = static_cast<float>((out[i] - mean[i % mels]) /
                                (deviation + static_cast<double>(config_.std_guard)));
  }
  if (trace) trace->add("02_features", {frames, config_.n_mels}, out);
  return out;
}

}  // namespace speech::fastconformer
