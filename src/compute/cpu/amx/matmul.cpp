// The matrix product with AMX: whole tiles of 16 rows of byte panels. The sums are the exact int32
// that the AVX-512 kernels make, and what follows is the same, so both give the same bytes and
// share a call's rows.
#if defined(__x86_64__)

#include <immintrin.h>

#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

constexpr int kPanelRows = 32;
constexpr int kTileRows = 16;
constexpr int kFourStep = 4 * kPanelRows;    // bytes of four columns of a panel
constexpr int kRowBytes = 2 * kUnitColumns;  // of x: two planes
constexpr int kTileBytes = kTileRows * 64;

// Register 0, 1: sums of the high plane with the panel's halves; 2, 3: of the low plane; 4, 5: x,
// high and low; 6, 7: the halves of the panel.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes_per_row[16];
  uint8_t rows[16];
};

void configure(int columns) {
  TileConfig c = {};
  c.palette = 1;
  for (int i = 0; i < 8; ++i) {
    c.rows[i] = static_cast<uint8_t>(i < 6 ? kTileRows : columns / 4);
    c.bytes_per_row[i] = static_cast<uint16_t>(i == 4 || i == 5 ? columns : 64);
  }
  _tile_loadconfig(&c);
}

// Sums of one group, columns [column, column + group): four tiles to `out`.
inline void sum_group(const int8_t* x, const uint8_t* w, int column, int group, int32_t* out) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int step = group < 64 ? group : 64;
  for (int end = column + group; column < end; column += step) {
    const uint8_t* at = w + column / 4 * kFourStep;
    _tile_loadd(4, x + column, kRowBytes);
    _tile_loadd(6, at, kFourStep);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, at + 64, kFourStep);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, x + kUnitColumns + column, kRowBytes);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, out, 64);
  _tile_stored(1, out + kTileBytes / 4, 64);
  _tile_stored(2, out + 2 * kTileBytes / 4, 64);
  _tile_stored(3, out + 3 * kTileBytes / 4, 64);
}

template <bool kOffset>
inline __m512 to_float(const int32_t* sums, int half, int row, __m512i offset) {
  const int32_t* at = sums + half * (kTileBytes / 4) + row * 16;
  __m512i high = _mm512_load_si512(at), low = _mm512_load_si512(at + 2 * kTileBytes / 4);
  __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
  if constexpr (kOffset) sum = _mm512_add_epi32(sum, offset);
  return _mm512_cvtepi32_ps(sum);
}

// kCount groups from `group` on. `part` [rows, panel rows]: of the columns that share a scale of x,
// what a call before this one has left unfinished, and what this one does.
template <int kCount, bool kOffset>
inline void add_groups(const IntUnit& u, int row, int group, const int32_t (*sums)[kTileBytes],
                       float* part) {
  constexpr int kScales = kUnitColumns / kScaleColumns;
  __m512 s[kCount][2];
  const float* x_scales[kCount];
  const float* offsets[kCount];
  bool ends[kCount];  // the block
  int offset_stride = kUnitColumns / u.format.group;
  for (int g = 0; g < kCount; ++g) {
    const float* scales = u.panel.scales + (group + g) * kPanelRows;
    s[g][0] = _mm512_load_ps(scales);
    s[g][1] = _mm512_load_ps(scales + 16);
    int column = (group + g) * u.format.group, end = column + u.format.group;
    x_scales[g] = u.x_scales + row * kScales + column / kScaleColumns;
    offsets[g] = u.x_sums + row * offset_stride + group + g;
    ends[g] = end % kScaleColumns == 0 || end == u.columns;
  }
  bool starts = group * u.format.group % kScaleColumns == 0;
  float* acc = u.acc + row * kPanelRows;
#pragma GCC unroll 2
  for (int r = 0; r < kTileRows; ++r, acc += kPanelRows, part += kPanelRows) {
    __m512 a = starts ? _mm512_setzero_ps() : _mm512_load_ps(part);
    __m512 b = starts ? _mm512_setzero_ps() : _mm512_load_ps(part + 16);
#pragma GCC unroll 2
    for (int g = 0; g < kCount; ++g) {
      __m512i offset = _mm512_setzero_si512();
      if constexpr (kOffset) {
        int value;
        __builtin_memcpy(&value, offsets[g] + r * offset_stride, 4);
        offset = _mm512_set1_epi32(value);
      }
      a = _mm512_fmadd_ps(to_float<kOffset>(sums[g], 0, r, offset), s[g][0], a);
      b = _mm512_fmadd_ps(to_float<kOffset>(sums[g], 1, r, offset), s[g][1], b);
      if (!ends[g]) continue;
      __m512 xs = _mm512_set1_ps(x_scales[g][r * kScales]);
      _mm512_store_ps(acc, _mm512_fmadd_ps(a, xs, _mm512_load_ps(acc)));
      _mm512_store_ps(acc + 16, _mm512_fmadd_ps(b, xs, _mm512_load_ps(acc + 16)));
      a = b = _mm512_setzero_ps();
    }
    if (!ends[kCount - 1]) {
      _mm512_store_ps(part, a);
      _mm512_store_ps(part + 16, b);
    }
  }
}

