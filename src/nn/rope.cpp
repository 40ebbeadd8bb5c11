#include "nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace speech {

RopeTable make_rope_table(const RopeSettings& s) {
  RopeTable table;
  int64_t half = s.dim / 2;
  table.inverse_frequency.resize(static_cast<size_t>(half));
  double low = 0, high = 0;
  if (s.yarn) {
    // The dimension that turns `rotations` times over the original context.
    auto correction = [&](double rotations) {
      return static_cast<double>(s.dim) *
             std::log(s.original_positions / (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(s.theta));
    };
    low = correction(s.beta_fast);
    high = correction(s.beta_slow);
    if (s.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(s.dim - 1));
    if (low == high) high += 0.001;
    table.magnitude = static_cast<float>(
        s.attention_factor > 0 ? s.attention_factor
                               : (s.factor > 1 ? 0.1 * std::log(s.factor) + 1.0 : 1.0));
  }
  for (int64_t i = 0; i < half; ++i) {
    // The official code computes theta^(2i/dim) in f32; so the table does.
    float exponent = static_cast<float>(2 * i) / static_cast<float>(s.dim);
    float frequency = 1.0f / std::pow(static_cast<float>(s.theta), exponent);
    if (s.yarn) {
      double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequency = static_cast<float>(frequency / s.factor * ramp + frequency * (1 - ramp));
    }
    table.inverse_frequency[static_cast<size_t>(i)] = frequency;
  }
  return table;
}

}  // namespace speech
