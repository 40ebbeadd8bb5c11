// Log-mel features exactly as NeMo's AudioToMelSpectrogramPreprocessor makes them in inference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "audio/spectrogram.h"
#include "compute/trace.h"
#include "models/fastconformer/config.h"

namespace speech::fastconformer {

class Frontend {
 public:
  // `window`: at most n_fft points; `filterbank`: [n_mels, n_fft / 2 + 1].
  Frontend(const FrontendConfig& config, std::span<const float> window,
           std::span<const float> filterbank);

  // Frames of `samples` samples at the model's rate: one for each whole hop.
  int64_t frames(int64_t samples) const { return samples / config_.hop_length; }

  // [frames, n_mels]: log-mel energies with mean 0 and deviation 1 in each mel bin.
  std::vector<float> features(std::span<const float> samples, Trace* trace) const;

 private:
  FrontendConfig config_;
  Stft stft_;
  FilterBank bank_;
};

}  // namespace speech::fastconformer
