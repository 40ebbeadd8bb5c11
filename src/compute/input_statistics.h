// What a weight matrix is multiplied with: statistics of the rows of x in x[n, k] * w[m, k]^T.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/backend.h"

namespace speech {

class InputStatistics {
 public:
  explicit InputStatistics(int64_t cols);

  // Counts the rows of x[n, cols] in; `backend` multiplies. Sums are in f32 and do not depend on
  // the number of threads.
  void add(Backend& backend, const Tensor& x);
  // Counts what add() has put by.
  void finish(Backend& backend);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // [cols, cols]: sum over the rows of x[a] * x[b]. The diagonal holds the sums of squares.
  std::span<const float> gram() const { return gram_; }

 private:
  int64_t cols_, rows_ = 0;
  std::vector<float> gram_;
  std::vector<float> waiting_;  // rows of calls that have few
};

}  // namespace speech
