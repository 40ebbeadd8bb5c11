#include "audio/check_samples.h"

#include <cmath>

#include "base/error.h"

namespace speech {

void check_samples(std::span<const float> samples) {
  for (float x : samples) {
    if (std::abs(x) <= kLoudestSample) continue;
    fail_option(Status::invalid_argument, "audio",
                "the audio holds a sample of {}; samples should lie in -1..1", x);
  }
}

}  // namespace speech
