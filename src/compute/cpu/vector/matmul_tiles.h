// The matrix product's kernels for vectors of 4, 8 or 16 lanes: included once by each instruction
// set's file after it has defined, in its own anonymous namespace, a struct V with the operations
// on its registers. All 128-bit lanes of a register work alike, so one text serves all.
//
// Unpacking turns 4 x kLanes / 4 rows into columns: lane L of the i-th loaded register holds 16
// bytes of row 4 L + i, and two rounds of interleaving give registers whose 32-bit elements are the
// rows in order.
#pragma once

#include <utility>

#include "compute/cpu/matmul_kernels.h"

// Instrumented code would take minutes to compile if all of it were inlined.
#if defined(__SANITIZE_ADDRESS__)
#define SPEECH_INLINE inline
#define SPEECH_INLINE_LAMBDA
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SPEECH_INLINE inline
#define SPEECH_INLINE_LAMBDA
#endif
#endif
#ifndef SPEECH_INLINE
#define SPEECH_INLINE __attribute__((always_inline)) inline
#define SPEECH_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace speech::cpu {
namespace {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
  constexpr operator int() const { return value; }
};
template <int... kValues>
using Indices = std::integer_sequence<int, kValues...>;

using I = V::I;
using F = V::F;
constexpr int kLanes = V::kLanes;          // 32-bit elements of a register
constexpr int kPanelRows = 2 * kLanes;     // rows of a panel: two registers wide
constexpr int kPairStep = 2 * kPanelRows;  // int16 values of a pair of columns, bytes of four
constexpr int kFourStep = 4 * kPanelRows;  // bytes of four columns of a panel

// ---------------------------------------------------------------- reading

// One register's worth of rows. `next` is where the bytes lie that will be read later, after these:
// reading asks for as many of them as it reads, in the order of the addresses. (Rows are far apart;
// a processor that is left to find a dozen such streams by itself reads at a third of the memory's
// speed.)
struct Rows {
  const uint8_t* first[4];  // rows 0 .. 3: so few pointers stay in registers
  int64_t four;             // from a row to the fourth after it
  const uint8_t* next;

  Rows(const uint8_t* data, int64_t row_bytes, int64_t row, const uint8_t* next_ = nullptr)
      : four(4 * row_bytes), next(next_) {
    for (int i = 0; i < 4; ++i) first[i] = data + row_bytes * (row + i);
  }
  const uint8_t* at(int i) const { return first[i % 4] + i / 4 * four; }

  void prefetch(int bytes) {
    if (!next) return;
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
    next += bytes;
  }
};

// An offset that the compiler knows nothing of. From one that it sees growing it makes a pointer
// per row, far more than there are registers.
SPEECH_INLINE int64_t opaque(int64_t offset) {
  asm("" : "+r"(offset));
  return offset;
}

struct Four {
  I v[4];
};

// 16 bytes of each row: v[q] holds, per 128-bit lane L, the 16-bit words 2q of rows 4L .. 4L + 3
// and then the words 2q + 1.
SPEECH_INLINE Four transpose_words(const Rows& rows, int64_t offset) {
  I a0 = V::rows(rows.first[0] + offset, rows.four),
    a1 = V::rows(rows.first[1] + offset, rows.four);
  I a2 = V::rows(rows.first[2] + offset, rows.four),
    a3 = V::rows(rows.first[3] + offset, rows.four);
  I t0 = V::low16(a0, a1), t1 = V::high16(a0, a1), t2 = V::low16(a2, a3), t3 = V::high16(a2, a3);
  return {{V::low32(t0, t2), V::high32(t0, t2), V::low32(t1, t3), V::high32(t1, t3)}};
}

// 16 bytes of each row: v[q] holds the 32-bit word q of every row.
SPEECH_INLINE Four transpose_dwords(const Rows& rows, int64_t offset) {
  I a0 = V::rows(rows.first[0] + offset, rows.four),
    a1 = V::rows(rows.first[1] + offset, rows.four);
  I a2 = V::rows(rows.first[2] + offset, rows.four),
    a3 = V::rows(rows.first[3] + offset, rows.four);
  I t0 = V::low32(a0, a1), t1 = V::high32(a0, a1), t2 = V::low32(a2, a3), t3 = V::high32(a2, a3);
  return {{V::low64(t0, t2), V::high64(t0, t2), V::low64(t1, t3), V::high64(t1, t3)}};
}
// Either, and the next bytes are on their way.
SPEECH_INLINE Four read_dwords(Rows& rows, int64_t offset) {
  rows.prefetch(16 * kLanes);
  return transpose_dwords(rows, offset);
}
template <bool kBytes>
SPEECH_INLINE Four read(Rows& rows, int64_t offset) {
  rows.prefetch(16 * kLanes);
  if constexpr (kBytes) {
    return transpose_dwords(rows, offset);
  } else {
    return transpose_words(rows, offset);
  }
}

// What of an IntFormat is known for a type. kGroup 0: only at run time.
template <bool kBytes_, int kGroup_, bool kOffset_ = false>
struct Layout {
  static constexpr bool kBytes = kBytes_;
  static constexpr int kGroup = kGroup_;
  static constexpr bool kOffset = kOffset_;
  static constexpr int kCodes = kBytes ? 8 : 16;  // registers of 32 columns
};
using Q8_0 = Layout<V::kBytes, 32, V::kBytes && !V::kSigned>;
using Q6K = Layout<false, 32>;  // in a panel; its groups of 16 are too short for a float scale each
using Q5K = Layout<V::kBytes, 32>;
using Q4K = Layout<V::kBytes, V::kBytes ? 32 : 64>;
using Affine = Layout<V::kBytes, 0>;

// What follows hands a unit's codes, in registers, to take.put<layout>(column, get): for each 32
// columns, in order, get(Index<i>) are the registers i of them, of four columns each as bytes or of
// two as words.

