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
  static constexpr bool kBytes = true;
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
  // Sums of groups, then the order of columns.
  static void finish_planes(int8_t* p, const IntFormat& format, const float* scales, float* sums) {
    int group = format.offset ? format.group : format.bias_group;
    I one = set32(0x01010101);
    for (int g = 0; g * group < kUnitColumns; ++g) {
      I high = zero(), low = zero();
      for (int c = g * group; c < (g + 1) * group; c += 32) {
        high = _mm512_dpbusd_epi32(high, one, half(p + c));
        low = _mm512_dpbusd_epi32(low, one, half(p + kUnitColumns + c));
      }
      int sum[2] = {sum32(high), sum32(low)};
      if (format.offset) {
        sum[0] *= -128;
        sum[1] *= -128;
        __builtin_memcpy(sums + 2 * g, sum, 8);
      } else {
        sums[g] = static_cast<float>(256 * sum[0] + sum[1]) * scales[g * group / kScaleColumns];
      }
    }
    if (format.order == 0) return;
    I order = _mm512_broadcast_i32x4(
        format.order == 4 ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                          : _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (int c = 0; c < 2 * kUnitColumns; c += 64) {
      store(p + c, _mm512_shuffle_epi8(load(p + c), order));
    }
  }
  static I half(const int8_t* p) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_int16(int16_t* p, I a, I b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), _mm512_cvtepi32_epi16(b));
  }
};

}  // namespace
}  // namespace speech::cpu

#include "compute/cpu/x86/matmul_tiles.h"

