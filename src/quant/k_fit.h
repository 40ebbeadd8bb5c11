// What the encoders of the K types share: passes over one group of values in four lanes.
//
// A group is x[i] ~ s * q[i] - m with integer codes q in [low, top]. For given s and m the best
// code of a value is the nearest one; for given codes the best s and m are a least squares problem
// in a few weighted sums. The encoders alternate the two.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/blocks.h"
#include "quant/rows.h"

namespace speech::quant {

using Lanes = float __attribute__((vector_size(16)));

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline float sum(Lanes v) {
  return (v[0] + v[1]) + (v[2] + v[3]);
}

// Nearest code, as a float. The large constant rounds to nearest even.
inline Lanes nearest(Lanes value, float low, float top) {
  Lanes lowest = {low, low, low, low}, highest = {top, top, top, top};
  value = value > lowest ? value : lowest;
  value = value < highest ? value : highest;
  return (value + 12582912.0f) - 12582912.0f;
}

struct CodeSums {
  float q, qq, xq;  // of w * q, w * q^2, w * x * q
};

// Sums over the codes nearest to (x + m) * inverse.
template <int n>
CodeSums code_sums(const float* x, const float* w, float inverse, float m, float low, float top) {
  Lanes q_sum = {}, qq_sum = {}, xq_sum = {};
  for (int i = 0; i < n; i += 4) {
    Lanes value = load(x + i);
    Lanes q = nearest((value + m) * inverse, low, top);
    Lanes wq = load(w + i) * q;
    q_sum += wq;
    qq_sum += wq * q;
    xq_sum += wq * value;
  }
  return {sum(q_sum), sum(qq_sum), sum(xq_sum)};
}

// Weighted squared error when every value takes its nearest code.
template <int n>
float group_error(const float* x, const float* w, float s, float m, float low, float top) {
  float inverse = s != 0 ? 1 / s : 0;
  Lanes error = {};
  for (int i = 0; i < n; i += 4) {
    Lanes value = load(x + i) + m;
    Lanes e = nearest(value * inverse, low, top) * s - value;
    error += load(w + i) * e * e;
  }
  return sum(error);
}

template <int n>
void group_codes(const float* x, float s, float m, float low, float top, int8_t* codes) {
  float inverse = s != 0 ? 1 / s : 0;
  for (int i = 0; i < n; i += 4) {
    Lanes q = nearest((load(x + i) + m) * inverse, low, top);
    for (int j = 0; j < 4; ++j) codes[i + j] = static_cast<int8_t>(q[j]);
  }
}

// One super-block ready for the search: NaN made 0, magnitudes limited, and positive finite weights
// of mean 1. A column without importance keeps a little weight, so that it is not left to chance.
struct alignas(16) SuperBlock {
  float x[kSuperBlock], w[kSuperBlock];

  SuperBlock(const float* src, const float* importance, float limit) {
    for (int i = 0; i < kSuperBlock; ++i) {
      float v = src[i] == src[i] ? src[i] : 0;
      x[i] = v < -limit ? -limit : v > limit ? limit : v;
    }
    double total = 0;
    auto weight = [&](int i) {
      float v = importance[i];
      return v > 0 ? std::fmin(v, 1e30f) : 0.0f;
    };
    if (importance) {
      for (int i = 0; i < kSuperBlock; ++i) total += weight(i);
    }
    for (int i = 0; i < kSuperBlock; ++i) {
      w[i] = total > 0 ? static_cast<float>(weight(i) * (kSuperBlock / total)) + 1e-4f : 1.0f;
    }
  }
};

// Nearest finite f16; a value that is not zero keeps at least the smallest magnitude.
inline uint16_t scale_bits(double value) {
  auto limited = static_cast<float>(value > 65504 ? 65504 : value < -65504 ? -65504 : value);
  uint16_t bits = f32_to_f16(limited);
  if ((bits & 0x7fff) == 0 && limited != 0) bits = static_cast<uint16_t>(limited < 0 ? 0x8001 : 1);
  return bits;
}

// The search of q4_k and q5_k: x ~ d * scale[g] * code - dmin * minimum[g] in groups of 32.
struct ScaleMinFit {
  uint16_t d = 0, dmin = 0;
  uint8_t scales[8] = {}, minima[8] = {};
  double error = 0;

  void codes(const SuperBlock& block, int top, int8_t* out) const;
};
ScaleMinFit fit_scale_min(const SuperBlock& block, int top);

// Of a BlockQ4K or BlockQ5K.
template <typename Block>
Grid scale_min_grid(const Block& block, float top) {
  Grid grid{32, 0, top, {}, {}};
  for (int g = 0; g < 8; ++g) {
    grid.scales[g] = block.d.value() * static_cast<float>(block.scales.scale(g));
    grid.minima[g] = block.dmin.value() * static_cast<float>(block.scales.minimum(g));
  }
  return grid;
}

}  // namespace speech::quant
