// Detection of speech with a Silero VAD network.
#pragma once

#include <memory>

#include "models/model.h"
#include "models/silero_vad/network.h"

namespace speech::silero_vad {

// The options a model takes, with its defaults.
std::vector<OptionSpec> option_specs(const Config& config);

// A detector of this network. One thread unless `params` says otherwise: the recurrent part, half
// of the time, cannot use more.
std::unique_ptr<Detector> make_detector(Weights weights, ModelInfo info, const LoadParams& params);

}  // namespace speech::silero_vad
