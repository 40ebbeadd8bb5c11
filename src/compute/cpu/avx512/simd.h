// Vectors of 16 floats for the kernels of compute/cpu/vector/. In an anonymous namespace: every
// file that includes this has code of its own, so that none of it can end up in the baseline.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "compute/cpu/isa_enum.h"

namespace speech::cpu {
namespace {

constexpr Isa kIsa = Isa::avx512;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
// Register tile of products: rows (keys, channels, places) times vectors: 24 sums of the 32
// registers.
constexpr int kTileRows = 8, kTileVectors = 3;

using F = __m512;     // floats
using D = __m512d;    // half as many doubles
using M = __mmask16;  // one bit per lane

inline F load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, F v) {
  _mm512_storeu_ps(p, v);
}
// f16, kLanes of them.
inline F load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline F set(float v) {
  return _mm512_set1_ps(v);
}
inline D set_d(double v) {
  return _mm512_set1_pd(v);
}
inline M first_lanes(int64_t n) {
  return static_cast<M>((1u << n) - 1);
}
// The first n lanes; zeros elsewhere.
inline F load_n(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline void store_n(float* p, F v, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

inline F fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline F fnma(F a, F b, F c) {
  return _mm512_fnmadd_ps(a, b, c);
}  // c - a b
inline D fma(D a, D b, D c) {
  return _mm512_fmadd_pd(a, b, c);
}
inline D fnma(D a, D b, D c) {
  return _mm512_fnmadd_pd(a, b, c);
}
// The second operand where either is NaN.
inline F max(F a, F b) {
  return _mm512_max_ps(a, b);
}
inline F min(F a, F b) {
  return _mm512_min_ps(a, b);
}
inline D max(D a, D b) {
  return _mm512_max_pd(a, b);
}
inline D min(D a, D b) {
  return _mm512_min_pd(a, b);
}
inline F sqrt(F a) {
  return _mm512_sqrt_ps(a);
}
inline D sqrt(D a) {
  return _mm512_sqrt_pd(a);
}
inline F round(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline D round(D a) {
  return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline F abs(F a) {
  return _mm512_abs_ps(a);
}
inline D abs(D a) {
  return _mm512_abs_pd(a);
}
// |a| with the sign of b.
inline F with_sign(F a, F b) {
  F sign = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}
inline M less(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
inline M less_equal(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
inline M equal(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
inline M both(M a, M b) {
  return a & b;
}
inline M either(M a, M b) {
  return a | b;
}
inline bool any_nan(F a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}
inline F select(M m, F a, F b) {
  return _mm512_mask_blend_ps(m, b, a);
}  // m ? a : b
inline D select_less(D a, D b, D yes, D no) {
  return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), no, yes);
}
// v 2^n for whole n, rounded once.
inline F scale2(F v, F n) {
  return _mm512_scalef_ps(v, n);
}
inline D scale2(D v, D n) {
  return _mm512_scalef_pd(v, n);
}
inline D low_double(F a) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}
inline D high_double(F a) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
inline F to_float(D low, D high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
inline double sum(D a) {
  return _mm512_reduce_add_pd(a);
}
inline float max_lane(F a) {
  return _mm512_reduce_max_ps(a);
}

// Lane l of base[l * step].
struct Steps {
  __m512i index;
};
inline Steps steps(int step) {
  return {
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(step))};
}
inline F gather(const float* base, Steps s) {
  return _mm512_i32gather_ps(s.index, base, 4);
}

inline void transpose(F (&r)[kLanes]) {
  F t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}

}  // namespace
}  // namespace speech::cpu
