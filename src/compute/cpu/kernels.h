// What an instruction set provides besides the matrix product: a table of functions on plain
// pointers. Everything here may be included by files compiled with that set's flags, so it holds no
// inline code (an AVX copy of an inline function could replace the baseline one at link time).
//
// Determinism: an element's bytes depend on its inputs only, not on its place in the vector or in
// the tile: the last, partial vector of a row goes through the same instructions as the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute/activation.h"
#include "compute/cpu/isa_enum.h"

namespace speech::cpu {

// What follows a product for one row (see Epilogue in backend.h); null: left out.
struct EpilogueRow {
  const float* bias;
  const float* multiply;
  const float* add;
  Activation activation;
  float scale;
};

inline constexpr int64_t kUnlimited = int64_t{1} << 60;

// A whole attention call; a kernel computes the part that its arguments name. Query row i, head h
// starts at q + i * q_row + h * q_head; the last axis is contiguous. Strides are in values.
struct AttentionArgs {
  float* out;
  const float *q, *k, *v;
  // Blocks of a cache in the place of k and v (compute/kv_cache.h has their layout); null: those.
  // The layer's keys and values begin at these bytes of each block.
  std::byte *const *k_blocks, *const *v_blocks;
  size_t k_offset, v_offset;
  bool half;  // the blocks hold f16
  int64_t out_row, out_head, q_row, q_head, k_row, k_head, v_row, v_head;
  int64_t queries, keys;
  int64_t heads, kv_heads;
  int64_t d;
  float scale;
  // Query i stands at position i + query_offset and sees keys of position - left .. position +
  // right (either kUnlimited when there is no limit), and keys below `global`. Without relative
  // positions, rows at positions below `global` see every key.
  int64_t query_offset, left, right, global;
  // Relative positions: null p: none. Row r of p is distance p_first - r. Global keys are then a
  // set of their own, scored without u, v_bias and position, beside the window (a key may count in
  // both).
  const float *p, *u, *v_bias;
  int64_t p_row, p_head, p_first, p_last;  // p_last: the last row
  int64_t u_head, v_bias_head;
};

// A convolution over an image [h, w, in] with zeros around; strides in values.
struct ConvArgs {
  float* out;
  const float* x;
  const float* w;     // [out_channels, in_channels * kernel_h * kernel_w], or depthwise [c, kh, kw]
  float* packed;      // what pack_filters() has made of w and bias
  const float* bias;  // null: none
  int64_t h, w_in, in_channels, x_row, x_col;
  int64_t filter_channels;  // in_channels, or depthwise 1
  int64_t out_h, out_w, out_channels, out_row, out_col;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left;
  Activation activation;
};

struct Kernels {
  Isa isa;

  // ---- elementwise, in place ----
  void (*activate)(float* out, const float* x, int64_t n, Activation activation);
  void (*add)(float* out, const float* a, const float* b, float b_scale, int64_t n);
  void (*multiply)(float* out, const float* a, const float* b, int64_t n);
  void (*scale)(float* out, const float* x, float factor, int64_t n);
  void (*magnitude)(float* out, const float* re, const float* im, int64_t n);
  void (*epilogue)(float* out, const float* x, const EpilogueRow& row, int64_t n);
  void (*exp)(float* out, const float* x, int64_t n);
  // To f16, to the nearest even; beyond its range: the largest. NaN stays.
  void (*to_half)(uint16_t* out, const float* x, int64_t n);

  // ---- one row, in place; null weight or bias: left out ----
  void (*rms_norm)(float* out, const float* x, const float* weight, float eps, int64_t n);
  void (*layer_norm)(float* out, const float* x, const float* weight, const float* bias, float eps,
                     int64_t n);
  void (*softmax)(float* out, const float* x, int64_t n);
  void (*log_softmax)(float* out, const float* x, int64_t n);
  int64_t (*argmax)(const float* x, int64_t n);  // -1: a NaN among them
  // (a, b) -> (a cos - b sin, b cos + a sin) for a = x[0..half), b = x[half..2 half).
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half);
  void (*lstm_step)(float* h, float* c, const float* gates, int64_t n);

  // ---- attention: the heads of one kv head, queries [begin, end) with end - begin at most
  // attention_tile(args); scratch: attention_scratch(args) bytes, 64-byte aligned ----
  int64_t (*attention_tile)(const AttentionArgs& args);
  size_t (*attention_scratch)(const AttentionArgs& args);
  void (*attention)(const AttentionArgs& args, int64_t kv_head, int64_t begin, int64_t end,
                    void* scratch);

  // ---- convolutions: output channels [c0, c1), output rows [y0, y1), columns [x0, x1); filters
  // are packed first, into args.packed, 64-byte aligned ----
  int64_t conv_channels;  // c0 is a multiple of this
  size_t (*packed_bytes)(const ConvArgs& args);
  void (*pack_filters)(const ConvArgs& args, int64_t c0, int64_t c1);
  void (*conv2d)(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1, int64_t x0,
                 int64_t x1);
  void (*depthwise)(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1,
                    int64_t x0, int64_t x1);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

// The table of a set that the machine runs.
const Kernels& kernels(Isa isa);

}  // namespace speech::cpu
