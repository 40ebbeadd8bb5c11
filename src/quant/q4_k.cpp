// q4_k: 256 values in 8 groups of 32, codes of 4 bits, scales and minima of 6. Layout: BlockQ4K.
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/k_fit.h"
#include "quant/rows.h"

namespace speech::quant {

void decode_q4_k(const std::byte* src, float* dst, int64_t cols) {
  const auto* block = reinterpret_cast<const BlockQ4K*>(src);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++block) {
    float d = block->d.value(), dmin = block->dmin.value();
    for (int g = 0; g < 8; ++g, dst += 32) {
      float scale = d * static_cast<float>(block->scales.scale(g));
      float minimum = dmin * static_cast<float>(block->scales.minimum(g));
      const uint8_t* qs = block->qs + g / 2 * 32;
      int shift = g % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        dst[l] = scale * static_cast<float>(qs[l] >> shift & 15) - minimum;
      }
    }
  }
}

Grid grid_q4_k(const std::byte* src) {
  return scale_min_grid(*reinterpret_cast<const BlockQ4K*>(src), 15);
}

void put_codes_q4_k(const int8_t* codes, std::byte* dst) {
  uint8_t* qs = reinterpret_cast<BlockQ4K*>(dst)->qs;
  for (int pair = 0; pair < 4; ++pair) {
    const int8_t* first = codes + pair * 64;
    for (int l = 0; l < 32; ++l) {
      qs[pair * 32 + l] = static_cast<uint8_t>(first[l] | first[l + 32] << 4);
    }
  }
}

void encode_q4_k(const float* src, std::byte* dst, int64_t cols, const float* importance) {
  auto* out = reinterpret_cast<BlockQ4K*>(dst);
  const float limit = largest_value(WeightType::q4_k);
  for (int64_t i = 0; i < cols; i += kSuperBlock, ++out) {
    SuperBlock block(src + i, importance ? importance + i : nullptr, limit);
    ScaleMinFit fit = fit_scale_min(block, 15);
    int8_t q[kSuperBlock];
    fit.codes(block, 15, q);
    out->d.set_bits(fit.d);
    out->dmin.set_bits(fit.dmin);
    out->scales.set(fit.scales, fit.minima);
    put_codes_q4_k(q, reinterpret_cast<std::byte*>(out));
  }
}

}  // namespace speech::quant