// Register kIndex of the columns that read() has read.
template <bool kBytes, int kIndex>
SPEECH_INLINE I quarter(const Four* u) {
  if constexpr (kBytes) {
    return u[kIndex / 4].v[kIndex % 4];
  } else {
    return u[kIndex / 8].v[kIndex % 8 / 2];
  }
}
// To unsigned bytes 128 added, from unsigned ones 128 subtracted.
SPEECH_INLINE I flip_signs(I bytes) {
  return V::xor_(bytes, V::set32(static_cast<int>(0x80808080)));
}
// Bytes stay; of words of two columns one half is spread to pairs of int16.
template <bool kBytes, int kIndex>
SPEECH_INLINE I widen(I bytes) {
  if constexpr (kBytes) return bytes;
  return kIndex % 2 == 0 ? V::low8(bytes, V::zero()) : V::high8(bytes, V::zero());
}
// The same for signed bytes, which remain bytes: with 128 added, or as they are where the
// instruction takes signed ones.
template <bool kBytes, int kIndex>
SPEECH_INLINE I widen_signed(I bytes) {
  if constexpr (kBytes) return V::kSigned ? bytes : flip_signs(bytes);
  return V::template sra16<8>(kIndex % 2 == 0 ? V::low8(bytes, bytes) : V::high8(bytes, bytes));
}
// Words only: times the integer scale of their group.
template <bool kBytes>
SPEECH_INLINE I scaled(I codes, I scale) {
  if constexpr (kBytes) return codes;
  return V::mul16(codes, scale);
}

SPEECH_INLINE float half_at(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return V::half(h);
}

template <typename Take>
SPEECH_INLINE void read_q8_0(Rows& rows, int64_t col, int columns, Take& take) {
  int64_t offset = col / 32 * 34 + 2;
  for (int c = 0; c < columns; c += 32, offset += 34) {
    int64_t at = opaque(offset);
    Four u[2] = {read<V::kBytes>(rows, at), read<V::kBytes>(rows, at + 16)};
    take.template put<Q8_0>(c, [&](auto i) SPEECH_INLINE_LAMBDA {
      return widen_signed<V::kBytes, i.value>(quarter<V::kBytes, i.value>(u));
    });
  }
}

// The scales of q8_0 blocks, 34 bytes apart. Gathers are slower than these copies.
inline void read_q8_0_scales(Rows& rows, int64_t col, int columns, float* scales) {
  alignas(64) uint16_t d[kUnitColumns / 32][kLanes];
  int count = columns / 32;
  rows.prefetch(2 * kLanes * count);
  for (int i = 0; i < kLanes; ++i) {
    const uint8_t* from = rows.at(i) + col / 32 * 34;
    for (int b = 0; b < count; ++b) __builtin_memcpy(&d[b][i], from + b * 34, 2);
  }
  for (int b = 0; b < count; ++b) {
    V::store_f(scales + b * kPanelRows, V::load_half(reinterpret_cast<const uint8_t*>(d[b])));
  }
}

// Scales and minima of q4_k and q5_k: the first 16 bytes of a block.
struct KHeader {
  F d;
  I scale[2];  // byte j % 4 of element [j / 4] belongs to group j

