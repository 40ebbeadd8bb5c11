// The convolutions in front of the encoder: 3x3, stride 2, depthwise separable after the first.
#pragma once

#include <span>

#include "compute/trace.h"
#include "models/fastconformer/weights.h"

namespace speech::fastconformer {

// features [mel frames, n_mels] of one utterance -> out [frames, d_model]. Works through time in
// pieces, so that memory does not grow with the length; the result does not depend on the pieces.
void subsample(Run& run, const Subsampling& weights, const Config& config,
               std::span<const float> features, const Tensor& out);

}  // namespace speech::fastconformer
