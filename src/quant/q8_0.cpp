// q8_0: 32 values share an f16 scale d = max|x| / 127; codes are round(x / d), halves away from
// zero. Layout: BlockQ8_0.
#include <algorithm>
#include <cmath>

#include "quant/blocks.h"
#include "quant/rows.h"

namespace speech::quant {

void decode_q8_0(const std::byte* src, float* dst, int64_t cols) {
  const auto* block = reinterpret_cast<const BlockQ8_0*>(src);
  for (int64_t i = 0; i < cols; i += 32, ++block) {
    float d = block->d.value();
    for (int j = 0; j < 32; ++j) dst[i + j] = d * static_cast<float>(block->qs[j]);
  }
}

Grid grid_q8_0(const std::byte* src) {
  return {32, -127, 127, {reinterpret_cast<const BlockQ8_0*>(src)->d.value()}, {}};
}

void put_codes_q8_0(const int8_t* codes, std::byte* dst) {
  std::copy_n(codes, 32, reinterpret_cast<BlockQ8_0*>(dst)->qs);
}

void encode_q8_0(const float* src, std::byte* dst, int64_t cols) {
  auto* block = reinterpret_cast<BlockQ8_0*>(dst);
  for (int64_t i = 0; i < cols; i += 32, ++block) {
    const float* x = src + i;
    float largest = 0;
    for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(x[j]));
    // Codes come from the unrounded scale, as in ggml.
    float d = largest / 127;
    float inverse = d != 0 ? 1 / d : 0;
    block->d.set_bits(f32_to_f16(d));
    for (int j = 0; j < 32; ++j) {
      float q = std::round(x[j] * inverse);
      // A denormal d has an infinite inverse, and x may be anything: what is no code becomes 0.
      block->qs[j] = std::fabs(q) <= 127 ? static_cast<int8_t>(q) : int8_t{0};
    }
  }
}

}  // namespace speech::quant