  // Writes biases [group, panel_rows].
  KHeader(Rows& rows, int64_t offset, float* biases) {
    Four h = read_dwords(rows, offset);
    d = V::half_low(h.v[0]);
    I six = V::set32(0x3f3f3f3f), four = V::set32(0x0f0f0f0f), two = V::set32(0x30303030);
    scale[0] = V::and_(h.v[1], six);
    scale[1] = V::or_(V::and_(h.v[3], four), V::and_(V::template srl32<2>(h.v[1]), two));
    I min[2] = {V::and_(h.v[2], six), V::or_(V::and_(V::template srl32<4>(h.v[3]), four),
                                             V::and_(V::template srl32<2>(h.v[2]), two))};
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

// What multiplies the sums of groups. Bytes: d * scale for each; words: d, as their codes are
// multiplied by the integer scales, which are given back twice per row (for a pair of columns).
struct KGroups {
  I scale[8];

  KGroups(Rows& rows, int64_t offset, int group, float* scales, float* biases)
      : KGroups(KHeader(rows, offset, biases), group, scales,
                std::make_integer_sequence<int, 8>{}) {}
  template <int... kGroups>
  KGroups(const KHeader& h, int group, float* scales, Indices<kGroups...> all)
      : scale{V::template spread_byte<kGroups % 4>(h.scale[kGroups / 4])...} {
    if constexpr (V::kBytes) {
      KHeader::products(scales, h.d, h.scale, all);
    } else {
      for (int g = 0; g < kUnitColumns / group; ++g) V::store_f(scales + g * kPanelRows, h.d);
    }
  }
};

template <typename Take>
SPEECH_INLINE void read_q4_k(Rows& rows, int64_t col, int group, float* scales, float* biases,
                             Take& take) {
  constexpr bool kBytes = V::kBytes;
  int64_t offset = col / 256 * 144;
  KGroups k(rows, offset, group, scales, biases);
  offset += 16;
  I low = V::set32(0x0f0f0f0f);
  for (int c = 0; c < kUnitColumns; c += 64, offset += 32) {
    Four u[2] = {read<kBytes>(rows, offset), read<kBytes>(rows, offset + 16)};
    take.template put<Q4K>(c, [&](auto i) SPEECH_INLINE_LAMBDA {
      I codes = V::and_(quarter<kBytes, i.value>(u), low);
      return scaled<kBytes>(widen<kBytes, i.value>(codes), k.scale[c / 32]);
    });
    take.template put<Q4K>(c + 32, [&](auto i) SPEECH_INLINE_LAMBDA {
      I codes = V::and_(V::template srl32<4>(quarter<kBytes, i.value>(u)), low);
      return scaled<kBytes>(widen<kBytes, i.value>(codes), k.scale[c / 32 + 1]);
    });
  }
}

template <typename Take>
SPEECH_INLINE void read_q5_k(Rows& rows, int64_t col, int group, float* scales, float* biases,
                             Take& take) {
  constexpr bool kBytes = V::kBytes;
  int64_t offset = col / 256 * 176;
  KGroups k(rows, offset, group, scales, biases);
  // Bit g of each byte of these belongs to group g; it goes to bit 4.
  Four bits[2] = {read<kBytes>(rows, offset + 16), read<kBytes>(rows, offset + 32)};
  I low = V::set32(0x0f0f0f0f), fifth = V::set32(0x10101010);
  auto chunk_of = [&](auto index) SPEECH_INLINE_LAMBDA {
    constexpr int chunk = index.value;
    int64_t at = offset + 48 + 32 * chunk;
    Four u[2] = {read<kBytes>(rows, at), read<kBytes>(rows, at + 16)};
    take.template put<Q5K>(64 * chunk, [&](auto i) SPEECH_INLINE_LAMBDA {
      I bit = V::template shift32<4 - 2 * chunk>(quarter<kBytes, i.value>(bits));
      I codes = V::or_(V::and_(quarter<kBytes, i.value>(u), low), V::and_(bit, fifth));
      return scaled<kBytes>(widen<kBytes, i.value>(codes), k.scale[2 * chunk]);
    });
    take.template put<Q5K>(64 * chunk + 32, [&](auto i) SPEECH_INLINE_LAMBDA {
      I bit = V::template shift32<3 - 2 * chunk>(quarter<kBytes, i.value>(bits));
      I codes = V::or_(V::and_(V::template srl32<4>(quarter<kBytes, i.value>(u)), low),
                       V::and_(bit, fifth));
      return scaled<kBytes>(widen<kBytes, i.value>(codes), k.scale[2 * chunk + 1]);
    });
  };
  chunk_of(Index<0>{});
  chunk_of(Index<1>{});
  chunk_of(Index<2>{});
  chunk_of(Index<3>{});
}

template <typename Take>
SPEECH_INLINE void read_q6_k(Rows& rows, int64_t col, int group, float* scales, Take& take) {
  int64_t offset = col / 256 * 210;
  alignas(64) float d[kLanes];
  rows.prefetch(2 * kLanes);
  for (int i = 0; i < kLanes; ++i) d[i] = half_at(rows.at(i) + offset + 208);
  F df = V::load_f(d);
  for (int g = 0; g < kUnitColumns / group; ++g) V::store_f(scales + g * kPanelRows, df);
  Four s = read_dwords(rows, offset + 192);
  I low = V::set32(0x0f0f0f0f), two = V::set32(0x30303030), bias = V::set32(0x00200020);
  constexpr bool kBytes = Take::kTakesScales;
  for (int half = 0; half < 2; ++half, offset += 64) {
    Four a[2] = {read<kBytes>(rows, offset), read<kBytes>(rows, offset + 16)};
    Four b[2] = {read<kBytes>(rows, offset + 32), read<kBytes>(rows, offset + 48)};
    int64_t at = offset + 128 - 32 * half;
    Four h[2] = {read<kBytes>(rows, at), read<kBytes>(rows, at + 16)};
    auto group_of = [&](auto index) SPEECH_INLINE_LAMBDA {
      constexpr int g = index.value;
      int column = 128 * half + 32 * g;
      auto codes = [&](auto i) SPEECH_INLINE_LAMBDA {
        I four = quarter<kBytes, i.value>(g % 2 == 0 ? a : b);
        if (g >= 2) four = V::template srl32<4>(four);
        I top = V::template shift32<4 - 2 * g>(quarter<kBytes, i.value>(h));
        return V::or_(V::and_(four, low), V::and_(top, two));
      };
      // Scales of the first and of the last 16 columns: bytes k and k + 1.
      I s32 = s.v[2 * half + g / 2];
      constexpr int k = g % 2 * 2;
      if constexpr (kBytes) {
        take.put_scaled(column, codes, V::template sra32<24>(V::template shift32<24 - 8 * k>(s32)),
                        V::template sra32<24>(V::template shift32<16 - 8 * k>(s32)));
      } else {
        I first = V::template spread_signed<k>(s32), last = V::template spread_signed<k + 1>(s32);
        take.template put<Q6K>(column, [&](auto i) SPEECH_INLINE_LAMBDA {
          return V::mul16(V::sub16(widen<false, i.value>(codes(i)), bias),
                          i.value < 8 ? first : last);
        });
      }
    };
    group_of(Index<0>{});
    group_of(Index<1>{});
    group_of(Index<2>{});
    group_of(Index<3>{});
  }
}

// Code kIndex of a stream of kBits-bit codes whose 32-bit words are in `words`, moved so that it
// begins at bit kTo.
template <int kBits, int kIndex, int kTo>
SPEECH_INLINE I affine_code(const I* words) {
  constexpr int word = kIndex * kBits / 32, shift = kIndex * kBits % 32;
  I v = V::template shift32<kTo - shift>(words[word]);
  if constexpr (shift + kBits > 32) {
    v = V::or_(v, V::template shift32<kTo - shift + 32>(words[word + 1]));
  }
  return V::and_(v, V::set32(static_cast<int>(((1u << kBits) - 1) << kTo)));
}

// Register kIndex of 32 columns. Bytes of 2 and 4 bits: in the order of IntFormat.
template <bool kBytes, int kBits, int kIndex>
SPEECH_INLINE I affine_codes(const I* words) {
  if constexpr (!kBytes) {
    return V::or_(affine_code<kBits, 2 * kIndex, 0>(words),
                  affine_code<kBits, 2 * kIndex + 1, 16>(words));
  } else if constexpr (kBits == 8) {
    return V::kSigned ? flip_signs(words[kIndex]) : words[kIndex];
  } else if constexpr (kBits == 4) {
    return V::and_(V::template srl32<4 * (kIndex % 2)>(words[kIndex / 2]), V::set32(0x0f0f0f0f));
  } else if constexpr (kBits == 2) {
    return V::and_(V::template srl32<2 * (kIndex % 4)>(words[kIndex / 4]), V::set32(0x03030303));
  } else {
    return V::or_(V::or_(affine_code<kBits, 4 * kIndex, 0>(words),
                         affine_code<kBits, 4 * kIndex + 1, 8>(words)),
                  V::or_(affine_code<kBits, 4 * kIndex + 2, 16>(words),
                         affine_code<kBits, 4 * kIndex + 3, 24>(words)));
  }
}

template <int kBits, typename Take>
SPEECH_INLINE void read_affine(Rows& rows, int64_t row_bytes, int64_t col, int columns,
                               Take& take) {
  // As many columns as fill whole reads of 16 bytes.
  constexpr int kChunk = kBits % 4 == 0 ? 32 : kBits == 2 ? 64 : 128;
  constexpr int kReads = kChunk * kBits / 128;
  for (int c = 0; c < columns; c += kChunk) {
    int64_t offset = opaque((col + c) / 32 * (4 * kBits));
    I words[4 * kReads];
    auto read = [&](const Rows& from, int64_t at) SPEECH_INLINE_LAMBDA {
#pragma GCC unroll 8
      for (int j = 0; j < kReads; ++j) {
        Four u = transpose_dwords(from, at + 16 * j);
        for (int q = 0; q < 4; ++q) words[4 * j + q] = u.v[q];
      }
    };
    rows.prefetch(16 * kLanes * kReads);
    if (kChunk == 32 || c + kChunk <= columns) {
      read(rows, offset);
    } else {  // the row's end: nothing may be read behind it
      uint8_t bytes[kLanes][16 * kReads] = {};
      size_t rest = static_cast<size_t>(row_bytes - offset);
      size_t size = rest < sizeof(bytes[0]) ? rest : sizeof(bytes[0]);
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(bytes[i], rows.at(i) + offset, size);
      Rows copy(bytes[0], sizeof(bytes[0]), 0);
      read(copy, 0);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kChunk / 32; ++g) {
      if (c + 32 * g >= columns) break;
      take.template put<Affine>(c + 32 * g, [&](auto i) SPEECH_INLINE_LAMBDA {
        return affine_codes<V::kBytes, kBits, i.value>(words + kBits * g);
      });
    }
  }
}

// body(Index<bits>{})
template <typename Body>
SPEECH_INLINE void for_bits(int bits, const Body& body) {
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

// put(i, value) for the four f32 or eight f16 or bf16 values of each row in 16 bytes.
template <typename Put>
SPEECH_INLINE void put_scales(const Four& u, WeightType type, const Put& put) {
  if (type == WeightType::f32) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) put(q, V::as_float(u.v[q]));
  } else if (type == WeightType::f16) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      put(2 * q, V::half_low(u.v[q]));
      put(2 * q + 1, V::half_low(V::template srl32<16>(u.v[q])));
    }
  } else {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      put(2 * q, V::as_float(V::template sll32<16>(u.v[q])));
      put(2 * q + 1, V::as_float(V::and_(u.v[q], V::set32(static_cast<int>(0xffff0000)))));
    }
  }
}

