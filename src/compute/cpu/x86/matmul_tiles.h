// The matrix product's kernels for vectors of 8 or 16 lanes: included once by each instruction
// set's file after it has defined, in its own anonymous namespace, a struct V with the operations
// on its registers. All 128-bit lanes of a register work alike, so one text serves both.
//
// Unpacking turns 4 x kLanes / 4 rows into columns: lane L of the i-th loaded register holds 16
// bytes of row 4 L + i, and two rounds of interleaving give registers whose 32-bit elements are the
// rows in order.
#pragma once

namespace speech::cpu {
namespace {

using I = V::I;
using F = V::F;
constexpr int kLanes = V::kLanes;          // 32-bit elements of a register
constexpr int kPanelRows = 2 * kLanes;     // rows of a panel: two registers wide
constexpr int kPairStep = 2 * kPanelRows;  // int16 values of one pair of columns

// ---------------------------------------------------------------- unpacking

// Pointers to one register's worth of rows, the last row repeated past the end.
struct Rows {
  const uint8_t* at[kLanes];
  int64_t ahead;  // what is unpacked next lies this many bytes further on

  Rows(const uint8_t* data, int64_t row_bytes, int64_t rows, int64_t row, int64_t ahead_ = 0)
      : ahead(ahead_) {
    for (int i = 0; i < kLanes; ++i) {
      at[i] = data + row_bytes * (row + i < rows ? row + i : rows - 1);
    }
  }

  // Asks for a quarter of the lines that the same place of the next unit covers: four neighbouring
  // calls ask for all of them.
  void prefetch(int64_t offset) const {
    const uint8_t* const* some = at + (offset >> 4 & 3);
    for (int i = 0; i < kLanes; i += 4) {
      _mm_prefetch(reinterpret_cast<const char*>(some[i] + offset + ahead), _MM_HINT_T0);
    }
  }
};

struct Four {
  I v[4];
};

// 16 bytes of each row: v[q] holds, per 128-bit lane L, the 16-bit words 2q of rows 4L .. 4L + 3
// and then the words 2q + 1.
inline Four transpose_words(const Rows& rows, int64_t offset) {
  rows.prefetch(offset);
  I a0 = V::rows(rows.at, offset), a1 = V::rows(rows.at + 1, offset);
  I a2 = V::rows(rows.at + 2, offset), a3 = V::rows(rows.at + 3, offset);
  I t0 = V::low16(a0, a1), t1 = V::high16(a0, a1), t2 = V::low16(a2, a3), t3 = V::high16(a2, a3);
  return {{V::low32(t0, t2), V::high32(t0, t2), V::low32(t1, t3), V::high32(t1, t3)}};
}

// 16 bytes of each row: v[q] holds the 32-bit word q of every row.
inline Four transpose_dwords(const Rows& rows, int64_t offset) {
  if (rows.ahead) rows.prefetch(offset);
  I a0 = V::rows(rows.at, offset), a1 = V::rows(rows.at + 1, offset);
  I a2 = V::rows(rows.at + 2, offset), a3 = V::rows(rows.at + 3, offset);
  I t0 = V::low32(a0, a1), t1 = V::high32(a0, a1), t2 = V::low32(a2, a3), t3 = V::high32(a2, a3);
  return {{V::low64(t0, t2), V::high64(t0, t2), V::low64(t1, t3), V::high64(t1, t3)}};
}

// Writes bytes (words of two columns, as transpose_words leaves them) as two pairs of int16.
inline void store_pairs(int16_t* out, I bytes) {
  I zero = V::zero();
  V::store(out, V::low8(bytes, zero));
  V::store(out + kPairStep, V::high8(bytes, zero));
}
inline void store_pairs_signed(int16_t* out, I bytes) {
  V::store(out, V::template sra16<8>(V::low8(bytes, bytes)));
  V::store(out + kPairStep, V::template sra16<8>(V::high8(bytes, bytes)));
}
inline void store_pairs_scaled(int16_t* out, I bytes, I scale) {
  I zero = V::zero();
  V::store(out, V::mul16(V::low8(bytes, zero), scale));
  V::store(out + kPairStep, V::mul16(V::high8(bytes, zero), scale));
}

// Transposes [kLanes, 8] floats to [columns, panel_rows], columns <= 8.
inline void store_columns(float* out, const float* rows, int columns) {
  Rows at(reinterpret_cast<const uint8_t*>(rows), 32, kLanes, 0);
  Four half[2] = {transpose_dwords(at, 0), transpose_dwords(at, 16)};
  for (int c = 0; c < columns; ++c) V::store(out + c * kPanelRows, half[c / 4].v[c % 4]);
}

inline float half_at(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}

inline void unpack_q8_0(const Rows& rows, int64_t col, int columns, int16_t* values) {
  int64_t block = col / 32;
  for (int b = 0; b < columns / 32; ++b) {
    int64_t offset = (block + b) * 34;
    for (int half = 0; half < 2; ++half) {
      Four u = transpose_words(rows, offset + 2 + 16 * half);
      int16_t* out = values + (16 * b + 8 * half) * kPairStep;
      for (int q = 0; q < 4; ++q) store_pairs_signed(out + 2 * q * kPairStep, u.v[q]);
    }
  }
}

// The scales of q8_0 blocks, 34 bytes apart. Gathers are slower than these copies.
inline void unpack_q8_0_scales(const Rows& rows, int64_t col, int columns, float* scales) {
  alignas(64) uint16_t d[kUnitColumns / 32][kLanes];
  int count = columns / 32;
  for (int i = 0; i < kLanes; ++i) {
    const uint8_t* from = rows.at[i] + col / 32 * 34;
    for (int b = 0; b < count; ++b) __builtin_memcpy(&d[b][i], from + b * 34, 2);
  }
  for (int b = 0; b < count; ++b) {
    V::store_f(scales + b * kPanelRows, V::load_half(reinterpret_cast<const uint8_t*>(d[b])));
  }
}

// Scales and minima of q4_k and q5_k: the first 16 bytes of a block. Byte j % 4 of element [j / 4]
// belongs to group j.
struct KHeader {
  F d;
  I scale[2], min[2];