namespace speech::cpu {
namespace {

// ---------------------------------------------------------------- bytes

constexpr int kFourStep = 4 * kPanelRows;  // bytes of four columns of a panel

// out[c] for the 16 columns that begin at `offset`, with 128 added.
inline void unpack_q8_0_bytes(const Rows& rows, int64_t col, int columns, uint8_t* out) {
  I top = V::set32(static_cast<int>(0x80808080));
  for (int64_t offset = col / 32 * 34; columns > 0; columns -= 32, offset += 34) {
    for (int half = 0; half < 2; ++half) {
      Four u = transpose_dwords(rows, offset + 2 + 16 * half);
      for (int q = 0; q < 4; ++q, out += kFourStep) V::store(out, _mm512_xor_si512(u.v[q], top));
    }
  }
}

inline void unpack_q4_k_bytes(const Rows& rows, int64_t col, uint8_t* out, float* scales,
                              float* biases) {
  int64_t offset = col / 256 * 144;
  KHeader h(rows, offset, biases);
  KHeader::products(scales, h.d, h.scale, std::make_integer_sequence<int, 8>{});
  I low = V::set32(0x0f0f0f0f);
  for (int chunk = 0; chunk < 4; ++chunk) {
    for (int half = 0; half < 2; ++half) {
      Four u = transpose_dwords(rows, offset + 16 + 32 * chunk + 16 * half);
      uint8_t* at = out + (16 * chunk + 4 * half) * kFourStep;
      for (int q = 0; q < 4; ++q, at += kFourStep) {
        V::store(at, V::and_(u.v[q], low));
        V::store(at + 8 * kFourStep, V::and_(V::srl32<4>(u.v[q]), low));
      }
    }
  }
}

inline void unpack_q5_k_bytes(const Rows& rows, int64_t col, uint8_t* out, float* scales,
                              float* biases) {
  int64_t offset = col / 256 * 176;
  KHeader h(rows, offset, biases);
  KHeader::products(scales, h.d, h.scale, std::make_integer_sequence<int, 8>{});
  I low = V::set32(0x0f0f0f0f), fifth = V::set32(0x10101010);
  for (int half = 0; half < 2; ++half) {
    Four bits = transpose_dwords(rows, offset + 16 + 16 * half);
    auto chunk_of = [&](auto index) {
      constexpr int chunk = decltype(index)::value;
      Four u = transpose_dwords(rows, offset + 48 + 32 * chunk + 16 * half);
      uint8_t* at = out + (16 * chunk + 4 * half) * kFourStep;
      for (int q = 0; q < 4; ++q, at += kFourStep) {
        I even = V::and_(V::shift32<4 - 2 * chunk>(bits.v[q]), fifth);
        I odd = V::and_(V::shift32<3 - 2 * chunk>(bits.v[q]), fifth);
        V::store(at, V::or_(V::and_(u.v[q], low), even));
        V::store(at + 8 * kFourStep, V::or_(V::and_(V::srl32<4>(u.v[q]), low), odd));
      }
    };
    chunk_of(Index<0>{});
    chunk_of(Index<1>{});
    chunk_of(Index<2>{});
    chunk_of(Index<3>{});
  }
}

// Columns 4 kFour .. 4 kFour + 3 of 32 (in the order of IntFormat), one per byte.
template <int kBits, int kFour>
inline I affine_four(const I* words) {
  if constexpr (kBits == 8) {
    return words[kFour];
  } else if constexpr (kBits == 4) {
    return V::and_(V::srl32<4 * (kFour % 2)>(words[kFour / 2]), V::set32(0x0f0f0f0f));
  } else if constexpr (kBits == 2) {
    return V::and_(V::srl32<2 * (kFour % 4)>(words[kFour / 4]), V::set32(0x03030303));
  } else {
    return V::or_(V::or_(affine_code<kBits, 4 * kFour, 0>(words),
                         affine_code<kBits, 4 * kFour + 1, 8>(words)),
                  V::or_(affine_code<kBits, 4 * kFour + 2, 16>(words),
                         affine_code<kBits, 4 * kFour + 3, 24>(words)));
  }
}

template <int kBits, int... kFours>
inline void affine_fours(uint8_t* out, const I* words, Indices<kFours...>) {
  (V::store(out + kFours * kFourStep, affine_four<kBits, kFours>(words)), ...);
}

void unpack(const PackedRows& w, const IntFormat& format, int64_t row, int64_t col, int columns,
            int64_t ahead, const IntPanel& panel) {
  if (!format.bytes) {
    unpack_words(w, format, row, col, columns, ahead, panel);
    return;
  }
  for (int half = 0; half < 2; ++half) {
    int64_t first = row + half * kLanes;
    Rows rows(w.data, w.row_bytes, w.rows, first, ahead);
    uint8_t* out = reinterpret_cast<uint8_t*>(panel.values) + half * 4 * kLanes;
    float* scales = panel.scales + half * kLanes;
    float* biases = panel.biases + half * kLanes;
    switch (w.type) {
      case WeightType::q8_0:
        unpack_q8_0_scales(rows, col, columns, scales);
        unpack_q8_0_bytes(rows, col, columns, out);
        break;
      case WeightType::q5_k:
        unpack_q5_k_bytes(rows, col, out, scales, biases);
        break;
      case WeightType::q4_k:
        unpack_q4_k_bytes(rows, col, out, scales, biases);
        break;
      default:
        unpack_affine_scales(w.scales, w, first, col, columns, scales);
        unpack_affine_scales(w.biases, w, first, col, columns, biases);
        for_bits(w.bits, [&](auto bits) {
          affine_words<decltype(bits)::value>(
              rows, w.row_bytes, col, columns, [&](int c, const I* words) {
                affine_fours<decltype(bits)::value>(out + c / 4 * kFourStep, words,
                                                    std::make_integer_sequence<int, 8>{});
              });
        });
    }
  }
}

// As int_tile, with two sums per output: of the high and of the low plane.
template <int kRows, int kSplit>
void byte_tile(const IntUnit& u, int row) {
  const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + row * 2 * kUnitColumns;
  const float* x_scales = u.x_scales + row * (kUnitColumns / kScaleColumns);
  int offsets = 2 * kUnitColumns / u.format.group;
  const float* x_offsets = u.x_sums + row * offsets;
  float* acc = u.acc + row * kPanelRows;
  const uint8_t* w = reinterpret_cast<const uint8_t*>(u.panel.values);
  const float* scales = u.panel.scales;
  const char* next = reinterpret_cast<const char*>(x + kRows * 2 * kUnitColumns);
  const char* next_acc = reinterpret_cast<const char*>(acc + kRows * kPanelRows);
  int fours = u.format.group / 4;
  for (int column = 0; column < u.columns; column += u.format.group) {
    I high[kSplit][kRows][2], low[kSplit][kRows][2];
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        high[s][r][0] = high[s][r][1] = low[s][r][0] = low[s][r][1] = V::zero();
      }
    }
    if (u.format.offset) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        high[0][r][0] = high[0][r][1] = V::broadcast(x_offsets + r * offsets);
        low[0][r][0] = low[0][r][1] = V::broadcast(x_offsets + r * offsets + 1);
      }
      x_offsets += 2;
    }
    for (int f = 0; f < fours; f += kSplit) {
#pragma GCC unroll 4
      for (int s = 0; s < kSplit; ++s) {
        I w0 = V::load(w), w1 = V::load(w + 4 * kLanes);
        w += kFourStep;
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          I h = V::broadcast(x + r * 2 * kUnitColumns);
          high[s][r][0] = _mm512_dpbusd_epi32(high[s][r][0], w0, h);
          high[s][r][1] = _mm512_dpbusd_epi32(high[s][r][1], w1, h);
          I l = V::broadcast(x + r * 2 * kUnitColumns + kUnitColumns);
          low[s][r][0] = _mm512_dpbusd_epi32(low[s][r][0], w0, l);
          low[s][r][1] = _mm512_dpbusd_epi32(low[s][r][1], w1, l);
        }
        x += 4;
      }
    }
    prefetch(next, kRows * u.format.group / 32);
    prefetch(next_acc, kRows * kPanelRows / 128 * u.format.group / 32);
    F s0 = V::load_f(scales), s1 = V::load_f(scales + kLanes);
    scales += kPanelRows;
    int block = column / kScaleColumns;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) {
        for (int v = 0; v < 2; ++v) {
          high[0][r][v] = V::add32(high[0][r][v], high[s][r][v]);
          low[0][r][v] = V::add32(low[0][r][v], low[s][r][v]);
        }
      }
      F xs = V::broadcast_f(x_scales + r * (kUnitColumns / kScaleColumns) + block);
      float* to = acc + r * kPanelRows;
      I a = V::add32(V::sll32<8>(high[0][r][0]), low[0][r][0]);
      I b = V::add32(V::sll32<8>(high[0][r][1]), low[0][r][1]);
      V::store_f(to, V::fma(V::to_float(a), V::mul(s0, xs), V::load_f(to)));
      V::store_f(to + kLanes, V::fma(V::to_float(b), V::mul(s1, xs), V::load_f(to + kLanes)));
    }
  }
  add_biases<kRows>(u, row);
}