// The scales or biases of the groups in columns [col, col + columns) to out [group, panel_rows].
inline void read_affine_scales(Rows& rows, const PackedRows& w, int64_t col, int columns,
                               float* out) {
  int size = w.scale_type == WeightType::f32 ? 4 : 2, per_read = 16 / size;
  int64_t all = w.scale_row_bytes / size, group = col / w.group;
  for (int left = columns / w.group; left > 0;) {
    // 16 bytes that lie inside the row; a shorter row is copied.
    int64_t at = group < all - per_read ? group : all - per_read;
    Four u;
    if (at >= 0) {
      u = transpose_dwords(rows, at * size);
    } else {
      at = 0;
      alignas(64) uint8_t copies[kLanes][16] = {};
      for (int i = 0; i < kLanes; ++i) {
        __builtin_memcpy(copies[i], rows.at(i), static_cast<size_t>(w.scale_row_bytes));
      }
      Rows copy(copies[0], 16, 0);
      u = transpose_dwords(copy, 0);
    }
    int skip = static_cast<int>(group - at);
    int count = left < per_read - skip ? left : per_read - skip;
    rows.prefetch(size * kLanes * count);
    if (count == per_read) {
      put_scales(u, w.scale_type,
                 [&](int i, F v) SPEECH_INLINE_LAMBDA { V::store_f(out + i * kPanelRows, v); });
    } else {
      put_scales(u, w.scale_type, [&](int i, F v) SPEECH_INLINE_LAMBDA {
        if (i >= skip && i < skip + count) V::store_f(out + (i - skip) * kPanelRows, v);
      });
    }
    group += count;
    left -= count;
    out += count * kPanelRows;
  }
}

// Unsigned codes of 8 bits are multiplied less 128 where the instruction takes signed ones: 128
// scales more in the bias of each group make up for it.
inline void shift_biases(const PackedRows& w, const float* scales, float* biases, int groups) {
  if (!V::kSigned || w.bits != 8) return;
  F middle = V::set_f(128);
  for (int g = 0; g < groups; ++g, scales += kPanelRows, biases += kPanelRows) {
    V::store_f(biases, V::fma(V::load_f(scales), middle, V::load_f(biases)));
  }
}

// One register's worth of rows of a quantized matrix.
struct Quantized {
  Rows codes, scales, biases;  // affine: three arrays

  Quantized(const PackedRows& w, int64_t row, const Next& next)
      : codes(w.data, w.row_bytes, row, next.data), scales(codes), biases(codes) {
    if (w.type != WeightType::affine) return;
    scales = Rows(w.scales, w.scale_row_bytes, row, next.scales);
    biases = Rows(w.biases, w.scale_row_bytes, row, next.biases);
  }
  Next next() const { return {codes.next, scales.next, biases.next}; }