  KHeader(const Rows& rows, int64_t offset, float* biases) {
    Four h = transpose_dwords(rows, offset);
    d = V::half_low(h.v[0]);
    I six = V::set32(0x3f3f3f3f), four = V::set32(0x0f0f0f0f), two = V::set32(0x30303030);
    scale[0] = V::and_(h.v[1], six);
    min[0] = V::and_(h.v[2], six);
    scale[1] = V::or_(V::and_(h.v[3], four), V::and_(V::template srl32<2>(h.v[1]), two));
    min[1] = V::or_(V::and_(V::template srl32<4>(h.v[3]), four),
                    V::and_(V::template srl32<2>(h.v[2]), two));
    F minus_dmin = V::sub(V::zero_f(), V::half_low(V::template srl32<16>(h.v[0])));
    products(biases, minus_dmin, min, std::make_integer_sequence<int, 8>{});
  }

  // out[g] = factor * value g.
  template <int... kGroups>
  static void products(float* out, F factor, const I* values, Indices<kGroups...>) {
    I byte = V::set32(0xff);
    (V::store_f(
         out + kGroups * kPanelRows,
         V::mul(factor, V::to_float(V::and_(
                            V::template srl32<8 * (kGroups % 4)>(values[kGroups / 4]), byte)))),
     ...);
  }
};

// The integer scales, twice per row (for a pair of columns), and d for each group of the format.
struct KGroups {
  I scale[8];

