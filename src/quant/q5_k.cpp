// q5_k: 256 values in 8 groups of 32, codes of 5 bits, scales and minima of 6. Layout: BlockQ5K.
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/k_fit.h"
#include "quant/rows.h"

namespace speech::quant {

void decode_q5_k(const std::byte* src, float* dst, int64_t cols) {
  const auto* block = reinterpret_cast<const BlockQ5K*>(src);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++block) {
    float d = block->d.value(), dmin = block->dmin.value();
    for (int g = 0; g < 8; ++g, dst += 32) {
      float scale = d * static_cast<float>(block->scales.scale(g));
      float minimum = dmin * static_cast<float>(block->scales.minimum(g));
      const uint8_t* qs = block->qs + g / 2 * 32;
      int shift = g % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        int q = (qs[l] >> shift & 15) | (block->qh[l] >> g & 1) << 4;
        dst[l] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
}

Grid grid_q5_k(const std::byte* src) {
  return scale_min_grid(*reinterpret_cast<const BlockQ5K*>(src), 31);
}

void put_codes_q5_k(const int8_t* codes, std::byte* dst) {
  auto* out = reinterpret_cast<BlockQ5K*>(dst);
  for (int l = 0; l < 32; ++l) {
    int high = 0;
    for (int g = 0; g < 8; ++g) high |= codes[g * 32 + l] >> 4 << g;
    out->qh[l] = static_cast<uint8_t>(high);
    for (int pair = 0; pair < 4; ++pair) {
      out->qs[pair * 32 + l] =
          static_cast<uint8_t>((codes[pair * 64 + l] & 15) | (codes[pair * 64 + 32 + l] & 15) << 4);
    }
  }
}

void encode_q5_k(const float* src, std::byte* dst, int64_t cols, const float* importance) {
  auto* out = reinterpret_cast<BlockQ5K*>(dst);
  const float limit = largest_value(WeightType::q5_k);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++out) {
    SuperBlock block(src + i, importance ? importance + i : nullptr, limit);
    ScaleMinFit fit = fit_scale_min(block, 31);
    int8_t q[kSuperBlock];
    fit.codes(block, 31, q);
    out->d.set_bits(fit.d);
    out->dmin.set_bits(fit.dmin);
    out->scales.set(fit.scales, fit.minima);
    put_codes_q5_k(q, reinterpret_cast<std::byte*>(out));
  }
}

}  // namespace speech::quant
