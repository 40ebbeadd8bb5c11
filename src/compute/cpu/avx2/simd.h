// Vectors of 8 floats for the kernels of compute/cpu/vector/. In an anonymous namespace: every file
// that includes this has code of its own, so that none of it can end up in the baseline.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "compute/cpu/isa_enum.h"

namespace speech::cpu {
namespace {

constexpr Isa kIsa = Isa::avx2;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
// Register tile of products: rows (keys, channels, places) times vectors; 12 sums, 3 vectors, 1
// broadcast fill the 16 registers.
constexpr int kTileRows = 4, kTileVectors = 3;

using F = __m256;   // floats
using D = __m256d;  // half as many doubles
using M = __m256;   // a mask: all bits of a lane or none

inline F load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, F v) {
  _mm256_storeu_ps(p, v);
}
// f16, kLanes of them.
inline F load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_half(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline F set(float v) {
  return _mm256_set1_ps(v);
}
inline D set_d(double v) {
  return _mm256_set1_pd(v);
}
inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes; zeros elsewhere.
inline F load_n(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, first_lanes(n));
}
inline void store_n(float* p, F v, int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), v);
}

inline F fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F fnma(F a, F b, F c) {
  return _mm256_fnmadd_ps(a, b, c);
}  // c - a b
inline D fma(D a, D b, D c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline D fnma(D a, D b, D c) {
  return _mm256_fnmadd_pd(a, b, c);
}
// The second operand where either is NaN.
inline F max(F a, F b) {
  return _mm256_max_ps(a, b);
}
inline F min(F a, F b) {
  return _mm256_min_ps(a, b);
}
inline D max(D a, D b) {
  return _mm256_max_pd(a, b);
}
inline D min(D a, D b) {
  return _mm256_min_pd(a, b);
}
inline F sqrt(F a) {
  return _mm256_sqrt_ps(a);
}
inline D sqrt(D a) {
  return _mm256_sqrt_pd(a);
}
inline F round(F a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline D round(D a) {
  return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline F abs(F a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
inline D abs(D a) {
  return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a);
}
// |a| with the sign of b.
inline F with_sign(F a, F b) {
  F sign = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}
inline M less(F a, F b) {
  return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
inline M less_equal(F a, F b) {
  return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
inline M equal(F a, F b) {
  return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
inline M both(M a, M b) {
  return _mm256_and_ps(a, b);
}
inline M either(M a, M b) {
  return _mm256_or_ps(a, b);
}
inline bool any_nan(F a) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
}
inline F select(M m, F a, F b) {
  return _mm256_blendv_ps(b, a, m);
}  // m ? a : b
inline D select_less(D a, D b, D yes, D no) {
  return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_LT_OQ));
}
// v 2^n for whole n in [-252, 254]; in two steps, so that results below the normal range are
// rounded once.
inline F scale2(F v, F n) {
  __m256i whole = _mm256_cvtps_epi32(n);
  __m256i half = _mm256_srai_epi32(whole, 1);
  auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return v * power(half) * power(_mm256_sub_epi32(whole, half));
}
// The same for doubles, n in [-1022, 1023].
inline D scale2(D v, D n) {
  __m256i whole = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n));
  __m256i bits = _mm256_slli_epi64(_mm256_add_epi64(whole, _mm256_set1_epi64x(1023)), 52);
  return v * _mm256_castsi256_pd(bits);
}
inline D low_double(F a) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}
inline D high_double(F a) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
inline F to_float(D low, D high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high),
                              1);
}
inline double sum(D a) {
  __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
inline float max_lane(F a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// Lane l of base[l * step].
struct Steps {
  __m256i index;
};
inline Steps steps(int step) {
  return {_mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(step))};
}
inline F gather(const float* base, Steps s) {
  return _mm256_i32gather_ps(base, s.index, 4);
}

inline void transpose(F (&r)[kLanes]) {
  F t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

}  // namespace
}  // namespace speech::cpu
