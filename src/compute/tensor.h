// Tensor: a view of f32 activations. Weight: a matrix as its file stores it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "quant/weight_type.h"

namespace speech {

// A view of f32 values, up to four axes, row-major; the last axis is contiguous, the others may
// have any stride (so a slice of columns, or overlapping windows over a signal, are views too). It
// owns nothing: the memory belongs to a Workspace, a mapped file or a cache. Only a Backend reads
// or writes values (TensorAccess); model code names shapes and passes tensors to operations.
class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  Tensor() = default;

  int rank() const { return rank_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t size() const;  // product of the dims; 1 for rank 0 that is set, 0 when empty
  int64_t rows() const { return rank_ > 1 ? size() / shape_[rank_ - 1] : 1; }
  int64_t cols() const { return rank_ > 0 ? shape_[rank_ - 1] : 0; }
  bool empty() const { return data_ == nullptr; }
  bool contiguous() const;
  int64_t stride(int axis) const { return stride_[axis]; }  // in values
  std::string shape_text() const;                           // "[3, 80]"

  // The same values under another shape of the same size; the view must be contiguous.
  Tensor reshape(std::initializer_list<int64_t> shape) const;
  // Entries [begin, end) of `axis`.
  Tensor slice(int axis, int64_t begin, int64_t end) const;
  // Entry `index` of axis 0, with that axis dropped.
  Tensor operator[](int64_t index) const;
  // Rows of `width` values that start every `step` values along a one-axis contiguous view:
  // [(size - width) / step + 1, width], overlapping if step < width.
  Tensor windows(int64_t width, int64_t step) const;
  // Axes a and b exchanged; the last axis must stay where it is (a view, nothing is moved).
  Tensor swap_axes(int a, int b) const;

 private:
  friend struct TensorAccess;

  float* data_ = nullptr;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> stride_{};
};

// The door to a tensor's memory, for src/compute and for loaders that wrap mapped values. Models
// and nn never include this use.
struct TensorAccess {
  static float* data(const Tensor& t) { return t.data_; }
  static Tensor make(float* data, std::span<const int64_t> shape);  // contiguous
  static Tensor make(float* data, std::initializer_list<int64_t> shape) {
    return make(data, std::span(shape.begin(), shape.size()));
  }
};

// A weight matrix [rows, cols] as it lies in a mapped file: row r holds what multiplies the inputs
// of output r. Pointers may have any alignment.
struct Weight {
  WeightType type = WeightType::f32;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;  // rows of row_bytes each
  int64_t row_bytes = 0;
  // For affine weights: value = scale * q + bias, groups of `affine.group` columns; scales and
  // biases are [rows, cols / group] of affine.scale_type.
  AffineFormat affine;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;

  bool empty() const { return data == nullptr; }
  // Rows [begin, end): a view.
  Weight slice_rows(int64_t begin, int64_t end) const;
  // Bytes that one pass over the matrix reads.
  int64_t bytes() const;
};

}  // namespace speech
