// Vectors of 4 floats for the kernels of compute/cpu/vector/. In an anonymous namespace, as for the
// other instruction sets.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "compute/cpu/isa_enum.h"

namespace speech::cpu {
namespace {

constexpr Isa kIsa = Isa::neon;
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
// Register tile of products: rows (keys, channels, places) times vectors: 24 sums of the 32
// registers.
constexpr int kTileRows = 8, kTileVectors = 3;

using F = float32x4_t;  // floats
using D = float64x2_t;  // half as many doubles
using M = uint32x4_t;   // a mask: all bits of a lane or none

inline F load(const float* p) {
  return vld1q_f32(p);
}
inline void store(float* p, F v) {
  vst1q_f32(p, v);
}
// f16, kLanes of them.
inline F load_half(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
inline void store_half(uint16_t* p, F v) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
inline F set(float v) {
  return vdupq_n_f32(v);
}
inline D set_d(double v) {
  return vdupq_n_f64(v);
}
// The first n lanes; zeros elsewhere.
inline F load_n(const float* p, int64_t n) {
  if (n >= 4) return load(p);
  F v = set(0.0f);
  if (n == 1) return vld1q_lane_f32(p, v, 0);
  if (n >= 2) v = vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
  return n == 3 ? vld1q_lane_f32(p + 2, v, 2) : v;
}
inline void store_n(float* p, F v, int64_t n) {
  if (n >= 4) return store(p, v);
  if (n == 1) return vst1q_lane_f32(p, v, 0);
  if (n >= 2) vst1_f32(p, vget_low_f32(v));
  if (n == 3) vst1q_lane_f32(p + 2, v, 2);
}

inline F fma(F a, F b, F c) {
  return vfmaq_f32(c, a, b);
}
inline F fnma(F a, F b, F c) {
  return vfmsq_f32(c, a, b);
}  // c - a b
inline D fma(D a, D b, D c) {
  return vfmaq_f64(c, a, b);
}
inline D fnma(D a, D b, D c) {
  return vfmsq_f64(c, a, b);
}
// The second operand where either is NaN, which the instructions of that name do not give.
inline F max(F a, F b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline F min(F a, F b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline D max(D a, D b) {
  return vbslq_f64(vcgtq_f64(a, b), a, b);
}
inline D min(D a, D b) {
  return vbslq_f64(vcltq_f64(a, b), a, b);
}
inline F sqrt(F a) {
  return vsqrtq_f32(a);
}
inline D sqrt(D a) {
  return vsqrtq_f64(a);
}
inline F round(F a) {
  return vrndnq_f32(a);
}
inline D round(D a) {
  return vrndnq_f64(a);
}
inline F abs(F a) {
  return vabsq_f32(a);
}
inline D abs(D a) {
  return vabsq_f64(a);
}
// |a| with the sign of b.
inline F with_sign(F a, F b) {
  return vbslq_f32(vdupq_n_u32(0x80000000u), b, a);
}
inline M less(F a, F b) {
  return vcltq_f32(a, b);
}
inline M less_equal(F a, F b) {
  return vcleq_f32(a, b);
}
inline M equal(F a, F b) {
  return vceqq_f32(a, b);
}
inline M both(M a, M b) {
  return vandq_u32(a, b);
}
inline M either(M a, M b) {
  return vorrq_u32(a, b);
}
inline bool any_nan(F a) {
  return vminvq_u32(vceqq_f32(a, a)) == 0;
}
inline F select(M m, F a, F b) {
  return vbslq_f32(m, a, b);
}  // m ? a : b
inline D select_less(D a, D b, D yes, D no) {
  return vbslq_f64(vcltq_f64(a, b), yes, no);
}
// v 2^n for whole n in [-252, 254]; in two steps, so that results below the normal range are
// rounded once.
inline F scale2(F v, F n) {
  int32x4_t whole = vcvtq_s32_f32(n);
  int32x4_t half = vshrq_n_s32(whole, 1);
  auto power = [](int32x4_t e) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
  };
  return v * power(half) * power(vsubq_s32(whole, half));
}
// The same for doubles, n in [-1022, 1023].
inline D scale2(D v, D n) {
  int64x2_t bits = vshlq_n_s64(vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1023)), 52);
  return v * vreinterpretq_f64_s64(bits);
}
inline D low_double(F a) {
  return vcvt_f64_f32(vget_low_f32(a));
}
inline D high_double(F a) {
  return vcvt_high_f64_f32(a);
}
inline F to_float(D low, D high) {
  return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}
inline double sum(D a) {
  return vaddvq_f64(a);
}
inline float max_lane(F a) {
  return vmaxvq_f32(a);
}

// Lane l of base[l * step].
struct Steps {
  int64_t step;
};
inline Steps steps(int step) {
  return {step};
}
inline F gather(const float* base, Steps s) {
  F v = vld1q_dup_f32(base);
  v = vld1q_lane_f32(base + s.step, v, 1);
  v = vld1q_lane_f32(base + 2 * s.step, v, 2);
  return vld1q_lane_f32(base + 3 * s.step, v, 3);
}

inline void transpose(F (&r)[kLanes]) {
  auto pairs = [](F a) { return vreinterpretq_f64_f32(a); };
  auto join = [](D a) { return vreinterpretq_f32_f64(a); };
  D t0 = pairs(vtrn1q_f32(r[0], r[1])), t1 = pairs(vtrn2q_f32(r[0], r[1]));
  D t2 = pairs(vtrn1q_f32(r[2], r[3])), t3 = pairs(vtrn2q_f32(r[2], r[3]));
  r[0] = join(vzip1q_f64(t0, t2));
  r[1] = join(vzip1q_f64(t1, t3));
  r[2] = join(vzip2q_f64(t0, t2));
  r[3] = join(vzip2q_f64(t1, t3));
}

}  // namespace
}  // namespace speech::cpu