// The same for more rows: one sum per output, which takes in the high plane, is shifted, and takes
// in the low plane.
template <int kRows>
void byte_tile_in_turn(const IntUnit& u, int row) {
  const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + row * 2 * kUnitColumns;
  const float* x_scales = u.x_scales + row * (kUnitColumns / kScaleColumns);
  int offsets = 2 * kUnitColumns / u.format.group;
  const float* x_offsets = u.x_sums + row * offsets;
  float* acc = u.acc + row * kPanelRows;
  const uint8_t* w = reinterpret_cast<const uint8_t*>(u.panel.values);
  const float* scales = u.panel.scales;
  const char* next = reinterpret_cast<const char*>(x + kRows * 2 * kUnitColumns);
  const char* next_acc = reinterpret_cast<const char*>(acc + kRows * kPanelRows);
  int fours = u.format.group / 4;
  for (int column = 0; column < u.columns; column += u.format.group) {
    I sum[kRows][2];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = V::zero();
    auto take_plane = [&](const int8_t* plane) {
      for (int f = 0; f < fours; ++f) {
        I w0 = V::load(w + f * kFourStep), w1 = V::load(w + f * kFourStep + 4 * kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          I v = V::broadcast(plane + r * 2 * kUnitColumns + 4 * f);
          sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], w0, v);
          sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], w1, v);
        }
      }
    };
    take_plane(x);
    if (u.format.offset) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        I high = V::broadcast(x_offsets + r * offsets);
        I low = V::broadcast(x_offsets + r * offsets + 1);
        I offset = V::add32(V::sll32<8>(high), low);
        sum[r][0] = V::add32(V::sll32<8>(sum[r][0]), offset);
        sum[r][1] = V::add32(V::sll32<8>(sum[r][1]), offset);
      }
      x_offsets += 2;
    } else {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        sum[r][0] = V::sll32<8>(sum[r][0]);
        sum[r][1] = V::sll32<8>(sum[r][1]);
      }
    }
    take_plane(x + kUnitColumns);
    x += u.format.group;
    w += fours * kFourStep;
    prefetch(next, kRows * u.format.group / 32);
    prefetch(next_acc, kRows * kPanelRows / 128 * u.format.group / 32);
    F s0 = V::load_f(scales), s1 = V::load_f(scales + kLanes);
    scales += kPanelRows;
    const float* xs_at = x_scales + column / kScaleColumns;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      F xs = V::broadcast_f(xs_at + r * (kUnitColumns / kScaleColumns));
      float* to = acc + r * kPanelRows;
      V::store_f(to, V::fma(V::to_float(sum[r][0]), V::mul(s0, xs), V::load_f(to)));
      V::store_f(to + kLanes,
                 V::fma(V::to_float(sum[r][1]), V::mul(s1, xs), V::load_f(to + kLanes)));
    }
  }
  add_biases<kRows>(u, row);
}

template <int kRows>
void byte_tile_of(const IntUnit& u, int row) {
  if constexpr (kRows <= 4) {
    byte_tile<kRows, kRows == 1 ? 2 : 1>(u, row);
  } else {
    byte_tile_in_turn<kRows>(u, row);
  }
}

template <int... kRows>
void multiply_bytes(const IntUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const IntUnit&, int) = {byte_tile_of<kRows + 1>...};
  for_tiles(u, kTiles);
}

void multiply(const IntUnit& u) {
  if (u.format.bytes) {
    multiply_bytes(u, V::TileRows{});
  } else {
    multiply_words(u);
  }
}

}  // namespace

const MatmulKernels kAvx512Matmul = {kPanelRows, true,           unpack,  unpack_float,
                                     multiply,   multiply_float, quantize};

}  // namespace speech::cpu

#endif
