#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

// AVX2 with FMA and F16C.
struct V {
  using I = __m256i;
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr bool kBytes = false, kSigned = false;
  using FloatRows = std::make_integer_sequence<int, 6>;  // of a tile, less one
  using IntRows = FloatRows;

  static __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  // 16 bytes of each fourth row.
  static I rows(const uint8_t* p, int64_t four) {
    I v = _mm256_castsi128_si256(load128(p));
    return _mm256_inserti128_si256(v, load128(p + four), 1);
  }
  static I zero() { return _mm256_setzero_si256(); }
  static F zero_f() { return _mm256_setzero_ps(); }
  static I set32(int v) { return _mm256_set1_epi32(v); }
  static F set_f(float v) { return _mm256_set1_ps(v); }
  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static F load_f(const float* p) { return _mm256_loadu_ps(p); }
  static F load_half(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
  static float half(uint16_t h) { return _cvtsh_ss(h); }
  static void store(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static void store_f(float* p, F v) { _mm256_storeu_ps(p, v); }
  static I broadcast(const void* p) {
    int pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
  }
  static F broadcast_f(const float* p) { return _mm256_set1_ps(*p); }
  static I low8(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
  static I high8(I a, I b) { return _mm256_unpackhi_epi8(a, b); }
  static I low16(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
  static I high16(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
  static I low32(I a, I b) { return _mm256_unpacklo_epi32(a, b); }
  static I high32(I a, I b) { return _mm256_unpackhi_epi32(a, b); }
  static I low64(I a, I b) { return _mm256_unpacklo_epi64(a, b); }
  static I high64(I a, I b) { return _mm256_unpackhi_epi64(a, b); }
  static I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
  template <int kBits>
  static I srl32(I a) {
    return _mm256_srli_epi32(a, kBits);
  }
  template <int kBits>
  static I sll32(I a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>  // left, or right if negative
  static I shift32(I a) {
    if constexpr (kBits > 0) {
      return _mm256_slli_epi32(a, kBits);
    } else if constexpr (kBits < 0) {
      return _mm256_srli_epi32(a, -kBits);
    } else {
      return a;
    }
  }
  template <int kBits>
  static I sra32(I a) {
    return _mm256_srai_epi32(a, kBits);
  }
  static I mul32(I a, I b) { return _mm256_mullo_epi32(a, b); }
  template <int kBits>
  static I sra16(I a) {
    return _mm256_srai_epi16(a, kBits);
  }
  static I mul16(I a, I b) { return _mm256_mullo_epi16(a, b); }
  static I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
  static I add32(I a, I b) { return _mm256_add_epi32(a, b); }
  static I max32(I a, I b) { return _mm256_max_epi32(a, b); }
  static int largest32(I a) {
    __m128i v = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
    return _mm_cvtsi128_si32(v);
  }
  static int sum32(I a) {
    __m128i v = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
    return _mm_cvtsi128_si32(v);
  }
  // Byte kByte of each 32-bit element, twice, as 16-bit words.
  template <int kByte>
  static I spread_byte(I a) {
    constexpr int c = kByte;
    return _mm256_shuffle_epi8(
        a, _mm256_broadcastsi128_si256(_mm_setr_epi8(c, -1, c, -1, c + 4, -1, c + 4, -1, c + 8, -1,
                                                     c + 8, -1, c + 12, -1, c + 12, -1)));
  }
  template <int kByte>
  static I spread_signed(I a) {
    constexpr int c = kByte;
    return _mm256_srai_epi16(_mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                                        -1, c, -1, c, -1, c + 4, -1, c + 4, -1,
                                                        c + 8, -1, c + 8, -1, c + 12, -1, c + 12))),
                             8);
  }
  static I dot(I sum, I a, I b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static I dot_bytes(I sum, I, I) { return sum; }  // for kBytes alone
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm256_cvtps_epi32(a); }  // to nearest even
  // f16 in the low half of each 32-bit element.
  static F half_low(I a) {
    a = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
  }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }
  // Pairs of f16 in 32-bit elements: all the low ones, all the high ones.
  static void halves(I a, F& even, F& odd) {
    even = half_low(a);
    odd = half_low(srl32<16>(a));
  }
  // Lane L of m[4 b + q] holds column 4 L + q of rows 4 b .. 4 b + 3: to the columns in order.
  static void join_lanes(I (&m)[8]) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      I a = m[q], b = m[4 + q];
      m[q] = _mm256_permute2x128_si256(a, b, 0x20);
      m[4 + q] = _mm256_permute2x128_si256(a, b, 0x31);
    }
  }
  static F mul(F a, F b) {
    return _mm256_mul_ps(a, b);
  }
  static F sub(F a, F b) {
    return _mm256_sub_ps(a, b);
  }
  static F fma(F a, F b, F c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static void store_int16(int16_t* p, I a, I b) {
    store(p, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
  }
};

}  // namespace
}  // namespace speech::cpu

#include "compute/cpu/vector/matmul_tiles.h"

namespace speech::cpu {

const MatmulKernels kAvx2Matmul = kTable;

}  // namespace speech::cpu

#endif