  // Columns [col, col + columns): scales and biases go to a panel, codes to `take`.
  template <typename Take>
  SPEECH_INLINE void read(const PackedRows& w, const IntFormat& format, int64_t col, int columns,
                          float* scale, float* bias, Take& take) {
    switch (w.type) {
      case WeightType::q8_0:
        read_q8_0_scales(codes, col, columns, scale);
        return read_q8_0(codes, col, columns, take);
      case WeightType::q6_k:
        return read_q6_k(codes, col, format.group, scale, take);
      case WeightType::q5_k:
        return read_q5_k(codes, col, format.group, scale, bias, take);
      case WeightType::q4_k:
        return read_q4_k(codes, col, format.group, scale, bias, take);
      default:
        read_affine_scales(scales, w, col, columns, scale);
        read_affine_scales(biases, w, col, columns, bias);
        shift_biases(w, scale, bias, columns / w.group);
        read_affine_codes(w, col, columns, take);
    }
  }

  // Scales and biases of affine weights for a walk along the rows: of more units than one at a
  // time, where 16 bytes of a row hold them.
  struct Ahead {
    static constexpr int kGroups = 8;  // 256 columns are no more
    alignas(64) float scales[kGroups * kPanelRows], biases[kGroups * kPanelRows];
  };

  // As read(), for units in order from column 0 on; `panel` shows where their scales and biases
  // are.
  template <typename Take>
  SPEECH_INLINE void read_next(const PackedRows& w, const IntFormat& format, int64_t col,
                               int columns, Ahead& ahead, IntPanel& panel, Take& take) {
    if (w.type != WeightType::affine) {
      return read(w, format, col, columns, panel.scales, panel.biases, take);
    }
    int64_t slot = col / w.group % Ahead::kGroups;
    if (slot == 0) {
      int64_t left = w.cols - col, most = int64_t{Ahead::kGroups} * w.group;
      int count = static_cast<int>(left < most ? left : most);
      read_affine_scales(scales, w, col, count, ahead.scales);
      read_affine_scales(biases, w, col, count, ahead.biases);
      shift_biases(w, ahead.scales, ahead.biases, count / w.group);
    }
    panel.scales = ahead.scales + slot * kPanelRows;
    panel.biases = ahead.biases + slot * kPanelRows;
    read_affine_codes(w, col, columns, take);
  }

  template <typename Take>
  SPEECH_INLINE void read_affine_codes(const PackedRows& w, int64_t col, int columns, Take& take) {
    for_bits(w.bits, [&](auto bits) SPEECH_INLINE_LAMBDA {
      read_affine<bits.value>(codes, w.row_bytes, col, columns, take);
    });
  }
};

// kLanes x kLanes elements of 32 bits: blocks of four by four, then V puts their lanes together.
SPEECH_INLINE void transpose(I (&m)[kLanes]) {
  I t[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = V::low32(m[i], m[i + 1]);
    t[i + 1] = V::high32(m[i], m[i + 1]);
  }
#pragma GCC unroll 4
  for (int b = 0; b < kLanes; b += 4) {
    m[b] = V::low64(t[b], t[b + 2]);
    m[b + 1] = V::high64(t[b], t[b + 2]);
    m[b + 2] = V::low64(t[b + 1], t[b + 3]);
    m[b + 3] = V::high64(t[b + 1], t[b + 3]);
  }
  V::join_lanes(m);
}

// Columns of a float matrix, kCount from a line of each row (32-bit elements, one or two columns
// each, that `decode` turns into columns): take(column, values, how many). A whole cache line of
// each row is read at once: rows may lie a power of two apart, so that lines put off would be gone.
template <int kCount, typename Decode, typename Take>
SPEECH_INLINE void read_lines(Rows& rows, int64_t col, int columns, const Decode& decode,
                              const Take& take) {
  constexpr int kSize = 4 * kLanes / kCount;
  auto read = [&](const Rows& from, int64_t offset, int c, auto count) SPEECH_INLINE_LAMBDA {
    I u[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) u[i] = V::load(from.at(i) + offset);
    transpose(u);
    F values[kCount];
#pragma GCC unroll 16
    for (int q = 0; q < kLanes; ++q) decode(u[q], values + kCount / kLanes * q);
    take(c, values, count);
  };
  int c = 0;
  for (; c + kCount <= columns; c += kCount) {
    rows.prefetch(4 * kLanes * kLanes);
    read(rows, (col + c) * kSize, c, Index<kCount>{});
  }
  if (c == columns) return;
  alignas(64) uint8_t rest[kLanes][4 * kLanes] = {};  // nothing may be read behind the row
  for (int i = 0; i < kLanes; ++i) {
    __builtin_memcpy(rest[i], rows.at(i) + (col + c) * kSize,
                     static_cast<size_t>((columns - c) * kSize));
  }
  read(Rows(rest[0], 4 * kLanes, 0), 0, c, columns - c);
}

template <typename Take>
SPEECH_INLINE void read_floats(const PackedRows& w, Rows& rows, int64_t col, int columns,
                               const Take& take) {
  if (w.type == WeightType::f32) {
    auto decode = [](I v, F* out) SPEECH_INLINE_LAMBDA { out[0] = V::as_float(v); };
    read_lines<kLanes>(rows, col, columns, decode, take);
  } else if (w.type == WeightType::f16) {
    auto decode = [](I v, F* out) SPEECH_INLINE_LAMBDA { V::halves(v, out[0], out[1]); };
    read_lines<2 * kLanes>(rows, col, columns, decode, take);
  } else {
    auto decode = [](I v, F* out) SPEECH_INLINE_LAMBDA {
      out[0] = V::as_float(V::template sll32<16>(v));
      out[1] = V::as_float(V::and_(v, V::set32(static_cast<int>(0xffff0000))));
    };
    read_lines<2 * kLanes>(rows, col, columns, decode, take);
  }
}

// ---------------------------------------------------------------- unpacking

// body(Index<0>{}), body(Index<1>{}) ...
template <int... kValues, typename Body>
SPEECH_INLINE void for_each(Indices<kValues...>, const Body& body) {
  (body(Index<kValues>{}), ...);
}

