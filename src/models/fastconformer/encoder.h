// FastConformer encoder (Rekesh et al. 2023, arXiv:2305.05084), as NeMo's ConformerEncoder runs it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compute/trace.h"
#include "models/fastconformer/weights.h"

namespace speech::fastconformer {

// Several utterances are encoded at once in packed rows: every product sees the frames of all of
// them, attention and convolution see one utterance at a time. Nothing is padded.
struct Utterance {
  int64_t first = 0;   // its first row
  int64_t frames = 0;  // encoder frames
};

// features[i] is [mel frames, n_mels] of one utterance. Returns [rows, d_model] in run.workspace
// and fills `utterances`. `layer_done(n)` is called after each layer.
Tensor encode(Run& run, const Weights& weights, const Config& config,
              std::span<const std::vector<float>> features, std::vector<Utterance>& utterances,
              const std::function<void(int)>& layer_done);

}  // namespace speech::fastconformer