  template <int... kGroups>
  KGroups(const KHeader& h, int group, float* scales, Indices<kGroups...>)
      : scale{V::template spread_byte<kGroups % 4>(h.scale[kGroups / 4])...} {
    for (int g = 0; g < kUnitColumns / group; ++g) V::store_f(scales + g * kPanelRows, h.d);
  }
};

inline KGroups unpack_k_groups(const Rows& rows, int64_t offset, int group, float* scales,
                               float* biases) {
  return KGroups(KHeader(rows, offset, biases), group, scales,
                 std::make_integer_sequence<int, 8>{});
}

inline void unpack_q4_k(const Rows& rows, int64_t col, int group, int16_t* values, float* scales,
                        float* biases) {
  int64_t offset = col / 256 * 144;
  KGroups k = unpack_k_groups(rows, offset, group, scales, biases);
  I low = V::set32(0x0f0f0f0f);
  for (int chunk = 0; chunk < 4; ++chunk) {
    for (int half = 0; half < 2; ++half) {
      Four u = transpose_words(rows, offset + 16 + 32 * chunk + 16 * half);
      int16_t* out = values + (32 * chunk + 8 * half) * kPairStep;
      for (int q = 0; q < 4; ++q) {
        store_pairs_scaled(out + 2 * q * kPairStep, V::and_(u.v[q], low), k.scale[2 * chunk]);
        store_pairs_scaled(out + (16 + 2 * q) * kPairStep,
                           V::and_(V::template srl32<4>(u.v[q]), low), k.scale[2 * chunk + 1]);
      }
    }
  }
}

inline void unpack_q5_k(const Rows& rows, int64_t col, int group, int16_t* values, float* scales,
                        float* biases) {
  int64_t offset = col / 256 * 176;
  KGroups k = unpack_k_groups(rows, offset, group, scales, biases);
  I low = V::set32(0x0f0f0f0f), fifth = V::set32(0x10101010);
  for (int half = 0; half < 2; ++half) {
    Four bits = transpose_words(rows, offset + 16 + 16 * half);
    auto chunk_of = [&](auto index) {
      constexpr int chunk = decltype(index)::value;
      Four u = transpose_words(rows, offset + 48 + 32 * chunk + 16 * half);
      int16_t* out = values + (32 * chunk + 8 * half) * kPairStep;
      for (int q = 0; q < 4; ++q) {
        // Bit g of each byte of qh belongs to group g; it goes to bit 4.
        I even = V::template shift32<4 - 2 * chunk>(bits.v[q]);
        I odd = V::template shift32<3 - 2 * chunk>(bits.v[q]);
        I a = V::or_(V::and_(u.v[q], low), V::and_(even, fifth));
        I b = V::or_(V::and_(V::template srl32<4>(u.v[q]), low), V::and_(odd, fifth));
        store_pairs_scaled(out + 2 * q * kPairStep, a, k.scale[2 * chunk]);
        store_pairs_scaled(out + (16 + 2 * q) * kPairStep, b, k.scale[2 * chunk + 1]);
      }
    };
    chunk_of(Index<0>{});
    chunk_of(Index<1>{});
    chunk_of(Index<2>{});
    chunk_of(Index<3>{});
  }
}

inline void unpack_q6_k(const Rows& rows, int64_t col, int group, int16_t* values, float* scales) {
  int64_t offset = col / 256 * 210;
  alignas(64) float d[kLanes];
  for (int i = 0; i < kLanes; ++i) d[i] = half_at(rows.at[i] + offset + 208);
  F df = V::load_f(d);
  for (int g = 0; g < kUnitColumns / group; ++g) V::store_f(scales + g * kPanelRows, df);
  Four s = transpose_dwords(rows, offset + 192);
  I low = V::set32(0x0f0f0f0f), two = V::set32(0x30303030), bias = V::set32(0x00200020);
  I zero = V::zero();
  auto store = [&](int16_t* out, I bytes, I scale) {
    V::store(out, V::mul16(V::sub16(V::low8(bytes, zero), bias), scale));
    V::store(out + kPairStep, V::mul16(V::sub16(V::high8(bytes, zero), bias), scale));
  };
  for (int half = 0; half < 2; ++half) {
    I s0 = s.v[2 * half], s1 = s.v[2 * half + 1];
    auto part_of = [&](auto index) {
      constexpr int part = decltype(index)::value;  // which 16 of the 32 columns
      Four a = transpose_words(rows, offset + 64 * half + 16 * part);
      Four b = transpose_words(rows, offset + 64 * half + 32 + 16 * part);
      Four h = transpose_words(rows, offset + 128 + 32 * half + 16 * part);
      I c0 = V::template spread_signed<part>(s0), c1 = V::template spread_signed<part + 2>(s0);
      I c2 = V::template spread_signed<part>(s1), c3 = V::template spread_signed<part + 2>(s1);
      int16_t* out = values + (64 * half + 8 * part) * kPairStep;
      for (int q = 0; q < 4; ++q) {
        I high = h.v[q];
        I v0 = V::or_(V::and_(a.v[q], low), V::and_(V::template sll32<4>(high), two));
        I v1 = V::or_(V::and_(b.v[q], low), V::and_(V::template sll32<2>(high), two));
        I v2 = V::or_(V::and_(V::template srl32<4>(a.v[q]), low), V::and_(high, two));
        I v3 = V::or_(V::and_(V::template srl32<4>(b.v[q]), low),
                      V::and_(V::template srl32<2>(high), two));
        store(out + 2 * q * kPairStep, v0, c0);
        store(out + (16 + 2 * q) * kPairStep, v1, c1);
        store(out + (32 + 2 * q) * kPairStep, v2, c2);
        store(out + (48 + 2 * q) * kPairStep, v3, c3);
      }
    };
    part_of(Index<0>{});
    part_of(Index<1>{});
  }
}

// Code kIndex of a stream of kBits-bit codes whose 32-bit words are in `words`, moved so that it
// begins at bit kTo.
template <int kBits, int kIndex, int kTo>
inline I affine_code(const I* words) {
  constexpr int word = kIndex * kBits / 32, shift = kIndex * kBits % 32;
  I v = V::template shift32<kTo - shift>(words[word]);
  if constexpr (shift + kBits > 32) {
    v = V::or_(v, V::template shift32<kTo - shift + 32>(words[word + 1]));
  }
  return V::and_(v, V::set32(static_cast<int>(((1u << kBits) - 1) << kTo)));
}

template <int kBits, int kPair>
inline I affine_pair(const I* words) {
  return V::or_(affine_code<kBits, 2 * kPair, 0>(words),
                affine_code<kBits, 2 * kPair + 1, 16>(words));
}

template <int kBits, int... kPairs>
inline void affine_pairs(int16_t* out, const I* words, Indices<kPairs...>) {
  (V::store(out + kPairs * kPairStep, affine_pair<kBits, kPairs>(words)), ...);
}

// Calls body(c, words) for each 32 columns, c from 0; `words` are their kBits 32-bit words.
template <int kBits, typename Body>
inline void affine_words(const Rows& rows, int64_t row_bytes, int64_t col, int columns,
                         const Body& body) {
  for (int c = 0; c < columns; c += 128) {
    int64_t offset = (col + c) / 32 * (4 * kBits);
    I words[4 * kBits];
    if (c + 128 <= columns) {
      for (int j = 0; j < kBits; ++j) {
        Four u = transpose_dwords(rows, offset + 16 * j);
        for (int q = 0; q < 4; ++q) words[4 * j + q] = u.v[q];
      }
    } else {  // the row's end: nothing may be read behind it
      uint8_t bytes[kLanes][16 * kBits] = {};
      size_t rest = static_cast<size_t>(row_bytes - offset);
      size_t size = rest < sizeof(bytes[0]) ? rest : sizeof(bytes[0]);
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(bytes[i], rows.at[i] + offset, size);
      Rows copy(bytes[0], sizeof(bytes[0]), kLanes, 0);
      for (int j = 0; j < kBits; ++j) {
        Four u = transpose_dwords(copy, 16 * j);
        for (int q = 0; q < 4; ++q) words[4 * j + q] = u.v[q];
      }
    }
    for (int g = 0; g < 4 && c + 32 * g < columns; ++g) body(c + 32 * g, words + kBits * g);
  }
}

// body(Index<bits>{})
template <typename Body>
inline void for_bits(int bits, const Body& body) {
  switch (bits) {
    case 2:
      return body(Index<2>{});
    case 3:
      return body(Index<3>{});
    case 4:
      return body(Index<4>{});
    case 5:
      return body(Index<5>{});
    case 6:
      return body(Index<6>{});
    default:
      return body(Index<8>{});
  }
}

// 16-bit values, eight at most, in a register. (A copy in memory, read back, would wait for the
// smaller store.)
inline __m128i load_halves(const uint8_t* from, int count) {
  if (count == 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if (count == 4) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  if (count == 2) {
    int two;
    __builtin_memcpy(&two, from, 4);
    return _mm_cvtsi32_si128(two);
  }
  alignas(16) uint16_t part[8] = {};
  __builtin_memcpy(part, from, 2 * static_cast<size_t>(count));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
}

// The scales or biases of the groups in columns [col, col + columns), eight at most.
inline void unpack_affine_scales(const uint8_t* data, const PackedRows& w, int64_t row, int64_t col,
                                 int columns, float* out) {
  int64_t first = col / w.group, bytes_per_row = w.scale_row_bytes;
  int count = columns / w.group;
  alignas(64) float values[kLanes * 8];
  for (int i = 0; i < kLanes; ++i) {
    int64_t r = row + i < w.rows ? row + i : w.rows - 1;
    float* to = values + 8 * i;
    if (w.scale_type == WeightType::f32) {
      const uint8_t* from = data + r * bytes_per_row + 4 * first;
      __builtin_memcpy(to, from, 4 * static_cast<size_t>(count));
      continue;
    }
    const uint8_t* from = data + r * bytes_per_row + 2 * first;
    __m128i h = load_halves(from, count);
    if (w.scale_type == WeightType::f16) {
      _mm256_store_ps(to, _mm256_cvtph_ps(h));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                         _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
  }
  store_columns(out, values, count);
}

void unpack_words(const PackedRows& w, const IntFormat& format, int64_t row, int64_t col,
                  int columns, int64_t ahead, const IntPanel& panel) {
  for (int half = 0; half < 2; ++half) {
    int64_t first = row + half * kLanes;
    Rows rows(w.data, w.row_bytes, w.rows, first, ahead);
    int16_t* values = panel.values + half * kLanes * 2;
    float* scales = panel.scales + half * kLanes;
    float* biases = panel.biases + half * kLanes;
    switch (w.type) {
      case WeightType::q8_0:
        unpack_q8_0_scales(rows, col, columns, scales);
        unpack_q8_0(rows, col, columns, values);
        break;
      case WeightType::q6_k:
        unpack_q6_k(rows, col, format.group, values, scales);
        break;
      case WeightType::q5_k:
        unpack_q5_k(rows, col, format.group, values, scales, biases);
        break;
      case WeightType::q4_k:
        unpack_q4_k(rows, col, format.group, values, scales, biases);
        break;
      default:
        unpack_affine_scales(w.scales, w, first, col, columns, scales);
        unpack_affine_scales(w.biases, w, first, col, columns, biases);
        for_bits(w.bits, [&](auto bits) {
          affine_words<decltype(bits)::value>(
              rows, w.row_bytes, col, columns, [&](int c, const I* words) {
                affine_pairs<decltype(bits)::value>(values + c / 2 * kPairStep, words, Sixteen{});
              });
        });
    }
  }
}

void unpack_float(const PackedRows& w, int64_t row, int64_t col, int columns, int64_t ahead,
                  float* panel) {
  for (int half = 0; half < 2; ++half) {
    Rows rows(w.data, w.row_bytes, w.rows, row + half * kLanes, ahead);
    float* out = panel + half * kLanes;
    alignas(64) float buffer[kLanes][kFloatColumns];
    int64_t offset = col * 4;
    int whole = columns / 4 * 4;
    if (w.type != WeightType::f32) {
      whole = (columns + 3) / 4 * 4;  // the buffer's rest is there, whatever it holds
      for (int i = 0; i < kLanes; ++i) {
        const uint8_t* from = rows.at[i] + 2 * col;
        for (int line = 0; line < columns * 2; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(from + line + ahead), _MM_HINT_T0);
        }
        int c = 0;
        if (w.type == WeightType::f16) {
          for (; c + kLanes <= columns; c += kLanes) {
            V::store_f(buffer[i] + c, V::load_half(from + 2 * c));
          }
          for (; c < columns; ++c) buffer[i][c] = half_at(from + 2 * c);
        } else {
          for (; c + kLanes <= columns; c += kLanes) {
            V::store_f(buffer[i] + c, V::load_bf16(from + 2 * c));
          }
          for (; c < columns; ++c) {
            uint32_t bits = static_cast<uint32_t>(from[2 * c] | from[2 * c + 1] << 8) << 16;
            __builtin_memcpy(&buffer[i][c], &bits, 4);
          }
        }
        for (; c < whole; ++c) buffer[i][c] = 0;
      }
      rows = Rows(reinterpret_cast<const uint8_t*>(buffer), sizeof(buffer[0]), kLanes, 0);
      offset = 0;
    }
    for (int c = 0; c < whole; c += 4) {
      Four u = transpose_dwords(rows, offset + 4 * c);
      for (int q = 0; q < 4; ++q) V::store(out + (c + q) * kPanelRows, u.v[q]);
    }
    for (int c = whole; c < columns; ++c) {
      for (int i = 0; i < kLanes; ++i) {
        __builtin_memcpy(out + c * kPanelRows + i, rows.at[i] + offset + 4 * c, 4);
      }
    }
  }
}

// ---------------------------------------------------------------- multiplying

// Asks for the following cache lines and moves on behind them: what the next tile reads.
inline void prefetch(const char*& at, int lines) {
  for (int i = 0; i < lines; ++i, at += 64) _mm_prefetch(at, _MM_HINT_T0);
}

template <int kRows>
inline void add_biases(const IntUnit& u, int row) {
  if (u.format.bias_group == 0) return;
  float* acc = u.acc + row * kPanelRows;
  int stride = kUnitColumns / u.format.bias_group, count = u.columns / u.format.bias_group;
  const float* x_sums = u.x_sums + row * stride;
  for (int r = 0; r < kRows; ++r, x_sums += stride, acc += kPanelRows) {
    F a = V::load_f(acc), b = V::load_f(acc + kLanes);
    for (int g = 0; g < count; ++g) {
      F xs = V::broadcast_f(x_sums + g);
      a = V::fma(V::load_f(u.panel.biases + g * kPanelRows), xs, a);
      b = V::fma(V::load_f(u.panel.biases + g * kPanelRows + kLanes), xs, b);
    }
    V::store_f(acc, a);
    V::store_f(acc + kLanes, b);
  }
}

// kRows rows of x with the panel. Few rows have too few sums to hide the latency of adding to them:
// kSplit sums over every kSplit-th pair of columns are kept then (int32, so the order is free).
template <int kRows, int kSplit>
void int_tile(const IntUnit& u, int row) {
  const int16_t* x = u.x + row * kUnitColumns;
  const float* x_scales = u.x_scales + row * (kUnitColumns / kScaleColumns);
  float* acc = u.acc + row * kPanelRows;
  const int16_t* w = u.panel.values;
  const float* scales = u.panel.scales;
  int pairs = u.format.group / 2;
  const char* next = reinterpret_cast<const char*>(x + kRows * kUnitColumns);
  const char* next_acc = reinterpret_cast<const char*>(acc + kRows * kPanelRows);
  for (int column = 0; column < u.columns; column += u.format.group) {
    I sum[kSplit][kRows][2];
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[s][r][0] = sum[s][r][1] = V::zero();
    }
    for (int p = 0; p < pairs; p += kSplit) {
#pragma GCC unroll 4
      for (int s = 0; s < kSplit; ++s) {
        I w0 = V::load(w), w1 = V::load(w + 2 * kLanes);
        w += kPairStep;
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          I v = V::broadcast(x + r * kUnitColumns);
          sum[s][r][0] = V::dot(sum[s][r][0], w0, v);
          sum[s][r][1] = V::dot(sum[s][r][1], w1, v);
        }
        x += 2;
      }
    }
    prefetch(next, kRows * u.format.group / 32);
    prefetch(next_acc, kRows * kPanelRows / 128 * u.format.group / 32);
    F s0 = V::load_f(scales), s1 = V::load_f(scales + kLanes);
    scales += kPanelRows;
    int block = column / kScaleColumns;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) {
        sum[0][r][0] = V::add32(sum[0][r][0], sum[s][r][0]);
        sum[0][r][1] = V::add32(sum[0][r][1], sum[s][r][1]);
      }
      F xs = V::broadcast_f(x_scales + r * (kUnitColumns / kScaleColumns) + block);
      float* to = acc + r * kPanelRows;
      V::store_f(to, V::fma(V::to_float(sum[0][r][0]), V::mul(s0, xs), V::load_f(to)));
      V::store_f(to + kLanes,
                 V::fma(V::to_float(sum[0][r][1]), V::mul(s1, xs), V::load_f(to + kLanes)));
    }
  }
  add_biases<kRows>(u, row);
}