// Takes codes into a panel.
struct Store {
  static constexpr bool kTakesScales = false;
  int16_t* values;

  template <typename L, typename Get>
  SPEECH_INLINE void put(int column, const Get& get) const {
    int16_t* out = values + column / (L::kBytes ? 4 : 2) * kPairStep;
    for_each(std::make_integer_sequence<int, L::kCodes>{},
             [&](auto i) SPEECH_INLINE_LAMBDA { V::store(out + i.value * kPairStep, get(i)); });
  }
};

void unpack(const PackedRows& w, const IntFormat& format, int64_t row, int64_t col, int columns,
            Next next, const IntPanel& panel) {
  for (int half = 0; half < 2; ++half) {
    Quantized rows(w, row + half * kLanes, next);
    Store store{panel.values + half * kLanes * 2};
    rows.read(w, format, col, columns, panel.scales + half * kLanes, panel.biases + half * kLanes,
              store);
    next = rows.next();
  }
}

void unpack_float(const PackedRows& w, int64_t row, int64_t col, int columns, Next next,
                  float* panel) {
  for (int half = 0; half < 2; ++half) {
    Rows rows(w.data, w.row_bytes, row + half * kLanes, next.data);
    float* out = panel + half * kLanes;
    read_floats(w, rows, col, columns,
                [&](int c, const F* values, auto count) SPEECH_INLINE_LAMBDA {
                  for (int i = 0; i < count; ++i) V::store_f(out + (c + i) * kPanelRows, values[i]);
                });
    next.data = rows.next;
  }
}

// ---------------------------------------------------------------- multiplying

// Asks for the following cache lines and moves on behind them: what the next tile reads.
inline void prefetch(const char*& at, int lines) {
  for (int i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 3);
}

