#include "compute/tensor.h"

#include "base/error.h"

namespace speech {

int64_t Tensor::size() const {
  if (empty()) return 0;
  int64_t size = 1;
  for (int i = 0; i < rank_; ++i) size *= shape_[i];
  return size;
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (shape_[i] != 1 && stride_[i] != expected) return false;
    expected *= shape_[i];
  }
  return true;
}

std::string Tensor::shape_text() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(shape_[i]);
  return text + "]";
}

Tensor Tensor::reshape(std::initializer_list<int64_t> shape) const {
  Tensor t = TensorAccess::make(data_, shape);
  if (!contiguous() || t.size() != size()) {
    fail(Status::internal, "reshape: {}{} cannot become {}", shape_text(),
         contiguous() ? "" : " (not contiguous)", t.shape_text());
  }
  return t;
}

Tensor Tensor::slice(int axis, int64_t begin, int64_t end) const {
  if (axis < 0 || axis >= rank_ || begin < 0 || begin > end || end > shape_[axis]) {
    fail(Status::internal, "slice: [{}, {}) of axis {} of {}", begin, end, axis, shape_text());
  }
  Tensor t = *this;
  t.data_ += begin * stride_[axis];
  t.shape_[axis] = end - begin;
  return t;
}

Tensor Tensor::operator[](int64_t index) const {
  if (rank_ < 2 || index < 0 || index >= shape_[0]) {
    fail(Status::internal, "index {} of {}", index, shape_text());
  }
  Tensor t;
  t.data_ = data_ + index * stride_[0];
  t.rank_ = rank_ - 1;
  for (int i = 0; i < t.rank_; ++i) {
    t.shape_[i] = shape_[i + 1];
    t.stride_[i] = stride_[i + 1];
  }
  return t;
}

Tensor Tensor::windows(int64_t width, int64_t step) const {
  if (rank_ != 1 || width < 1 || step < 1 || width > shape_[0]) {
    fail(Status::internal, "windows: width {} step {} of {}", width, step, shape_text());
  }
  Tensor t = TensorAccess::make(data_, {(shape_[0] - width) / step + 1, width});
  t.stride_[0] = step;
  return t;
}

Tensor Tensor::swap_axes(int a, int b) const {
  if (a < 0 || b < 0 || a >= rank_ - 1 || b >= rank_ - 1) {
    fail(Status::internal, "swap_axes: {} and {} of {} (the last axis stays)", a, b, shape_text());
  }
  Tensor t = *this;
  std::swap(t.shape_[a], t.shape_[b]);
  std::swap(t.stride_[a], t.stride_[b]);
  return t;
}

Tensor TensorAccess::make(float* data, std::span<const int64_t> shape) {
  if (shape.empty() || shape.size() > Tensor::kMaxRank) {
    fail(Status::internal, "tensor of {} axes: expected 1 to {}", shape.size(), Tensor::kMaxRank);
  }
  Tensor t;
  t.data_ = data;
  t.rank_ = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int i = t.rank_ - 1; i >= 0; --i) {
    t.shape_[i] = shape[i];
    t.stride_[i] = stride;
    if (shape[i] < 0 || __builtin_mul_overflow(stride, shape[i], &stride)) {
      fail(Status::internal, "tensor with a negative or too large axis {}", shape[i]);
    }
  }
  return t;
}

Weight Weight::slice_rows(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > rows) {
    fail(Status::internal, "slice_rows: [{}, {}) of {} rows", begin, end, rows);
  }
  Weight w = *this;
  w.rows = end - begin;
  w.data = data + begin * row_bytes;
  if (type == WeightType::affine && scales) {
    int64_t scale_row = cols / affine.group * (affine.scale_type == WeightType::f32 ? 4 : 2);
    w.scales = scales + begin * scale_row;
    w.biases = biases + begin * scale_row;
  }
  return w;
}

int64_t Weight::bytes() const {
  int64_t bytes = rows * row_bytes;
  if (type == WeightType::affine && affine.group > 0) {
    bytes += 2 * rows * (cols / affine.group) * (affine.scale_type == WeightType::f32 ? 4 : 2);
  }
  return bytes;
}

}  // namespace speech