inline void add_biases(const IntUnit& u, int row, float* acc) {
  int stride = kUnitColumns / u.format.bias_group, count = u.columns / u.format.bias_group;
  const float* x_sums = u.x_sums + row * stride;
  for (int r = 0; r < kTileRows; r += 4) {
    __m512 a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_load_ps(acc + i * kPanelRows);
      b[i] = _mm512_load_ps(acc + i * kPanelRows + 16);
    }
    for (int g = 0; g < count; ++g) {
      __m512 w0 = _mm512_load_ps(u.panel.biases + g * kPanelRows);
      __m512 w1 = _mm512_load_ps(u.panel.biases + g * kPanelRows + 16);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m512 xs = _mm512_set1_ps(x_sums[i * stride + g]);
        a[i] = _mm512_fmadd_ps(w0, xs, a[i]);
        b[i] = _mm512_fmadd_ps(w1, xs, b[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm512_store_ps(acc + i * kPanelRows, a[i]);
      _mm512_store_ps(acc + i * kPanelRows + 16, b[i]);
    }
    acc += 4 * kPanelRows;
    x_sums += 4 * stride;
  }
}

// Asks for the rows of the next tile, one part of `parts` of them.
inline void prefetch(const void* at, int bytes, int part, int parts) {
  const char* p = static_cast<const char*>(at);
  for (int i = bytes / parts * part; i < bytes / parts * (part + 1); i += 64) {
    _mm_prefetch(p + i, _MM_HINT_T0);
  }
}

// All whole tiles. The sums of two groups at a time go through memory; they are read one step
// later, when the tile registers' stores have arrived and their next products are under way.
template <bool kOffset>
void multiply_tiles(const IntUnit& u, int tiles) {
  alignas(64) int32_t sums[4][kTileBytes];
  alignas(64) float part[kTileRows * kPanelRows];
  int size = u.format.group, groups = u.columns / size, pairs = (groups + 1) / 2;
  auto start = [&](int step) {
    int g = step % pairs * 2;
    const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + step / pairs * (kTileRows * kRowBytes);
    const uint8_t* w = reinterpret_cast<const uint8_t*>(u.panel.values);
    int32_t(*to)[kTileBytes] = sums + step % 2 * 2;
    prefetch(x + kTileRows * kRowBytes, kTileRows * kRowBytes, g / 2, pairs);
    sum_group(x, w, g * size, size, to[0]);
    if (g + 1 < groups) sum_group(x, w, (g + 1) * size, size, to[1]);
  };
  auto finish = [&](int step) {
    int g = step % pairs * 2, row = step / pairs * kTileRows;
    const int32_t(*from)[kTileBytes] = sums + step % 2 * 2;
    if (g + 1 < groups) {
      add_groups<2, kOffset>(u, row, g, from, part);
    } else {
      add_groups<1, kOffset>(u, row, g, from, part);
    }
    if (step % pairs + 1 == pairs && u.format.bias_group) {
      add_biases(u, row, u.acc + row * kPanelRows);
    }
  };
  start(0);
  for (int step = 1; step < tiles * pairs; ++step) {
    start(step);
    finish(step - 1);
  }
  finish(tiles * pairs - 1);
}

void multiply(const IntUnit& u) {
  int row = 0;
  // Tiles are filled and emptied once per group: with short groups a few rows are not worth it.
  if (u.format.bytes && u.n >= (u.format.group < 64 ? 4 * kTileRows : kTileRows)) {
    configure(u.format.group < 64 ? u.format.group : 64);
    if (u.format.offset) {
      multiply_tiles<true>(u, u.n / kTileRows);
    } else {
      multiply_tiles<false>(u, u.n / kTileRows);
    }
    _tile_release();
    row = u.n / kTileRows * kTileRows;
  }
  if (row == u.n) return;
  IntUnit rest = u;
  rest.x += row * kUnitColumns;
  rest.x_scales += row * (kUnitColumns / kScaleColumns);
  rest.x_sums += row * u.format.sums();
  rest.acc += row * kPanelRows;
  rest.n -= row;
  kAvx512Matmul.multiply(rest);
}

}  // namespace

MatmulKernels amx_matmul() {
  MatmulKernels table = kAvx512Matmul;
  table.multiply = multiply;
  return table;
}

}  // namespace speech::cpu

#endif
