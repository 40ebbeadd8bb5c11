// f32, f16 and bf16: little-endian values one after the other.
#include <cstring>

#include "quant/half.h"
#include "quant/rows.h"

namespace speech::quant {
namespace {

template <float (*convert)(uint16_t)>
void decode16(const std::byte* src, float* dst, int64_t cols) {
  for (int64_t i = 0; i < cols; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, 2);
    dst[i] = convert(bits);
  }
}

template <uint16_t (*convert)(float)>
void encode16(const float* src, std::byte* dst, int64_t cols) {
  for (int64_t i = 0; i < cols; ++i) {
    uint16_t bits = convert(src[i]);
    std::memcpy(dst + 2 * i, &bits, 2);
  }
}

}  // namespace

void decode_f32(const std::byte* src, float* dst, int64_t cols) {
  if (cols > 0) std::memcpy(dst, src, static_cast<size_t>(cols) * 4);
}
void decode_f16(const std::byte* src, float* dst, int64_t cols) {
  decode16<f16_to_f32>(src, dst, cols);
}
void decode_bf16(const std::byte* src, float* dst, int64_t cols) {
  decode16<bf16_to_f32>(src, dst, cols);
}

void encode_f32(const float* src, std::byte* dst, int64_t cols) {
  if (cols > 0) std::memcpy(dst, src, static_cast<size_t>(cols) * 4);
}
void encode_f16(const float* src, std::byte* dst, int64_t cols) {
  encode16<f32_to_f16>(src, dst, cols);
}
void encode_bf16(const float* src, std::byte* dst, int64_t cols) {
  encode16<f32_to_bf16>(src, dst, cols);
}

}  // namespace speech::quant