template <int kRows>
void float_tile(const FloatUnit& u, int row) {
  const float* x = u.x + row * kFloatColumns;
  float* acc = u.acc + row * kPanelRows;
  const float* w = u.panel;
  const char* next = reinterpret_cast<const char*>(x + kRows * kFloatColumns);
  const char* next_acc = reinterpret_cast<const char*>(acc + kRows * kPanelRows);
  prefetch(next_acc, kRows * kPanelRows / 16);
  F sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = V::load_f(acc + r * kPanelRows);
    sum[r][1] = V::load_f(acc + r * kPanelRows + kLanes);
  }
  for (int c = 0; c < u.columns; ++c) {
    F w0 = V::load_f(w), w1 = V::load_f(w + kLanes);
    w += kPanelRows;
    _mm_prefetch(next + c * kRows * 4, _MM_HINT_T0);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      F v = V::broadcast_f(x + r * kFloatColumns + c);
      sum[r][0] = V::fma(w0, v, sum[r][0]);
      sum[r][1] = V::fma(w1, v, sum[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    V::store_f(acc + r * kPanelRows, sum[r][0]);
    V::store_f(acc + r * kPanelRows + kLanes, sum[r][1]);
  }
}

constexpr int split_of(int rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

// All rows of a unit, in tiles as even as can be: 13 rows are 7 + 6.
template <typename Unit, int kMost>
void for_tiles(const Unit& u, void (*const (&tiles)[kMost])(const Unit&, int)) {
  int count = (u.n + kMost - 1) / kMost;
  for (int t = 0, row = 0; t < count; ++t) {
    int size = (u.n - row + count - t - 1) / (count - t);
    tiles[size - 1](u, row);
    row += size;
  }
}

template <int... kRows>
void multiply_words(const IntUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const IntUnit&,
                                    int) = {int_tile<kRows + 1, split_of(kRows + 1)>...};
  for_tiles(u, kTiles);
}
void multiply_words(const IntUnit& u) {
  multiply_words(u, V::TileRows{});
}

template <int... kRows>
void multiply_float(const FloatUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const FloatUnit&, int) = {float_tile<kRows + 1>...};
  for_tiles(u, kTiles);
}
void multiply_float(const FloatUnit& u) {
  multiply_float(u, V::TileRows{});
}