// acc = fma(bias, sum of x, acc) for the biases of a unit.
template <int kRows>
inline void add_biases(const IntUnit& u, int row) {
  if (u.format.bias_group == 0) return;
  float* acc = u.acc + row * kPanelRows;
  int stride = kUnitColumns / u.format.bias_group, count = u.columns / u.format.bias_group;
  const float* x_sums = u.x_sums + row * stride;
  F sum[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = V::load_f(acc + r * kPanelRows);
    sum[r][1] = V::load_f(acc + r * kPanelRows + kLanes);
  }
  const float* biases = u.panel.biases;
  for (int g = 0; g < count; ++g, biases += kPanelRows) {
    F b0 = V::load_f(biases), b1 = V::load_f(biases + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      F xs = V::broadcast_f(x_sums + r * stride + g);
      sum[r][0] = V::fma(b0, xs, sum[r][0]);
      sum[r][1] = V::fma(b1, xs, sum[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    V::store_f(acc + r * kPanelRows, sum[r][0]);
    V::store_f(acc + r * kPanelRows + kLanes, sum[r][1]);
  }
}

// kRows rows of x with the panel: sum_group(column, sums) writes the int32 sums of one group;
// groups that share a scale of x are added up in registers (where these suffice).
template <int kRows, typename SumGroup>
SPEECH_INLINE void scaled_tile(const IntUnit& u, int row, const SumGroup& sum_group) {
  const float* x_scales = u.x_scales + row * (kUnitColumns / kScaleColumns);
  float* acc = u.acc + row * kPanelRows;
  const float* scales = u.panel.scales;
  const char* next = reinterpret_cast<const char*>(u.x + (row + kRows) * kUnitColumns);
  const char* next_acc = reinterpret_cast<const char*>(acc + kRows * kPanelRows);
  prefetch(next_acc, kRows * kPanelRows / 16);
  for (int block = 0; block < u.columns; block += kScaleColumns, ++x_scales) {
    F part[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) part[r][0] = part[r][1] = V::zero_f();
    int end = block + kScaleColumns < u.columns ? block + kScaleColumns : u.columns;
    for (int column = block; column < end; column += u.format.group, scales += kPanelRows) {
      I sum[kRows][2];
      sum_group(column, sum);
      prefetch(next, kRows * u.format.group / 32);
      F s0 = V::load_f(scales), s1 = V::load_f(scales + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        part[r][0] = V::fma(V::to_float(sum[r][0]), s0, part[r][0]);
        part[r][1] = V::fma(V::to_float(sum[r][1]), s1, part[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      F xs = V::broadcast_f(x_scales + r * (kUnitColumns / kScaleColumns));
      float* to = acc + r * kPanelRows;
      V::store_f(to, V::fma(part[r][0], xs, V::load_f(to)));
      V::store_f(to + kLanes, V::fma(part[r][1], xs, V::load_f(to + kLanes)));
    }
  }
  add_biases<kRows>(u, row);
}

// Words. Few rows have too few sums to hide the latency of adding to them: kSplit sums over every
// kSplit-th pair of columns are kept then (int32, so the order is free).
template <int kRows, int kSplit>
void int_tile(const IntUnit& u, int row) {
  const int16_t* x = u.x + row * kUnitColumns;
  const int16_t* w = u.panel.values;
  int pairs = u.format.group / 2;
  scaled_tile<kRows>(u, row, [&](int, I(&sums)[kRows][2]) SPEECH_INLINE_LAMBDA {
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
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) {
        sum[0][r][0] = V::add32(sum[0][r][0], sum[s][r][0]);
        sum[0][r][1] = V::add32(sum[0][r][1], sum[s][r][1]);
      }
      sums[r][0] = sum[0][r][0];
      sums[r][1] = sum[0][r][1];
    }
  });
}

// Bytes: one sum per output, which takes in the high plane, is shifted, and takes in the low plane.
template <int kRows>
void byte_tile(const IntUnit& u, int row) {
  const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + row * 2 * kUnitColumns;
  int offsets = kUnitColumns / u.format.group;
  const float* x_offsets = u.x_sums + row * offsets;
  const uint8_t* w = reinterpret_cast<const uint8_t*>(u.panel.values);
  int fours = u.format.group / 4;
  scaled_tile<kRows>(u, row, [&](int column, I(&sum)[kRows][2]) SPEECH_INLINE_LAMBDA {
    auto take_plane = [&](const int8_t* plane) SPEECH_INLINE_LAMBDA {
      for (int f = 0; f < fours; ++f) {
        I w0 = V::load(w + f * kFourStep), w1 = V::load(w + f * kFourStep + 4 * kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          I v = V::broadcast(plane + r * 2 * kUnitColumns + 4 * f);
          sum[r][0] = V::dot_bytes(sum[r][0], w0, v);
          sum[r][1] = V::dot_bytes(sum[r][1], w1, v);
        }
      }
    };
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = V::zero();
    take_plane(x + column);
    if (u.format.offset) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        I offset = V::broadcast(x_offsets + r * offsets);
        sum[r][0] = V::add32(V::sll32<8>(sum[r][0]), offset);
        sum[r][1] = V::add32(V::sll32<8>(sum[r][1]), offset);
      }
      ++x_offsets;
    } else {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sum[r][0] = V::sll32<8>(sum[r][0]);
        sum[r][1] = V::sll32<8>(sum[r][1]);
      }
    }
    take_plane(x + kUnitColumns + column);
    w += fours * kFourStep;
  });
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
    __builtin_prefetch(next + c * kRows * 4, 0, 3);
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

// A few rows of x, straight from the stored rows: what unpacking leaves in registers is multiplied
// there.
template <int kRows>
struct Multiply {
  static constexpr bool kTakesScales = V::kBytes;  // has put_scaled()
  IntUnit u;                  // scales and biases, from this register's rows on
  int shift;                  // 1 << shift columns are a group
  F acc[kRows], part[kRows];  // part: of the columns that share a scale of x, so far
  I sum[kRows], low[kRows];   // of a group so far; bytes: of the high plane, of the low one

  SPEECH_INLINE Multiply(const IntUnit& unit)
      : u(unit), shift(__builtin_ctz(static_cast<unsigned>(unit.format.group))) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      acc[r] = part[r] = V::zero_f();
      sum[r] = low[r] = V::zero();
    }
  }

  template <typename L, typename Get>
  SPEECH_INLINE void put(int column, const Get& get) {
    for_each(std::make_integer_sequence<int, L::kCodes>{}, [&](auto i) SPEECH_INLINE_LAMBDA {
      I codes = get(i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        if constexpr (L::kBytes) {
          const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + r * 2 * kUnitColumns + column;
          sum[r] = V::dot_bytes(sum[r], codes, V::broadcast(x + 4 * i.value));
          low[r] = V::dot_bytes(low[r], codes, V::broadcast(x + kUnitColumns + 4 * i.value));
        } else {
          const int16_t* x = u.x + r * kUnitColumns + column;
          sum[r] = V::dot(sum[r], codes, V::broadcast(x + 2 * i.value));
        }
      }
    });
    int size = L::kGroup ? L::kGroup : u.format.group;
    if (((column + 32) & (size - 1)) == 0) finish<L>(column);
  }

  // Bytes of 32 columns whose sums of 16 have integer scales (q6_k): one group.
  template <typename Get>
  SPEECH_INLINE void put_scaled(int column, const Get& get, I first, I last) {
    for_each(std::make_integer_sequence<int, 2>{}, [&](auto half) SPEECH_INLINE_LAMBDA {
      I high[kRows], part[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) high[r] = part[r] = V::zero();
      for_each(std::make_integer_sequence<int, 4>{}, [&](auto i) SPEECH_INLINE_LAMBDA {
        constexpr int index = 4 * half.value + i.value;
        I codes = get(Index<index>{});
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + r * 2 * kUnitColumns + column;
          high[r] = V::dot_bytes(high[r], codes, V::broadcast(x + 4 * index));
          part[r] = V::dot_bytes(part[r], codes, V::broadcast(x + kUnitColumns + 4 * index));
        }
      });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        part[r] = V::add32(V::template sll32<8>(high[r]), part[r]);
        part[r] = V::add32(part[r],
                           V::broadcast(u.x_sums + (r * kUnitColumns + column) / 16 + half.value));
        sum[r] = V::add32(sum[r], V::mul32(part[r], half.value == 0 ? first : last));
      }
    });
    finish<Q6K>(column);
  }

  template <typename L>
  SPEECH_INLINE void finish(int column) {
    int group = L::kGroup ? column / (L::kGroup ? L::kGroup : 1) : column >> shift;
    F scale = V::load_f(u.panel.scales + group * kPanelRows);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      if constexpr (L::kBytes) sum[r] = V::add32(V::template sll32<8>(sum[r]), low[r]);
      if constexpr (L::kOffset) {
        sum[r] = V::add32(sum[r], V::broadcast(u.x_sums + r * (kUnitColumns / L::kGroup) + group));
      }
      part[r] = V::fma(V::to_float(sum[r]), scale, part[r]);
      sum[r] = low[r] = V::zero();
    }
    if ((column + 32) % kScaleColumns == 0) finish_block(column / kScaleColumns);
  }

  SPEECH_INLINE void finish_block(int block) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      F xs = V::broadcast_f(u.x_scales + r * (kUnitColumns / kScaleColumns) + block);
      acc[r] = V::fma(part[r], xs, acc[r]);
      part[r] = V::zero_f();
    }
  }

  // What is left of a last, short block, and the unit's biases.
  SPEECH_INLINE void finish_unit() {
    if (u.columns % kScaleColumns != 0) finish_block(u.columns / kScaleColumns);
    if (u.format.bias_group == 0) return;
    int stride = kUnitColumns / u.format.bias_group, count = u.columns / u.format.bias_group;
    for (int g = 0; g < count; ++g) {
      F bias = V::load_f(u.panel.biases + g * kPanelRows);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        acc[r] = V::fma(bias, V::broadcast_f(u.x_sums + r * stride + g), acc[r]);
      }
    }
  }
};

