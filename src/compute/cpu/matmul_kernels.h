// What an instruction set provides to the matrix product.
//
// A product is cut into panels of `panel_rows` weight rows and units of a few hundred columns. A
// unit of a panel is unpacked once into the first-level cache and then multiplied with every row of
// x (a few rows are multiplied while it is unpacked); sums over the units so far wait in an f32
// tile [n, panel_rows].
//
// Quantized weights: the panel holds the stored codes exactly; activations are integers,
// |x| <= x_max, with one f32 scale per row and kScaleColumns columns. Two layouts:
//   words  codes (for the K types times the integer scale of their group) and activations as int16,
//          multiplied in pairs of columns
//   bytes  codes as uint8, or int8 where the instruction wants that, in fours of columns;
//          activations in two planes of int8, x = 256 * high + low, each multiplied by itself
// A sum of products over one group of columns is an exact int32 (or two), so it does not matter in
// which order or by which instructions it is made; what follows is
//   part = fma(float(sum), group scale, part)            for each group of the columns that share a
//                                                        scale of x, in order, from part = 0 on
//   acc = fma(part, x scale, acc)                        for each such block, in order
//   acc = fma(group bias, sum of the group's x, acc)     for each bias of the unit, in order
// for each output by itself. Float weights: acc = fma(w, x, acc) over the columns in order. So an
// output's bytes do not depend on the other rows of the call, on tile shapes or on threads.
//
// Files compiled for one instruction set include this: no inline code here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/weight_type.h"

namespace speech::cpu {

inline constexpr int kUnitColumns = 256;   // columns of a unit, quantized weights
inline constexpr int kFloatColumns = 128;  // the same, float weights
inline constexpr int kScaleColumns = 128;  // activations that share a scale
inline constexpr int kDirectRows = 4;      // most rows of x that need no panel

// How a type is multiplied. No sum of a group can leave int32: see the table in matmul.cpp.
struct IntFormat {
  int group;       // columns summed in int32 before a float scale: 32, 64 or 128
  int bias_group;  // columns that share a bias; 0: the type has none
  int x_max;       // largest magnitude of a quantized activation
  bool bytes;      // the layout
  // Bytes: what has been added to signed codes to make them unsigned, 0: nothing; x_sums then
  // holds, per offset_group columns, the sum of x times -offset as int32.
  int offset, offset_group;
  // Bytes: columns stand in an order that makes unpacking cheap. 4: of each eight columns first the
  // even, then the odd ones; 2: of each sixteen first 0, 4, 8, 12, then 1, 5, 9, 13 and so on.
  int order;

  // Values of x_sums per row and unit.
  int sums() const {
    return bias_group ? kUnitColumns / bias_group : offset ? kUnitColumns / offset_group : 0;
  }
};

// A weight matrix as stored.
struct PackedRows {
  WeightType type;
  const uint8_t* data;
  int64_t row_bytes;
  int64_t rows, cols;
  const uint8_t *scales, *biases;  // affine: one per group and row
  int64_t scale_row_bytes;
  int bits, group;
  WeightType scale_type;
};

// Where bytes lie that will be read soon: a call prefetches as many from there as it reads. Null:
// none.
struct Next {
  const uint8_t *data, *scales, *biases;
};

// A unit of a panel. Everything 64-byte aligned.
struct IntPanel {
  int16_t* values;  // words: [columns / 2, panel_rows, 2]; bytes: [columns / 4, panel_rows, 4]
  float* scales;    // [columns / group, panel_rows]
  float* biases;    // [columns / bias_group, panel_rows]
};

// The activations of one unit: row r at x + r * kUnitColumns and so on.
struct IntUnit {
  IntPanel panel;
  IntFormat format;
  int columns;            // a multiple of format.group
  const int16_t* x;       // [n, kUnitColumns]; bytes: [n, 2, kUnitColumns]
  const float* x_scales;  // [n, kUnitColumns / kScaleColumns]
  const float* x_sums;    // [n, kUnitColumns / bias_group]: sums of what x stands for
  float* acc;             // [n, panel_rows]
  int n;
};

struct FloatUnit {
  const float* panel;  // [columns, panel_rows]
  int columns;
  const float* x;  // [n, kFloatColumns]
  float* acc;      // [n, panel_rows]
  int n;
};

struct MatmulKernels {
  int panel_rows;
  bool bytes;         // the layout for codes that fit
  bool signed_codes;  // bytes: as int8
  // Unpacks columns [col, col + columns) of panel_rows rows from `row` on, all of which are there.
  void (*unpack)(const PackedRows& w, const IntFormat& format, int64_t row, int64_t col,
                 int columns, Next next, const IntPanel& panel);
  void (*unpack_float)(const PackedRows& w, int64_t row, int64_t col, int columns, Next next,
                       float* panel);
  void (*multiply)(const IntUnit& unit);
  void (*multiply_float)(const FloatUnit& unit);
  // Both in one for a whole panel of rows, n <= kDirectRows. `first` is the first unit, the others
  // follow it; of its panel only scales and biases are there, as scratch memory. acc is only
  // written.
  void (*direct)(const PackedRows& w, int64_t row, Next next, const IntUnit& first);
  void (*direct_float)(const PackedRows& w, int64_t row, Next next, const FloatUnit& first);
  // Quantizes `columns` <= kUnitColumns values, zeros up to kUnitColumns. Returns whether all are
  // finite (if not, the outputs are of no use).
  bool (*quantize)(const float* x, int columns, const IntFormat& format, int16_t* q, float* scales,
                   float* sums);
};

#if defined(__x86_64__)
extern const MatmulKernels kAvx2Matmul;
extern const MatmulKernels kAvx512Matmul;
MatmulKernels amx_matmul();
#elif defined(__aarch64__)
extern const MatmulKernels kNeonMatmul;
extern const MatmulKernels kDotprodMatmul;
extern const MatmulKernels kI8mmMatmul;
#endif

}  // namespace speech::cpu