// ---------------------------------------------------------------- quantizing

bool quantize(const float* x, int columns, const IntFormat& format, int16_t* q, float* scales,
              float* sums) {
  alignas(64) float buffer[kUnitColumns];
  if (columns < kUnitColumns) {
    __builtin_memcpy(buffer, x, static_cast<size_t>(columns) * 4);
    __builtin_memset(buffer + columns, 0, static_cast<size_t>(kUnitColumns - columns) * 4);
    x = buffer;
  }
  bool finite = true;
  for (int block = 0; block < kUnitColumns / kScaleColumns; ++block) {
    const float* from = x + block * kScaleColumns;
    I top = V::zero(), magnitude = V::set32(0x7fffffff);
    for (int c = 0; c < kScaleColumns; c += kLanes) {
      top = V::max32(top, V::and_(V::load(from + c), magnitude));
    }
    int bits = V::largest32(top);
    finite = finite && bits < 0x7f800000;
    float largest;
    __builtin_memcpy(&largest, &bits, 4);
    // Below this, rounding errors are of no size that f32 results show, and x_max / largest would
    // overflow.
    largest = largest > 1e-30f ? largest : 1e-30f;
    float to_int = static_cast<float>(format.x_max) / largest;
    scales[block] = largest / static_cast<float>(format.x_max);
    F factor = V::set_f(to_int);
    if (V::kBytes && format.bytes) {
      V::store_planes(reinterpret_cast<int8_t*>(q) + block * kScaleColumns, from, factor);
      continue;
    }
    for (int c = 0; c < kScaleColumns; c += 2 * kLanes) {
      V::store_int16(q + block * kScaleColumns + c, V::to_int(V::mul(V::load_f(from + c), factor)),
                     V::to_int(V::mul(V::load_f(from + c + kLanes), factor)));
    }
  }
  if (V::kBytes && format.bytes) {
    V::finish_planes(reinterpret_cast<int8_t*>(q), format, scales, sums);
    return finite;
  }
  if (!finite || format.bias_group == 0) return finite;
  I one = V::set32(0x00010001);
  for (int g = 0; g * format.bias_group < kUnitColumns; ++g) {
    I sum = V::zero();
    int column = g * format.bias_group;
    for (int c = 0; c < format.bias_group; c += 2 * kLanes) {
      sum = V::dot(sum, V::load(q + column + c), one);
    }
    sums[g] = static_cast<float>(V::sum32(sum)) * scales[column / kScaleColumns];
  }
  return true;
}

}  // namespace
}  // namespace speech::cpu
