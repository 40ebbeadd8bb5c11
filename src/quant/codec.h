// Rows of weights between f32 and the stored types. Pointers to stored bytes may have any
// alignment. Everything here is plain C++, deterministic, and safe on any input: what an encoder
// makes of NaN, infinities or values that a type cannot hold is defined (see largest_value), never
// undefined behaviour, but whoever writes files must refuse such weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/weight_type.h"

namespace speech {

// Stored row -> f32, exactly the values the type's definition gives. `cols` in whole blocks,
// else Error(internal). WeightType::affine has functions of its own below.
void decode_row(WeightType type, const std::byte* src, float* dst, int64_t cols);

// f32 row -> stored row of row_bytes(type, cols).
// f32, f16, bf16: rounded to nearest even. q8_0: the bytes ggml's reference makes. q6_k, q5_k,
// q4_k: a search for the least squared error, sum of importance[i] * (decoded[i] - src[i])^2;
// `importance` holds `cols` weights >= 0 (null: all 1) and is not used by the other types.
void encode_row(WeightType type, const float* src, std::byte* dst, int64_t cols,
                const float* importance = nullptr);

// The largest magnitude that encode_row keeps finite in every place of a row.
float largest_value(WeightType type);

// MLX's affine groups (mlx.core.quantize, mode "affine"). `packed`: cols * bits / 32 little-endian
// u32 words, codes as one bit stream, least significant bit first; `scales` and `biases`:
// cols / group values of format.scale_type. value = scale * code + bias, computed in f32.
// Error(internal) for a format that MLX does not have or cols not in whole groups.
void decode_affine_row(const AffineFormat& format, const std::byte* packed, const std::byte* scales,
                       const std::byte* biases, float* dst, int64_t cols);

// The codes, scales and biases of MLX's CPU quantizer bit for bit (for finite rows). Scales and
// biases are rounded to scale_type after the codes have been chosen.
void encode_affine_row(const AffineFormat& format, const float* src, std::byte* packed,
                       std::byte* scales, std::byte* biases, int64_t cols);

bool valid_affine(const AffineFormat& format);
inline int64_t affine_packed_bytes(const AffineFormat& format, int64_t cols) {
  return cols / 8 * format.bits;
}

}  // namespace speech
