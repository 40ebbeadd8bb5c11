// The operations of the matrix product's kernels (see V in compute/cpu/vector/matmul_tiles.h) on
// registers of four 32-bit elements: what every aarch64 processor has, and of later extensions what
// the including file is compiled for.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <utility>

#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

struct NeonVector {
  using I = int32x4_t;
  using F = float32x4_t;
  static constexpr int kLanes = 4;
  using FloatRows = std::make_integer_sequence<int, 12>;  // of a tile, less one
  using IntRows = std::make_integer_sequence<int, 6>;

  static uint8x16_t u8(I a) { return vreinterpretq_u8_s32(a); }
  static int8x16_t s8(I a) { return vreinterpretq_s8_s32(a); }
  static int16x8_t s16(I a) { return vreinterpretq_s16_s32(a); }
  static uint32x4_t u32(I a) { return vreinterpretq_u32_s32(a); }
  static int64x2_t s64(I a) { return vreinterpretq_s64_s32(a); }
  static I from(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
  static I from(int16x8_t a) { return vreinterpretq_s32_s16(a); }
  static I from(uint32x4_t a) { return vreinterpretq_s32_u32(a); }
  static I from(int64x2_t a) { return vreinterpretq_s32_s64(a); }

  // 16 bytes of each fourth row: a register holds one of them.
  static I rows(const uint8_t* p, int64_t) { return from(vld1q_u8(p)); }
  static I zero() { return vdupq_n_s32(0); }
  static F zero_f() { return vdupq_n_f32(0); }
  static I set32(int v) { return vdupq_n_s32(v); }
  static F set_f(float v) { return vdupq_n_f32(v); }
  static I load(const void* p) { return from(vld1q_u8(static_cast<const uint8_t*>(p))); }
  static F load_f(const float* p) { return vld1q_f32(p); }
  static F from_half(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
  static F load_half(const uint8_t* p) { return from_half(vreinterpret_u16_u8(vld1_u8(p))); }
  static float half(uint16_t h) { return vgetq_lane_f32(from_half(vdup_n_u16(h)), 0); }
  static void store(void* p, I v) { vst1q_u8(static_cast<uint8_t*>(p), u8(v)); }
  static void store_f(float* p, F v) { vst1q_f32(p, v); }
  static I broadcast(const void* p) {
    int pair;
    __builtin_memcpy(&pair, p, 4);
    return vdupq_n_s32(pair);
  }
  static F broadcast_f(const float* p) { return vld1q_dup_f32(p); }
  static I low8(I a, I b) { return from(vzip1q_u8(u8(a), u8(b))); }
  static I high8(I a, I b) { return from(vzip2q_u8(u8(a), u8(b))); }
  static I low16(I a, I b) { return from(vzip1q_s16(s16(a), s16(b))); }
  static I high16(I a, I b) { return from(vzip2q_s16(s16(a), s16(b))); }
  static I low32(I a, I b) { return vzip1q_s32(a, b); }
  static I high32(I a, I b) { return vzip2q_s32(a, b); }
  static I low64(I a, I b) { return from(vzip1q_s64(s64(a), s64(b))); }
  static I high64(I a, I b) { return from(vzip2q_s64(s64(a), s64(b))); }
  static I and_(I a, I b) { return vandq_s32(a, b); }
  static I or_(I a, I b) { return vorrq_s32(a, b); }
  static I xor_(I a, I b) { return veorq_s32(a, b); }
  template <int kBits>  // left, or right if negative
  static I shift32(I a) {
    if constexpr (kBits > 0) {
      return vshlq_n_s32(a, kBits);
    } else if constexpr (kBits < 0) {
      return from(vshrq_n_u32(u32(a), -kBits));
    } else {
      return a;
    }
  }
  template <int kBits>
  static I srl32(I a) {
    return shift32<-kBits>(a);
  }
  template <int kBits>
  static I sll32(I a) {
    return shift32<kBits>(a);
  }
  template <int kBits>
  static I sra32(I a) {
    return vshrq_n_s32(a, kBits);
  }
  template <int kBits>
  static I sra16(I a) {
    return from(vshrq_n_s16(s16(a), kBits));
  }
  static I mul32(I a, I b) { return vmulq_s32(a, b); }
  static I mul16(I a, I b) { return from(vmulq_s16(s16(a), s16(b))); }
  static I sub16(I a, I b) { return from(vsubq_s16(s16(a), s16(b))); }
  static I add32(I a, I b) { return vaddq_s32(a, b); }
  static I max32(I a, I b) { return vmaxq_s32(a, b); }
  static int largest32(I a) { return vmaxvq_s32(a); }
  static int sum32(I a) { return vaddvq_s32(a); }
  // Byte kByte of each 32-bit element, twice, as 16-bit words. Indices beyond 15 give zeros.
  template <int kByte>
  static I spread_byte(I a) {
    constexpr uint8_t c = kByte, z = 255;
    constexpr uint8_t order[16] = {c,     z, c,     z, c + 4,  z, c + 4,  z,
                                   c + 8, z, c + 8, z, c + 12, z, c + 12, z};
    return from(vqtbl1q_u8(u8(a), vld1q_u8(order)));
  }
  template <int kByte>
  static I spread_signed(I a) {
    constexpr uint8_t c = kByte, z = 255;
    constexpr uint8_t order[16] = {z, c,     z, c,     z, c + 4,  z, c + 4,
                                   z, c + 8, z, c + 8, z, c + 12, z, c + 12};
    return sra16<8>(from(vqtbl1q_u8(u8(a), vld1q_u8(order))));
  }
  // Pairs of int16 multiplied and added, in int32.
  static I dot(I sum, I a, I b) {
    I low = vmull_s16(vget_low_s16(s16(a)), vget_low_s16(s16(b)));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(s16(a), s16(b))));
  }
  static F to_float(I a) { return vcvtq_f32_s32(a); }
  static I to_int(F a) { return vcvtnq_s32_f32(a); }  // to nearest even
  // f16 in the low half of each 32-bit element.
  static F half_low(I a) { return from_half(vmovn_u32(u32(a))); }
  static F as_float(I a) { return vreinterpretq_f32_s32(a); }
  // Pairs of f16 in 32-bit elements: all the low ones, all the high ones.
  static void halves(I a, F& even, F& odd) {
    even = half_low(a);
    odd = from_half(vshrn_n_u32(u32(a), 16));
  }
  // kScaleColumns values: the high plane at p, the low one kUnitColumns behind.
  static void store_planes(int8_t* p, const float* x, F factor) {
    for (int c = 0; c < kScaleColumns; c += 16) {
      I high[4], low[4];
      for (int i = 0; i < 4; ++i) {
        I q = to_int(mul(load_f(x + c + 4 * i), factor));
        high[i] = sra32<8>(add32(q, set32(128)));
        low[i] = vsubq_s32(q, sll32<8>(high[i]));
      }
      vst1q_s8(p + c, narrow(high));
      vst1q_s8(p + kUnitColumns + c, narrow(low));
    }
  }
  static int8x16_t narrow(const I (&v)[4]) {
    int16x8_t a = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
    int16x8_t b = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
    return vcombine_s8(vmovn_s16(a), vmovn_s16(b));
  }
  static constexpr int kPiece = 16;
  static I piece(const int8_t* p, int) { return load(p); }
  static I reorder(I a, const int8_t* order) {
    return from(vqtbl1q_u8(u8(a), vreinterpretq_u8_s8(vld1q_s8(order))));
  }
  static void join_lanes(I (&)[kLanes]) {}  // there is one
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static void store_int16(int16_t* p, I a, I b) {
    vst1q_s16(p, vcombine_s16(vqmovn_s32(a), vqmovn_s32(b)));
  }
};

// The codes of most types are below 128 and so fit the product of signed bytes.
struct V : NeonVector {
#if defined(__ARM_FEATURE_DOTPROD)
  static constexpr bool kBytes = true, kSigned = true;
  static I dot_bytes(I sum, I a, I b) {
    return vdotq_s32(sum, s8(a), s8(b));
  }
#else
  static constexpr bool kBytes = false, kSigned = false;
  static I dot_bytes(I sum, I, I) {
    return sum;
  }
#endif
};

}  // namespace
}  // namespace speech::cpu
