#pragma once

#include <span>

namespace speech {

// Samples that are louder, or not finite, are refused: the official front ends square them in
// float32, which overflows a little above, and what comes out is NaN.
inline constexpr float kLoudestSample = 1e15f;
// Error(invalid_argument, "audio") for a sample beyond kLoudestSample.
void check_samples(std::span<const float> samples);

}  // namespace speech
