// Codes of a row chosen together, by what the row does to the inputs it is multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "quant/weight_type.h"

namespace speech {

// A row w that is stored as q changes a product with an input x by x . e, e = w - q; over all
// inputs that is a squared error of e^T G e, G = sum of x x^T. Where the inputs' columns go
// together (in G's off-diagonal), errors of several columns can cancel each other, which rounding
// every value to its nearest code does not use.
//
// Scales are searched with the diagonal of G as importance; then codes are chosen one after
// another, of the columns with the largest inputs first, each making up for the errors of those
// before it (error feedback as in GPTQ, Frantar et al. 2022, arXiv:2210.17323, in the form of
// Babai's nearest plane, which needs one Cholesky factor and no inverse); at last they are changed
// one by one as long as the error falls. The diagonal is raised by a part of its mean, which keeps
// errors small in directions that the inputs seen so far do not have.
class InputMetric {
 public:
  // `gram`: G [cols, cols], symmetric and finite, up to a factor. Bytes do not depend on `pool`.
  InputMetric(std::span<const float> gram, int64_t cols, ThreadPool& pool);

  // Stores rows [rows, cols] as `type` (q8_0 or a K type), each of row_bytes(type, cols).
  void encode_rows(WeightType type, const float* src, std::byte* dst, int64_t rows) const;

  // Rows that encode_rows best gets at a time: what it reads of the metric serves them all.
  static constexpr int64_t kRows = 8;

 private:
  void factor(ThreadPool& pool);

  int64_t cols_;
  std::vector<float> gram_;        // [cols, cols], the diagonal raised
  std::vector<float> importance_;  // [cols] that diagonal
  std::vector<int32_t> order_;     // [cols] the columns as codes are chosen, the first one last
  std::vector<float> lower_;       // [cols, cols] L of G = L L^T in that order; above it undefined
};

}  // namespace speech
