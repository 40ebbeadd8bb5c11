#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};
template <int... kValues>
using Indices = std::integer_sequence<int, kValues...>;
using Sixteen = std::make_integer_sequence<int, 16>;

// AVX-512 with VNNI.
struct V {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;
  using TileRows = std::make_integer_sequence<int, 12>;

  static __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static I rows(const uint8_t* const* at, int64_t offset) {
    I v = _mm512_castsi128_si512(load128(at[0] + offset));
    v = _mm512_inserti32x4(v, load128(at[4] + offset), 1);
    v = _mm512_inserti32x4(v, load128(at[8] + offset), 2);
    return _mm512_inserti32x4(v, load128(at[12] + offset), 3);
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
  static F load_bf16(const uint8_t* p) {
    __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static void store(void* p, I v) { _mm512_storeu_si512(p, v); }
  static void store_f(float* p, F v) { _mm512_storeu_ps(p, v); }
  static I broadcast(const int16_t* p) {
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
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }  // to nearest even
  // f16 in the low half of each 32-bit element.
  static F half_low(I a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static void store_int16(int16_t* p, I a, I b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), _mm512_cvtepi32_epi16(b));
  }
};

}  // namespace
}  // namespace speech::cpu

#include "compute/cpu/x86/matmul_tiles.h"

namespace speech::cpu {

const MatmulKernels kAvx512Matmul = {kPanelRows, unpack,         unpack_float,
                                     multiply,   multiply_float, quantize};

}  // namespace speech::cpu

#endif
