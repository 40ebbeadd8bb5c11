// q6_k: 256 values in 16 groups of 16, signed codes of 6 bits, scales of 8. Layout: BlockQ6K.
#include <algorithm>

#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/k_fit.h"
#include "quant/rows.h"

namespace speech::quant {
namespace {

constexpr int kGroup = 16, kGroups = 16;
constexpr float kLow = -32, kTop = 31;

struct ScaleFit {
  uint16_t d = 0;
  int8_t scales[kGroups] = {};
  double error = 0;
};

// The scale of one group before it is rounded: the one whose codes explain most of sum w * x^2.
float fit_group(const float* x, const float* w) {
  float peak = 0;
  for (int i = 0; i < kGroup; ++i) {
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  }
  if (peak == 0) return 0;
  float best = 0;
  double best_gain = 0;
  auto consider = [&](float inverse) {
    CodeSums c = code_sums<kGroup>(x, w, inverse, 0, kLow, kTop);
    if (c.qq <= 0) return;
    double gain = static_cast<double>(c.xq) * c.xq / c.qq;
    if (gain > best_gain) best_gain = gain, best = c.xq / c.qq;
  };
  // The peak at code -32 (either sign of the scale reaches 32 steps), or at 31, or clipped a bit.
  for (float steps = 28; steps <= 34; steps += 0.5f) {
    consider(-steps / peak);
    consider(steps / peak);
  }
  for (int round = 0; round < 2 && best != 0; ++round) consider(1 / best);
  return best;
}

void choose_scales(const SuperBlock& block, const float* wanted, ScaleFit& fit) {
  float d = f16_to_f32(fit.d);
  fit.error = 0;
  for (int g = 0; g < kGroups; ++g) {
    float r = d != 0 ? wanted[g] / d : 0;
    int scale = static_cast<int>(std::rint(std::clamp(r, -128.0f, 127.0f)));
    float best = INFINITY;
    for (int a = std::max(scale - 1, -128); a <= std::min(scale + 1, 127); ++a) {
      float error = group_error<kGroup>(block.x + g * kGroup, block.w + g * kGroup,
                                        d * static_cast<float>(a), 0, kLow, kTop);
      if (error < best) {
        best = error;
        fit.scales[g] = static_cast<int8_t>(a);
      }
    }
    fit.error += best;
  }
}

void solve_step(const SuperBlock& block, ScaleFit& fit) {
  float d = f16_to_f32(fit.d);
  double xq = 0, qq = 0;
  for (int g = 0; g < kGroups; ++g) {
    float scale = fit.scales[g], s = d * scale;
    CodeSums c = code_sums<kGroup>(block.x + g * kGroup, block.w + g * kGroup, s != 0 ? 1 / s : 0,
                                   0, kLow, kTop);
    xq += static_cast<double>(scale) * c.xq;
    qq += static_cast<double>(scale) * scale * c.qq;
  }
  if (qq > 0) fit.d = scale_bits(xq / qq);
}

ScaleFit fit_block(const SuperBlock& block) {
  float wanted[kGroups], largest = 0;
  for (int g = 0; g < kGroups; ++g) {
    wanted[g] = fit_group(block.x + g * kGroup, block.w + g * kGroup);
    if (std::fabs(wanted[g]) > std::fabs(largest)) largest = wanted[g];
  }
  ScaleFit best;
  best.error = INFINITY;
  for (float reach : {-128.0f, 127.0f, -124.0f, 121.0f}) {
    ScaleFit fit;
    fit.d = scale_bits(largest / reach);
    choose_scales(block, wanted, fit);
    if (fit.error < best.error) best = fit;
    for (int round = 0; round < 3; ++round) {
      solve_step(block, fit);
      float now[kGroups];
      for (int g = 0; g < kGroups; ++g) now[g] = f16_to_f32(fit.d) * fit.scales[g];
      double before = fit.error;
      choose_scales(block, now, fit);
      if (fit.error < best.error) best = fit;
      if (!(fit.error < before)) break;
    }
  }
  return best;
}

}  // namespace

void decode_q6_k(const std::byte* src, float* dst, int64_t cols) {
  const auto* block = reinterpret_cast<const BlockQ6K*>(src);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++block) {
    float d = block->d.value();
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 4; ++part, dst += 32) {
        const uint8_t* ql = block->ql + half * 64 + part % 2 * 32;
        const uint8_t* qh = block->qh + half * 32;
        const int8_t* scales = block->scales + half * 8 + part * 2;
        for (int l = 0; l < 32; ++l) {
          int q = (ql[l] >> (part / 2 * 4) & 15) | (qh[l] >> (part * 2) & 3) << 4;
          dst[l] = d * static_cast<float>(scales[l / 16]) * static_cast<float>(q - 32);
        }
      }
    }
  }
}

Grid grid_q6_k(const std::byte* src) {
  const auto& block = *reinterpret_cast<const BlockQ6K*>(src);
  Grid grid{kGroup, kLow, kTop, {}, {}};
  for (int g = 0; g < kGroups; ++g) {
    grid.scales[g] = block.d.value() * static_cast<float>(block.scales[g]);
  }
  return grid;
}

void put_codes_q6_k(const int8_t* codes, std::byte* dst) {
  auto* out = reinterpret_cast<BlockQ6K*>(dst);
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      int code[4], high = 0;
      for (int part = 0; part < 4; ++part) {
        code[part] = codes[half * 128 + part * 32 + l] + 32;
        high |= code[part] >> 4 << (part * 2);
      }
      out->qh[half * 32 + l] = static_cast<uint8_t>(high);
      out->ql[half * 64 + l] = static_cast<uint8_t>((code[0] & 15) | (code[2] & 15) << 4);
      out->ql[half * 64 + 32 + l] = static_cast<uint8_t>((code[1] & 15) | (code[3] & 15) << 4);
    }
  }
}

void encode_q6_k(const float* src, std::byte* dst, int64_t cols, const float* importance) {
  auto* out = reinterpret_cast<BlockQ6K*>(dst);
  const float limit = largest_value(WeightType::q6_k);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++out) {
    SuperBlock block(src + i, importance ? importance + i : nullptr, limit);
    ScaleFit fit = fit_block(block);
    int8_t q[kSuperBlock];
    for (int g = 0; g < kGroups; ++g) {
      group_codes<kGroup>(block.x + g * kGroup, f16_to_f32(fit.d) * fit.scales[g], 0, kLow, kTop,
                          q + g * kGroup);
      out->scales[g] = fit.scales[g];
    }
    out->d.set_bits(fit.d);
    put_codes_q6_k(q, reinterpret_cast<std::byte*>(out));
  }
}

}  // namespace speech::quant
