#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

// AVX-512 with VNNI.
struct V {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr bool kBytes = true, kSigned = false;
  // Rows of a tile, less one: with integers their sums of groups and of blocks stay in registers.
  using FloatRows = std::make_integer_sequence<int, 12>;
  using IntRows = std::make_integer_sequence<int, 6>;

  static __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  // 16 bytes of each fourth row.
  static I rows(const uint8_t* p, int64_t four) {
    I v = _mm512_castsi128_si512(load128(p));
    v = _mm512_inserti32x4(v, load128(p + four), 1);
    v = _mm512_inserti32x4(v, load128(p + 2 * four), 2);
    return _mm512_inserti32x4(v, load128(p + 3 * four), 3);
  }
  static I zero() { return _mm512_setzero_si512(); }
  static F zero_f() { return _mm512_setzero_ps(); }
  static I set32(int v) { return _mm512_set1_epi32(v); }
  static F set_f(float v) { return _mm512_set1_ps(v); }
  static I load(const void* p) { return _mm512_loadu_si512(p); }
  static F load_f(const float* p) { return _mm512_loadu_ps(p); }
  static F load_half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static float half(uint16_t h) { return _cvtsh_ss(h); }
  static void store(void* p, I v) { _mm512_storeu_si512(p, v); }
  static void store_f(float* p, F v) { _mm512_storeu_ps(p, v); }
  static I broadcast(const void* p) {
    int pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static F broadcast_f(const float* p) { return _mm512_set1_ps(*p); }
  static I low8(I a, I b) { return _mm512_unpacklo_epi8(a, b); }
  static I high8(I a, I b) { return _mm512_unpackhi_epi8(a, b); }
  static I low16(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
  static I high16(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
  static I low32(I a, I b) { return _mm512_unpacklo_epi32(a, b); }
  static I high32(I a, I b) { return _mm512_unpackhi_epi32(a, b); }
  static I low64(I a, I b) { return _mm512_unpacklo_epi64(a, b); }
  static I high64(I a, I b) { return _mm512_unpackhi_epi64(a, b); }
  static I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
  template <int kBits>
  static I srl32(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  static I sll32(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>  // left, or right if negative
  static I shift32(I a) {
    if constexpr (kBits > 0) {
      return _mm512_slli_epi32(a, kBits);
    } else if constexpr (kBits < 0) {
      return _mm512_srli_epi32(a, -kBits);
    } else {
      return a;
    }
  }
  template <int kBits>
  static I sra32(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static I mul32(I a, I b) { return _mm512_mullo_epi32(a, b); }
  template <int kBits>
  static I sra16(I a) {
    return _mm512_srai_epi16(a, kBits);
  }
  static I mul16(I a, I b) { return _mm512_mullo_epi16(a, b); }
  static I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }
  static I add32(I a, I b) { return _mm512_add_epi32(a, b); }
  static I max32(I a, I b) { return _mm512_max_epi32(a, b); }
  static int largest32(I a) { return _mm512_reduce_max_epi32(a); }
  static int sum32(I a) { return _mm512_reduce_add_epi32(a); }
  // Byte kByte of each 32-bit element, twice, as 16-bit words.
  template <int kByte>
  static I spread_byte(I a) {
    constexpr int c = kByte;
    return _mm512_shuffle_epi8(
        a, _mm512_broadcast_i32x4(_mm_setr_epi8(c, -1, c, -1, c + 4, -1, c + 4, -1, c + 8, -1,
                                                c + 8, -1, c + 12, -1, c + 12, -1)));
  }
  template <int kByte>
  static I spread_signed(I a) {
    constexpr int c = kByte;
    return _mm512_srai_epi16(_mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(_mm_setr_epi8(
                                                        -1, c, -1, c, -1, c + 4, -1, c + 4, -1,
                                                        c + 8, -1, c + 8, -1, c + 12, -1, c + 12))),
                             8);
  }
  static I dot(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static I dot_bytes(I sum, I a, I b) { return _mm512_dpbusd_epi32(sum, a, b); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }  // to nearest even
  // f16 in the low half of each 32-bit element.
  static F half_low(I a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }
  // Pairs of f16 in 32-bit elements: all the low ones, all the high ones.
  static void halves(I a, F& even, F& odd) {
    I order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28,
                               26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    a = _mm512_permutexvar_epi16(order, a);
    even = _mm512_cvtph_ps(_mm512_castsi512_si256(a));
    odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1));
  }
  // Lane L of m[4 b + q] holds column 4 L + q of rows 4 b .. 4 b + 3: to the columns in order.
  static void join_lanes(I (&m)[16]) {
    I t[16];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      I a = _mm512_shuffle_i32x4(m[q], m[4 + q], 0x88),
        b = _mm512_shuffle_i32x4(m[q], m[4 + q], 0xdd);
      I c = _mm512_shuffle_i32x4(m[8 + q], m[12 + q], 0x88);
      I d = _mm512_shuffle_i32x4(m[8 + q], m[12 + q], 0xdd);
      t[q] = _mm512_shuffle_i32x4(a, c, 0x88);
      t[8 + q] = _mm512_shuffle_i32x4(a, c, 0xdd);
      t[4 + q] = _mm512_shuffle_i32x4(b, d, 0x88);
      t[12 + q] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) m[i] = t[i];
  }
  static F mul(F a, F b) {
    return _mm512_mul_ps(a, b);
  }
  static F sub(F a, F b) {
    return _mm512_sub_ps(a, b);
  }
  static F fma(F a, F b, F c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  // kScaleColumns values: the high plane at p, the low one kUnitColumns behind.
  static void store_planes(int8_t* p, const float* x, F factor) {
    for (int c = 0; c < kScaleColumns; c += 16) {
      I q = to_int(mul(load_f(x + c), factor));
      I high = _mm512_srai_epi32(_mm512_add_epi32(q, set32(128)), 8);
      I low = _mm512_sub_epi32(q, sll32<8>(high));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + c), _mm512_cvtepi32_epi8(high));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + kUnitColumns + c), _mm512_cvtepi32_epi8(low));
    }
  }
  static I reorder(I a, const int8_t* order) {
    return _mm512_shuffle_epi8(
        a, _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(order))));
  }
  static constexpr int kPiece = 32;
  // kPiece bytes, or 16 if that is all of a group; zeros behind them.
  static I piece(const int8_t* p, int group) {
    if (group == 16) {
      return _mm512_zextsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_int16(int16_t* p, I a, I b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), _mm512_cvtepi32_epi16(b));
  }
};

}  // namespace
}  // namespace speech::cpu

#include "compute/cpu/vector/matmul_tiles.h"

namespace speech::cpu {

const MatmulKernels kAvx512Matmul = kTable;

}  // namespace speech::cpu

#endif
