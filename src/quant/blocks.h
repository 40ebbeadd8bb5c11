// The blocks of ggml's quantized types, byte for byte as files hold them (source: ggml,
// ggml-common.h). Every struct is made of bytes, so a pointer into a file may be cast to it at any
// alignment.
#pragma once

#include <cstdint>

#include "quant/half.h"

namespace speech {

// An f16 of a file, little-endian, at any alignment.
struct Half {
  uint8_t bytes[2];

  uint16_t bits() const { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
  float value() const { return f16_to_f32(bits()); }
  void set_bits(uint16_t b) {
    bytes[0] = static_cast<uint8_t>(b);
    bytes[1] = static_cast<uint8_t>(b >> 8);
  }
};

inline constexpr int kSuperBlock = 256;  // values per block of the K types

// 32 values: x[i] = d * qs[i], qs in -127..127 (readers take -128 too).
struct BlockQ8_0 {
  Half d;
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 1);

// 256 values in 16 groups of 16: x[i] = d * scales[i / 16] * (q[i] - 32), q of 6 bits.
// The block has two halves of 128 values (ql + 64, qh + 32 for the second one). Value
// 32 * p + l (p 0..3, l 0..31) of a half: low four bits in ql[32 * (p & 1) + l], the low nibble for
// p 0 and 1, the high one for p 2 and 3; high two bits at bit 2 * p of qh[l].
struct BlockQ6K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  Half d;
};
static_assert(sizeof(BlockQ6K) == 210 && alignof(BlockQ6K) == 1);

// Scale and minimum of the 8 groups of a q4_k or q5_k block, 6 bits each in 12 bytes:
//   bytes 0..3   scale j    in bits 0..5, bits 4..5 of scale j + 4 in bits 6..7   (j 0..3)
//   bytes 4..7   minimum j  in bits 0..5, bits 4..5 of minimum j + 4 in bits 6..7
//   bytes 8..11  low four bits of scale j + 4, then of minimum j + 4
struct KScales {
  uint8_t bytes[12];

  int scale(int group) const {
    return group < 4 ? bytes[group] & 63 : (bytes[group + 4] & 15) | (bytes[group - 4] >> 6 << 4);
  }
  int minimum(int group) const {
    return group < 4 ? bytes[group + 4] & 63 : bytes[group + 4] >> 4 | (bytes[group] >> 6 << 4);
  }
  void set(const uint8_t scales[8], const uint8_t minima[8]) {
    for (int j = 0; j < 4; ++j) {
      bytes[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
      bytes[j + 4] = static_cast<uint8_t>(minima[j] | minima[j + 4] >> 4 << 6);
      bytes[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
    }
  }
};

// 256 values in 8 groups of 32: x[i] = d * scale(g) * q[i] - dmin * minimum(g), q of 4 bits.
// Groups 2k and 2k + 1 share the bytes qs[32 * k ...]: low nibbles, high nibbles.
struct BlockQ4K {
  Half d, dmin;
  KScales scales;
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4K) == 144 && alignof(BlockQ4K) == 1);

// As q4_k, with a fifth bit: bit g of qh[l] for value l of group g.
struct BlockQ5K {
  Half d, dmin;
  KScales scales;
  uint8_t qh[32];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ5K) == 176 && alignof(BlockQ5K) == 1);

}  // namespace speech
