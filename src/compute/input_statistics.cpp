#include "compute/input_statistics.h"

#include "base/error.h"

namespace speech {
namespace {

// Rows that are worth a product of their own.
constexpr int64_t kRows = 64;

}  // namespace

InputStatistics::InputStatistics(int64_t cols)
    : cols_(cols), gram_(static_cast<size_t>(cols * cols)) {}

void InputStatistics::add(Backend& backend, const Tensor& x) {
  if (x.cols() != cols_) {
    fail(Status::internal, "input statistics of {} columns, but x is {}", cols_, x.shape_text());
  }
  const size_t had = waiting_.size();
  waiting_.resize(had + static_cast<size_t>(x.size()));
  backend.read(x, std::span(waiting_).subspan(had));
  if (static_cast<int64_t>(waiting_.size()) >= kRows * cols_) finish(backend);
}

void InputStatistics::finish(Backend& backend) {
  const int64_t n = static_cast<int64_t>(waiting_.size()) / cols_;
  if (n == 0) return;
  std::vector<float> across(waiting_.size());  // [cols, n]
  const Tensor columns = TensorAccess::make(across.data(), {cols_, n});
  backend.transpose(columns, TensorAccess::make(waiting_.data(), {n, cols_}));
  Weight w;
  w.rows = cols_;
  w.cols = n;
  w.data = reinterpret_cast<const std::byte*>(across.data());
  w.row_bytes = n * static_cast<int64_t>(sizeof(float));
  const Tensor sum = TensorAccess::make(gram_.data(), {cols_, cols_});
  backend.matmul(sum, columns, w, {.add = sum});
  rows_ += n;
  waiting_.clear();
}

}  // namespace speech
