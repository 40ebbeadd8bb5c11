// The matrix product of the CPU backend: out = epilogue(x w^T) for every weight type.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "compute/backend.h"
#include "compute/cpu/isa.h"
#include "compute/cpu/scratch.h"

namespace speech::cpu {

// Shapes have been checked. Strides are in values; pointers have any alignment of a float; `add`
// may be `out` itself (same stride), nothing else overlaps.
struct MatmulArgs {
  Isa isa = Isa::scalar;
  bool exact = false;    // quantized weights decoded and multiplied in f32
  float* out = nullptr;  // [n, w.rows]
  int64_t out_stride = 0;
  const float* x = nullptr;  // [n, w.cols]; rows may overlap
  int64_t x_stride = 0;
  int64_t n = 0;
  Weight w;

  // Epilogue, in this order; null: left out.
  const float* bias = nullptr;  // [w.rows]
  Activation activation = Activation::none;
  const float* multiply = nullptr;  // [n, w.rows]
  int64_t multiply_stride = 0;
  float scale = 1.0f;
  const float* add = nullptr;  // [n, w.rows]
  int64_t add_stride = 0;
};

// Several products of one x: isa, exact, x, x_stride and n are the same in all. `multiply` may be
// the `out` of an earlier one with as many rows of weights.
void matmul(std::span<const MatmulArgs> products, ThreadPool& pool, Scratch& scratch);

}  // namespace speech::cpu
