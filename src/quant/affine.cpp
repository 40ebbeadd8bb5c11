// MLX's affine groups: value = scale * code + bias, one scale and bias per group of columns.
// Source: mlx/ops.cpp and mlx/backend/cpu/quantized.cpp of ml-explore/mlx.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/half.h"

namespace speech {
namespace {

float load_scale(WeightType type, const std::byte* at, int64_t index) {
  if (type == WeightType::f32) {
    float f;
    std::memcpy(&f, at + 4 * index, 4);
    return f;
  }
  uint16_t bits;
  std::memcpy(&bits, at + 2 * index, 2);
  return type == WeightType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void store_scale(WeightType type, std::byte* at, int64_t index, float f) {
  if (type == WeightType::f32) {
    std::memcpy(at + 4 * index, &f, 4);
    return;
  }
  uint16_t bits = type == WeightType::f16 ? f32_to_f16(f) : f32_to_bf16(f);
  std::memcpy(at + 2 * index, &bits, 2);
}

void check(const AffineFormat& format, int64_t cols) {
  if (!valid_affine(format) || cols < 0 || cols % format.group != 0) {
    fail(Status::internal, "no affine row of {} values with {} bits and groups of {}", cols,
         format.bits, format.group);
  }
}

}  // namespace

bool valid_affine(const AffineFormat& f) {
  bool bits =
      f.bits == 2 || f.bits == 3 || f.bits == 4 || f.bits == 5 || f.bits == 6 || f.bits == 8;
  bool group = f.group == 32 || f.group == 64 || f.group == 128;
  bool scale = f.scale_type == WeightType::f32 || f.scale_type == WeightType::f16 ||
               f.scale_type == WeightType::bf16;
  return bits && group && scale;
}

void decode_affine_row(const AffineFormat& format, const std::byte* packed, const std::byte* scales,
                       const std::byte* biases, float* dst, int64_t cols) {
  check(format, cols);
  const int bits = format.bits;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (int64_t g = 0; g * format.group < cols; ++g) {
    float scale = load_scale(format.scale_type, scales, g);
    float bias = load_scale(format.scale_type, biases, g);
    float* out = dst + g * format.group;
    for (int i = 0; i < format.group; i += 8, packed += bits, out += 8) {
      uint64_t stream = 0;  // eight codes in `bits` bytes
      std::memcpy(&stream, packed, static_cast<size_t>(bits));
      for (int j = 0; j < 8; ++j) {
        out[j] = scale * static_cast<float>(stream >> (j * bits) & mask) + bias;
      }
    }
  }
}

void encode_affine_row(const AffineFormat& format, const float* src, std::byte* packed,
                       std::byte* scales, std::byte* biases, int64_t cols) {
  check(format, cols);
  const int bits = format.bits;
  const float top = static_cast<float>((1 << bits) - 1);
  for (int64_t g = 0; g * format.group < cols; ++g) {
    const float* x = src + g * format.group;
    float low = x[0], high = x[0];
    for (int i = 1; i < format.group; ++i) {
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
    }
    // The extreme of larger magnitude becomes the bias, so that it and zero are exact; the scale
    // then points towards the other extreme.
    bool from_low = std::fabs(low) > std::fabs(high);
    float scale = std::max((high - low) / top, 1e-7f);
    if (!from_low) scale = -scale;
    float edge = from_low ? low : high;
    float steps = std::rint(edge / scale);
    float bias = 0;
    if (steps != 0) {
      scale = edge / steps;
      bias = edge;
    }
    store_scale(format.scale_type, scales, g, scale);
    store_scale(format.scale_type, biases, g, bias);
    for (int i = 0; i < format.group; i += 8, packed += bits) {
      uint64_t stream = 0;
      for (int j = 0; j < 8; ++j) {
        float q = (x[i + j] - bias) / scale;
        q = q > 0 ? (q < top ? q : top) : 0;  // NaN becomes 0
        // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
        uint32_t code = std::bit_cast<uint32_t>(q + 12582912.0f) & 0xff;
        stream |= static_cast<uint64_t>(code) << (j * bits);
      }
      std::memcpy(packed, &stream, static_cast<size_t>(bits));
    }
  }
}

}  // namespace speech
