// f16 (IEEE binary16) and bf16 as bits: exact conversions, rounded to nearest even. NaN stays NaN
// with its payload and becomes quiet, as the F16C instructions do it. Plain integer code, so that
// loops over rows vectorize.
#pragma once

#include <bit>
#include <cstdint>

namespace speech {

inline float f16_to_f32(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;  // exponent and fraction in place
  uint32_t normal = magnitude + (112u << 23);                    // exponent bias 15 -> 127
  // Subnormal: fraction * 2^-24, made by taking the implied one away from 2^-14 + fraction.
  uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) -
                                               std::bit_cast<float>(113u << 23));
  uint32_t special = magnitude | 0x7f800000u;  // infinity, or NaN with its payload
  if (magnitude > 0x0f800000u) special |= 0x00400000u;
  uint32_t bits = magnitude < (1u << 23) ? subnormal : normal;
  bits = magnitude >= 0x0f800000u ? special : bits;
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t f32_to_f16(float f) {
  uint32_t bits = std::bit_cast<uint32_t>(f);
  uint32_t sign = bits >> 16 & 0x8000;
  uint32_t x = bits & 0x7fffffff;
  uint32_t normal = (x + 0xfff + (x >> 13 & 1) - (112u << 23)) >> 13;
  // Below 2^-14: adding 0.5 lets the FPU round to the step 2^-24.
  uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(x) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  uint32_t nan = 0x7e00 | (x >> 13 & 0x3ff);
  uint32_t h = x < 0x38800000u ? subnormal : normal;
  h = x >= 0x477ff000u ? 0x7c00 : h;  // 65520 and above round to infinity
  h = x > 0x7f800000u ? nan : h;
  return static_cast<uint16_t>(sign | h);
}

inline float bf16_to_f32(uint16_t b) {
  uint32_t bits = static_cast<uint32_t>(b) << 16;
  if ((bits & 0x7fffffff) > 0x7f800000u) bits |= 0x00400000u;
  return std::bit_cast<float>(bits);
}

inline uint16_t f32_to_bf16(float f) {
  uint32_t bits = std::bit_cast<uint32_t>(f);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000u ? nan : rounded);
}

}  // namespace speech