template <int kRows>
void direct_of(const PackedRows& w, int64_t row, Next next, const IntUnit& first) {
  const IntFormat& format = first.format;
  for (int half = 0; half < 2; ++half) {
    Quantized rows(w, row + half * kLanes, next);
    Multiply<kRows> multiply(first);
    IntUnit& u = multiply.u;
    Quantized::Ahead ahead;
    for (int64_t col = 0; col < w.cols; col += kUnitColumns) {
      u.columns = static_cast<int>(w.cols - col < kUnitColumns ? w.cols - col : kUnitColumns);
      rows.read_next(w, format, col, u.columns, ahead, u.panel, multiply);
      multiply.finish_unit();
      u.x += kRows * kUnitColumns;
      u.x_scales += kRows * (kUnitColumns / kScaleColumns);
      u.x_sums += kRows * format.sums();
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      V::store_f(u.acc + r * kPanelRows + half * kLanes, multiply.acc[r]);
    }
    next = rows.next();
  }
}

template <int kRows>
void direct_float_of(const PackedRows& w, int64_t row, Next next, const FloatUnit& first) {
  for (int half = 0; half < 2; ++half) {
    Rows rows(w.data, w.row_bytes, row + half * kLanes, next.data);
    const float* x = first.x;
    F acc[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[r] = V::zero_f();
    auto take = [&](int c, const F* values, auto count) SPEECH_INLINE_LAMBDA {
      int most = count;
#pragma GCC unroll 32
      for (int i = 0; i < most; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          acc[r] = V::fma(values[i], V::broadcast_f(x + r * kFloatColumns + c + i), acc[r]);
        }
      }
    };
    for (int64_t col = 0; col < w.cols; col += kFloatColumns, x += kRows * kFloatColumns) {
      int columns = static_cast<int>(w.cols - col < kFloatColumns ? w.cols - col : kFloatColumns);
      read_floats(w, rows, col, columns, take);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      V::store_f(first.acc + r * kPanelRows + half * kLanes, acc[r]);
    }
    next.data = rows.next;
  }
}

void direct(const PackedRows& w, int64_t row, Next next, const IntUnit& first) {
  static constexpr void (*kByRows[kDirectRows])(
      const PackedRows&, int64_t, Next, const IntUnit&) = {direct_of<1>, direct_of<2>, direct_of<3>,
                                                           direct_of<4>};
  kByRows[first.n - 1](w, row, next, first);
}
void direct_float(const PackedRows& w, int64_t row, Next next, const FloatUnit& first) {
  static constexpr void (*kByRows[kDirectRows])(const PackedRows&, int64_t, Next,
                                                const FloatUnit&) = {
      direct_float_of<1>, direct_float_of<2>, direct_float_of<3>, direct_float_of<4>};
  kByRows[first.n - 1](w, row, next, first);
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
  multiply_words(u, V::IntRows{});
}

template <int... kRows>
void multiply_bytes(const IntUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const IntUnit&, int) = {byte_tile<kRows + 1>...};
  for_tiles(u, kTiles);
}

template <bool kBytes>
void multiply(const IntUnit& u) {
  if constexpr (kBytes) {
    if (u.format.bytes) return multiply_bytes(u, V::IntRows{});
  }
  multiply_words(u);
}

template <int... kRows>
void multiply_float(const FloatUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const FloatUnit&, int) = {float_tile<kRows + 1>...};
  for_tiles(u, kTiles);
}
void multiply_float(const FloatUnit& u) {
  multiply_float(u, V::FloatRows{});
}

// ---------------------------------------------------------------- quantizing

// Of two planes: sums of groups, then the order of columns.
template <typename W>  // V, where it has bytes
void finish_planes(int8_t* p, const IntFormat& format, const float* scales, float* sums) {
  int group = format.offset ? format.offset_group : format.bias_group;
  I one = V::set32(0x01010101);
  for (int g = 0; group && g * group < kUnitColumns; ++g) {
    I high = V::zero(), low = V::zero();
    for (int c = g * group; c < (g + 1) * group; c += W::kPiece) {
      high = V::dot_bytes(high, one, W::piece(p + c, group));
      low = V::dot_bytes(low, one, W::piece(p + kUnitColumns + c, group));
    }
    int sum = V::sum32(V::add32(V::template sll32<8>(high), low));
    if (format.offset) {
      sum *= -format.offset;
      __builtin_memcpy(sums + g, &sum, 4);
    } else {
      sums[g] = static_cast<float>(sum) * scales[g * group / kScaleColumns];
    }
  }
  if (format.order == 0) return;
  static constexpr int8_t kFours[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  static constexpr int8_t kTwos[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const int8_t* order = format.order == 4 ? kFours : kTwos;
  for (int c = 0; c < 2 * kUnitColumns; c += 4 * kLanes) {
    V::store(p + c, W::reorder(V::load(p + c), order));
  }
}

template <typename W>  // V
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
    if constexpr (W::kBytes) {
      if (format.bytes) {
        W::store_planes(reinterpret_cast<int8_t*>(q) + block * kScaleColumns, from, factor);
        continue;
      }
    }
    for (int c = 0; c < kScaleColumns; c += 2 * kLanes) {
      V::store_int16(q + block * kScaleColumns + c, V::to_int(V::mul(V::load_f(from + c), factor)),
                     V::to_int(V::mul(V::load_f(from + c + kLanes), factor)));
    }
  }
  if constexpr (W::kBytes) {
    if (format.bytes) {
      finish_planes<W>(reinterpret_cast<int8_t*>(q), format, scales, sums);
      return finite;
    }
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

constexpr MatmulKernels kTable = {
    .panel_rows = kPanelRows,
    .bytes = V::kBytes,
    .signed_codes = V::kSigned,
    .unpack = unpack,
    .unpack_float = unpack_float,
    .multiply = multiply<V::kBytes>,
    .multiply_float = multiply_float,
    .direct = direct,
    .direct_float = direct_float,
    .quantize = quantize<V>,
};

}  // namespace
}  // namespace speech::cpu
