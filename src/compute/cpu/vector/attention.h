// Attention in tiles. Included by one file per instruction set, after its simd.h and math.h.
//
// Lanes hold (query, head) pairs that share a kv head, kTileVectors vectors of them. Keys and
// values are broadcast from where they lie, in blocks of kKeys counted from key 0, and the softmax
// is carried from block to block (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
// arXiv:2205.14135). A lane's arithmetic does not depend on the others, so a query gets the same
// bytes in any tile; few pairs over a cache (decoding steps) have keys and columns in the lanes
// instead, with the same arithmetic.
#pragma once

#include "compute/cpu/kernels.h"
#include "compute/cpu/vector/math.h"
#include "compute/kv_cache.h"

namespace speech::cpu {
namespace {

constexpr int kPairs = kTileVectors * kLanes;  // lanes of a tile
constexpr int kKeys = kKvBlock;                // keys of a block
constexpr int kFewPairs = 8;                   // up to here attend_few serves

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
inline int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

int64_t attention_tile(const AttentionArgs& args) {
  return larger(1, kPairs / (args.heads / args.kv_heads));
}

// Rows of kPairs floats that a tile keeps beside its copy of a block's values.
inline int64_t band_rows(const AttentionArgs& args) {
  if (!args.p) return 0;
  return larger(args.d, kKeys + kPairs + kTileRows);
}

size_t attention_scratch(const AttentionArgs& args) {
  int64_t d = round_up(args.d, larger(kLanes, kTileRows));
  int64_t rows = 3 * d + kKeys + kTileRows + 5 + band_rows(args);
  int64_t tile = rows * kPairs + 2 * kKeys * d;
  int64_t few = kFewPairs * (d + kKeys);
  return sizeof(float) * static_cast<size_t>(larger(tile, few));
}

// A head's keys in a block of a cache, [d][kKeys], or its values, [kKeys][d].
template <typename T>
const T* block_of(std::byte* const* blocks, size_t offset, int64_t kv_head, int64_t key,
                  int64_t d) {
  return reinterpret_cast<const T*>(blocks[key / kKeys] + offset) + kv_head * kKeys * d;
}

inline F load_value(const float* x) {
  return load(x);
}
inline F load_value(const uint16_t* x) {
  return load_half(x);
}
// The first n of them, zeros behind.
inline F load_part(const float* x, int64_t n) {
  return n >= kLanes ? load(x) : n <= 0 ? set(0.0f) : load_n(x, n);
}
inline F load_part(const uint16_t* x, int64_t n) {
  if (n >= kLanes) return load_half(x);
  uint16_t part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = x[i];
  return load_half(part);
}

// f16 values in f32, in `to`. The same arithmetic follows as for f32, so f16 gives the bytes that
// its values give.
const float* from_half(float* to, const uint16_t* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load_half(x + i));
  if (i < n) store_n(to + i, load_part(x + i, n - i), n - i);
  return to;
}
// The first n values of block_of() in f32: where they lie, or converted into `to`.
const float* floats_of_block(float* to, const AttentionArgs& args, std::byte* const* blocks,
                             size_t offset, int64_t kv_head, int64_t key, int64_t n) {
  if (!args.half) return block_of<float>(blocks, offset, kv_head, key, args.d);
  return from_half(to, block_of<uint16_t>(blocks, offset, kv_head, key, args.d), n);
}

void to_half(uint16_t* out, const float* x, int64_t n) {
  F most = set(65504.0f), least = set(-65504.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    bool whole = i + kLanes <= n;
    // NaN comes through max and min as the second operand.
    F v = min(most, max(least, whole ? load(x + i) : load_n(x + i, n - i)));
    if (whole) {
      store_half(out + i, v);
    } else {
      uint16_t rest[kLanes];
      store_half(rest, v);
      for (int64_t k = i; k < n; ++k) out[k] = rest[k - i];
    }
  }
}

// out[r][pairs] = sum over c < d of rows[r][c * kStep] * lanes[c][pairs] for kTileRows rows.
template <int64_t kStep = 1>
inline void multiply_rows(float* out, const float* const (&rows)[kTileRows], const float* lanes,
                          int64_t d) {
  F sum[kTileRows][kTileVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = set(0.0f);
  }
  for (int64_t c = 0; c < d; ++c) {
    F x[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) x[v] = load(lanes + c * kPairs + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      F y = set(rows[r][c * kStep]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = fma(y, x[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) store(out + r * kPairs + v * kLanes, sum[r][v]);
  }
}

// out[i][pairs] = rows base + clamp(first + i, last) * stride, i < count, times lanes; writes whole
// groups of kTileRows.
void multiply_block(float* out, const float* base, int64_t stride, int64_t first, int64_t count,
                    int64_t last, const float* lanes, int64_t d) {
  for (int64_t i = 0; i < count; i += kTileRows) {
    const float* rows[kTileRows];
    for (int r = 0; r < kTileRows; ++r) {
      rows[r] = base + larger(0, smaller(last, first + i + r)) * stride;
    }
    multiply_rows(out + i * kPairs, rows, lanes, d);
  }
}

// The same for the first keys of a block whose keys lie side by side, [d][kKeys].
void multiply_columns(float* out, const float* block, int64_t count, const float* lanes,
                      int64_t d) {
  static_assert(kKeys % kTileRows == 0);
  for (int64_t i = 0; i < count; i += kTileRows) {
    const float* columns[kTileRows];
    for (int r = 0; r < kTileRows; ++r) columns[r] = block + i + r;
    multiply_rows<kKeys>(out + i * kPairs, columns, lanes, d);
  }
}

// sums[c][pairs] = sums[c][pairs] * alpha + sum over k of p[k][pairs] * v[k][c].
void accumulate_values(float* sums, const float* alpha, const float* p, const float* v,
                       int64_t v_row, int64_t keys, int64_t d) {
  for (int64_t c = 0; c < d; c += kTileRows) {
    // Past the end of d the last column is computed again, into rows nobody reads.
    int64_t column[kTileRows];
    for (int r = 0; r < kTileRows; ++r) column[r] = smaller(d - 1, c + r);
    bool whole = c + kTileRows <= d;
    F sum[kTileRows][kTileVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int u = 0; u < kTileVectors; ++u) {
        sum[r][u] = load(sums + (c + r) * kPairs + u * kLanes) * load(alpha + u * kLanes);
      }
    }
    if (whole) {
      const float* row = v + c;
      for (int64_t k = 0; k < keys; ++k, row += v_row) {
        F x[kTileVectors];
#pragma GCC unroll 4
        for (int u = 0; u < kTileVectors; ++u) x[u] = load(p + k * kPairs + u * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) {
          F y = set(row[r]);
#pragma GCC unroll 4
          for (int u = 0; u < kTileVectors; ++u) sum[r][u] = fma(y, x[u], sum[r][u]);
        }
      }
    } else {
      for (int64_t k = 0; k < keys; ++k) {
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) {
          F y = set(v[k * v_row + column[r]]);
#pragma GCC unroll 4
          for (int u = 0; u < kTileVectors; ++u) {
            sum[r][u] = fma(y, load(p + k * kPairs + u * kLanes), sum[r][u]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int u = 0; u < kTileVectors; ++u) {
        store(sums + (c + r) * kPairs + u * kLanes, sum[r][u]);
      }
    }
  }
}

// The block's value rows side by side: rows that lie a multiple of 4 KiB apart would share a few
// lines of the first-level cache, and each is read once per kTileRows columns.
const float* pack_values(float* to, const float* v, int64_t v_row, int64_t keys, int64_t d) {
  if (v_row == d) return v;
  for (int64_t k = 0; k < keys; ++k) {
    int64_t c = 0;
    for (; c + kLanes <= d; c += kLanes) store(to + k * d + c, load(v + k * v_row + c));
    for (; c < d; ++c) to[k * d + c] = v[k * v_row + c];
  }
  return to;
}

struct Pair {
  int64_t query, head;
};

// lanes[c][pair] = row of the pair [c] (+ bias[c]): columns of queries become vectors.
void pack_lanes(float* lanes, const float* const (&rows)[kPairs], const float* bias, int64_t d) {
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    F b = bias ? load(bias + c) : set(0.0f);
    for (int v = 0; v < kPairs; v += kLanes) {
      F block[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        block[l] = load(rows[v + l] + c);
        if (bias) block[l] = block[l] + b;
      }
      transpose(block);
      for (int l = 0; l < kLanes; ++l) store(lanes + (c + l) * kPairs + v, block[l]);
    }
  }
  for (; c < d; ++c) {
    for (int l = 0; l < kPairs; ++l) {
      lanes[c * kPairs + l] = bias ? rows[l][c] + bias[c] : rows[l][c];
    }
  }
}

// The way back, divided by the lanes' totals, for the first `count` lanes.
void unpack_lanes(float* const (&rows)[kPairs], const float* lanes, const float* total, int count,
                  int64_t d) {
  for (int v = 0; v < count; v += kLanes) {
    F t = load(total + v);
    for (int64_t c = 0; c < d; c += kLanes) {
      F block[kLanes];
      int64_t n = smaller(kLanes, d - c);
      for (int l = 0; l < kLanes; ++l) {
        block[l] = l < n ? load(lanes + (c + l) * kPairs + v) / t : set(0.0f);
      }
      transpose(block);
      for (int l = 0; l < kLanes && v + l < count; ++l) {
        if (n == kLanes) {
          store(rows[v + l] + c, block[l]);
        } else {
          store_n(rows[v + l] + c, block[l], n);
        }
      }
    }
  }
}

// The keys that a query sees: [first, last) and those below global.
struct Range {
  int64_t first, last;
};
inline Range visible(const AttentionArgs& args, int64_t query) {
  int64_t position = query + args.query_offset;
  if (!args.p && position < args.global) return {0, args.keys};
  return {larger(0, position - args.left), smaller(args.keys, position + args.right + 1)};
}

// Softmax of one block for one vector of lanes: scores become probabilities of this block's
// maximum; max, total and alpha are carried on.
template <typename Mask>
inline void block_softmax(float* scores, int64_t stride, int64_t keys, float scale, float* max_at,
                          float* total_at, float* alpha_at, const Mask& mask) {
  F factor = set(scale), before = load(max_at), most = before;
  for (int64_t k = 0; k < keys; ++k) {
    F s = mask(k, load(scores + k * stride) * factor);
    store(scores + k * stride, s);
    most = max(s, most);
  }
  // A lane that has seen no key yet has -inf as its maximum; 0 in its place gives exp(-inf) = 0.
  F shift = select(equal(most, set(-__builtin_inff())), set(0.0f), most);
  F sum = set(0.0f);
  for (int64_t k = 0; k < keys; ++k) {
    F p = exp(load(scores + k * stride) - shift);
    store(scores + k * stride, p);
    sum = sum + p;
  }
  F alpha = exp(before - shift);
  store(max_at, most);
  store(alpha_at, alpha);
  store(total_at, fma(load(total_at), alpha, sum));
}

// Blocks in the order every query walks them: those that hold a global key, then those of the
// window. f(first key, end).
template <typename Body>
inline void for_blocks(const AttentionArgs& args, int64_t first, int64_t last, const Body& body) {
  int64_t global = args.p ? 0 : args.global;
  int64_t key = 0;
  for (; key < global; key += kKeys) body(key, smaller(args.keys, key + kKeys));
  if (key < first) key = first / kKeys * kKeys;
  for (; key < last; key += kKeys) body(key, smaller(last, key + kKeys));
}

void attend_tile(const AttentionArgs& args, int64_t kv_head, const Pair* pairs, int count,
                 float* memory) {
  int64_t d = args.d, padded = round_up(d, kTileRows);
  float* lanes = memory;  // queries, [d][pairs]
  float* shifted = lanes + padded * kPairs;
  float* sums = shifted + padded * kPairs;
  float* scores = sums + padded * kPairs;
  float* max_at = scores + (kKeys + kTileRows) * kPairs;
  float *total = max_at + kPairs, *alpha = total + kPairs, *from = alpha + kPairs,
        *to = from + kPairs;
  float* band = to + kPairs;
  float* values = band + band_rows(args) * kPairs;
  float* keys = values + kKeys * d;
  const float *k0 = nullptr, *v0 = nullptr;
  if (!args.k_blocks) k0 = args.k + kv_head * args.k_head, v0 = args.v + kv_head * args.v_head;
  const float* queries[kPairs];
  float* outputs[kPairs];

  // Lanes beyond `count` repeat the last pair; their results are dropped.
  int64_t first = args.keys, last = 0, all_from = 0, all_to = args.keys;
  for (int lane = 0; lane < kPairs; ++lane) {
    const Pair& pair = pairs[lane < count ? lane : count - 1];
    queries[lane] = args.q + pair.query * args.q_row + pair.head * args.q_head;
    outputs[lane] = args.out + pair.query * args.out_row + pair.head * args.out_head;
    Range range = visible(args, pair.query);
    from[lane] = static_cast<float>(range.first);
    to[lane] = static_cast<float>(range.last);
    first = smaller(first, range.first);
    last = larger(last, range.last);
    all_from = larger(all_from, range.first);
    all_to = smaller(all_to, range.last);
    max_at[lane] = -__builtin_inff();
    total[lane] = 0;
  }
  for (int64_t i = 0; i < padded * kPairs; ++i) sums[i] = 0;

  // Relative positions come with as many kv heads as heads: one head per tile.
  const float* u = args.p ? args.u + kv_head * args.u_head : nullptr;
  pack_lanes(lanes, queries, u, d);
  if (args.p) pack_lanes(shifted, queries, args.v_bias + kv_head * args.v_bias_head, d);

  if (args.p && args.global > 0) {
    // Global keys are a block of their own, scored with the bare queries.
    float* bare = band;  // not in use yet
    pack_lanes(bare, queries, nullptr, d);
    for (int64_t key = 0; key < args.global; key += kKeys) {
      int64_t n = smaller(kKeys, args.global - key);
      multiply_block(scores, k0, args.k_row, key, n, args.global - 1, bare, d);
      for (int v = 0; v < kPairs; v += kLanes) {
        block_softmax(scores + v, kPairs, n, args.scale, max_at + v, total + v, alpha + v,
                      [](int64_t, F s) { return s; });
      }
      accumulate_values(sums, alpha, scores,
                        pack_values(values, v0 + key * args.v_row, args.v_row, n, d), d, n, d);
    }
  }

  // Row of the position table for lane l and key j: table - ... one row on per key, one back per
  // lane. The band holds the rows of the block for all lanes; those that the next block shares are
  // kept.
  int64_t band_key = -1;  // key of the block whose band is there
  Steps diagonal = steps(1 - kPairs);
  int64_t newest = pairs[0].query + kPairs - 1 + args.query_offset;  // position of the last lane

  for_blocks(args, first, last, [&](int64_t key, int64_t end) {
    int64_t n = end - key;
    if (k0) {
      multiply_block(scores, k0, args.k_row, key, n, args.keys - 1, lanes, d);
    } else {
      multiply_columns(
          scores,
          floats_of_block(keys, args, args.k_blocks, args.k_offset, kv_head, key, kKeys * d), n,
          lanes, d);
    }
    if (args.p) {
      int64_t row = args.p_first - newest + key;  // of band row 0
      const float* p0 = args.p + kv_head * args.p_head;
      int64_t have = 0;
      if (band_key == key - kKeys && band_key >= 0) {
        have = kPairs - 1;
        __builtin_memmove(band, band + kKeys * kPairs, sizeof(float) * have * kPairs);
      }
      multiply_block(band + have * kPairs, p0, args.p_row, row + have, n + kPairs - 1 - have,
                     args.p_last, shifted, d);
      band_key = key;
      for (int v = 0; v < kPairs; v += kLanes) {
        // Lane l of this vector at key k: band row k + kPairs - 1 - (v + l).
        const float* base = band + (kPairs - 1 - v) * kPairs + v;
        for (int64_t k = 0; k < n; ++k) {
          float* at = scores + k * kPairs + v;
          store(at, load(at) + gather(base + k * kPairs, diagonal));
        }
      }
    }
    bool whole = key >= all_from && end <= all_to;
    F global = set(static_cast<float>(args.p ? 0 : args.global));
    for (int v = 0; v < kPairs; v += kLanes) {
      if (whole) {
        block_softmax(scores + v, kPairs, n, args.scale, max_at + v, total + v, alpha + v,
                      [](int64_t, F s) { return s; });
      } else {
        F low = load(from + v), high = load(to + v), hidden = set(-__builtin_inff());
        block_softmax(scores + v, kPairs, n, args.scale, max_at + v, total + v, alpha + v,
                      [=](int64_t k, F s) {
                        F j = set(static_cast<float>(key + k));
                        M seen = either(both(less_equal(low, j), less(j, high)), less(j, global));
                        return select(seen, s, hidden);
                      });
      }
    }
    const float* packed =
        v0 ? pack_values(values, v0 + key * args.v_row, args.v_row, n, d)
           : floats_of_block(values, args, args.v_blocks, args.v_offset, kv_head, key, n * d);
    accumulate_values(sums, alpha, scores, packed, d, n, d);
  });

  unpack_lanes(outputs, sums, total, count, d);
}

// A block's keys or values lie in one piece that no other piece follows: what comes next is fetched
// meanwhile, as many bytes at a time as are read.
inline void fetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
  }
}

// scores[p][kKeys] = the keys of a block, [d][kKeys], times the queries of kCount pairs.
template <int kCount, typename T>
void score_block(float* scores, const T* keys, const float* const* queries, int64_t d,
                 const T* next) {
  constexpr int kVectors = 4;
  for (int at = 0; at < kKeys; at += kVectors * kLanes) {
    F sum[kCount][kVectors];
    for (int p = 0; p < kCount; ++p) {
      for (int v = 0; v < kVectors; ++v) sum[p][v] = set(0.0f);
    }
    const T* column = keys + at;
    for (int64_t c = 0; c < d; ++c, column += kKeys) {
      fetch(next + at + c * kKeys, kVectors * kLanes * sizeof(T));
      F key[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) key[v] = load_value(column + v * kLanes);
#pragma GCC unroll 2
      for (int p = 0; p < kCount; ++p) {
        F q = set(queries[p][c]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[p][v] = fma(key[v], q, sum[p][v]);
      }
    }
    for (int p = 0; p < kCount; ++p) {
      for (int v = 0; v < kVectors; ++v) store(scores + p * kKeys + at + v * kLanes, sum[p][v]);
    }
  }
}

// What softmax and sums of a pair carry from block to block.
struct Carried {
  float most = -__builtin_inff(), total = 0, alpha = 0;
};

// Scores become probabilities of this block's maximum; keys outside `range` get none.
void few_softmax(float* s, Carried& carried, int64_t key, int64_t n, const Range& range,
                 int64_t global, float scale) {
  F factor = set(scale), hidden = set(-__builtin_inff()), most = set(carried.most);
  for (int64_t k = 0; k < kKeys; k += kLanes) {
    F x = load(s + k) * factor;
    int64_t at = key + k;
    bool whole = at >= range.first && at + kLanes <= range.last && k + kLanes <= n;
    if (!whole) {
      float lane[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        bool seen = (at + l >= range.first && at + l < range.last) || at + l < global;
        lane[l] = seen && k + l < n ? 1.0f : 0.0f;
      }
      x = select(less(set(0.0f), load(lane)), x, hidden);
    }
    store(s + k, x);
    most = max(x, most);
  }
  // A NaN score makes its probability NaN whatever the maximum is.
  float m = max_lane(most), shift = m == -__builtin_inff() ? 0.0f : m;
  for (int64_t k = 0; k < kKeys; k += kLanes) store(s + k, exp(load(s + k) - set(shift)));
  float alpha[kLanes];
  store(alpha, exp(set(carried.most - shift)));
  carried.most = m;
  carried.alpha = alpha[0];
}

// kColumns vectors of columns of sums[p][wide] = sums * alpha + probabilities[p][n] times
// values[n][d], for kCount pairs, beside the totals of the probabilities; the last columns of d
// that are no whole vector with kPart.
template <int kCount, int kColumns, bool kPart, typename T>
inline void accumulate_columns(float* sums, int64_t wide, const float* alpha, float* totals,
                               const float* probabilities, const T* values, int64_t n, int64_t d,
                               int64_t part, const T* next) {
  F acc[kCount][kColumns];
  float total[kCount];
#pragma GCC unroll 2
  for (int p = 0; p < kCount; ++p) {
    F a = set(alpha[p]);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) acc[p][j] = load(sums + p * wide + j * kLanes) * a;
    total[p] = totals[p];
  }
  for (int64_t k = 0; k < n; ++k, values += d, next += d) {
    fetch(next, kColumns * kLanes * sizeof(T));
    F v[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      v[j] = kPart ? load_part(values, part) : load_value(values + j * kLanes);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kCount; ++p) {
      float weight = probabilities[p * kKeys + k];
      total[p] = total[p] + weight;
      F y = set(weight);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) acc[p][j] = fma(v[j], y, acc[p][j]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kCount; ++p) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) store(sums + p * wide + j * kLanes, acc[p][j]);
    totals[p] = total[p];
  }
}

// All columns of a block, and what the pairs carry on.
template <int kCount, typename T>
void accumulate_few(float* sums, int64_t wide, const float* probabilities, Carried* carried,
                    const T* values, int64_t n, int64_t d, const T* next) {
  constexpr int kColumns = kRegisters == 32 ? 8 : 4;  // what the registers hold
  constexpr int64_t kStep = 16;  // keys, whose values stay in the first-level cache
  float alpha[kCount], total[kCount] = {};
  for (int p = 0; p < kCount; ++p) alpha[p] = carried[p].alpha;
  for (int64_t k = 0; k < n; k += kStep) {
    int64_t keys = smaller(kStep, n - k), c = 0;
    const T* rows = values + k * d;
    float before[kCount];
    auto columns = [&](auto accumulate, int64_t part) {
      // Each set of columns meets the same probabilities, whose total is wanted once.
      for (int p = 0; p < kCount; ++p) before[p] = total[p];
      float* totals = c == 0 ? total : before;
      accumulate(sums + c, wide, alpha, totals, probabilities + k, rows + c, keys, d, part,
                 next + k * d + c);
    };
    for (; c + kColumns * kLanes <= d; c += kColumns * kLanes) {
      columns(accumulate_columns<kCount, kColumns, false, T>, 0);
    }
    for (; c + kLanes <= d; c += kLanes) columns(accumulate_columns<kCount, 1, false, T>, 0);
    if (c < d) columns(accumulate_columns<kCount, 1, true, T>, d - c);
    for (int p = 0; p < kCount; ++p) alpha[p] = 1;
  }
  for (int p = 0; p < kCount; ++p) {
    carried[p].total = __builtin_fmaf(carried[p].total, carried[p].alpha, total[p]);
  }
}

// Few pairs over a cache: keys in the lanes for the scores, columns for the values, two pairs at a
// time, so that a cache is read once as it lies. Every sum runs in the order of attend_tile.
template <typename T>
void attend_few(const AttentionArgs& args, int64_t kv_head, const Pair* pairs, int count,
                float* memory) {
  int64_t d = args.d, wide = round_up(d, kLanes);
  float* sums = memory;                     // [pair][wide]
  float* scores = sums + kFewPairs * wide;  // [pair][kKeys]
  const float* queries[kFewPairs];
  Carried carried[kFewPairs];
  Range range[kFewPairs];
  int64_t first = args.keys, last = 0;
  for (int p = 0; p < count; ++p) {
    queries[p] = args.q + pairs[p].query * args.q_row + pairs[p].head * args.q_head;
    range[p] = visible(args, pairs[p].query);
    first = smaller(first, range[p].first);
    last = larger(last, range[p].last);
  }
  for (int64_t i = 0; i < count * wide; ++i) sums[i] = 0;

  for_blocks(args, first, last, [&](int64_t key, int64_t end) {
    int64_t n = end - key;
    const T* keys = block_of<T>(args.k_blocks, args.k_offset, kv_head, key, d);
    const T* values = block_of<T>(args.v_blocks, args.v_offset, kv_head, key, d);
    const T* next = end < last ? block_of<T>(args.k_blocks, args.k_offset, kv_head, end, d) : keys;
    for (int p = 0; p < count; p += 2) {
      auto score = p + 1 < count ? score_block<2, T> : score_block<1, T>;
      score(scores + p * kKeys, keys, queries + p, d, p == 0 ? values : keys);
    }
    for (int p = 0; p < count; ++p) {
      few_softmax(scores + p * kKeys, carried[p], key, n, range[p], args.global, args.scale);
    }
    for (int p = 0; p < count; p += 2) {
      auto accumulate = p + 1 < count ? accumulate_few<2, T> : accumulate_few<1, T>;
      accumulate(sums + p * wide, wide, scores + p * kKeys, carried + p, values, n, d,
                 p == 0 ? next : keys);
    }
  });

  for (int p = 0; p < count; ++p) {
    float* out = args.out + pairs[p].query * args.out_row + pairs[p].head * args.out_head;
    for (int64_t c = 0; c < d; ++c) out[c] = sums[p * wide + c] / carried[p].total;
  }
}

void attention(const AttentionArgs& args, int64_t kv_head, int64_t begin, int64_t end,
               void* scratch) {
  float* memory = static_cast<float*>(scratch);
  int64_t group = args.heads / args.kv_heads;
  Pair pairs[kPairs];
  int count = 0;
  auto flush = [&] {
    if (count > 0 && count <= kFewPairs && args.k_blocks) {
      auto attend = args.half ? attend_few<uint16_t> : attend_few<float>;
      attend(args, kv_head, pairs, count, memory);
    } else if (count > 0) {
      attend_tile(args, kv_head, pairs, count, memory);
    }
    count = 0;
  };
  for (int64_t query = begin; query < end; ++query) {
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      pairs[count++] = {query, head};
      if (count == kPairs) flush();
    }
  }
  flush();
}

}  // namespace
}  // namespace speech::cpu
