#include "quant/input_metric.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/k_fit.h"
#include "quant/rows.h"

namespace speech {
namespace {

using quant::Grid;
using quant::Lanes;

constexpr float kDamping = 0.05f;  // of the mean of the diagonal (docs/calibration.md)
constexpr int kSweeps = 8;

struct Format {
  Grid (*grid)(const std::byte* block);
  void (*put_codes)(const int8_t* codes, std::byte* block);
};

Format format_of(WeightType type) {
  switch (type) {
    case WeightType::q8_0:
      return {quant::grid_q8_0, quant::put_codes_q8_0};
    case WeightType::q6_k:
      return {quant::grid_q6_k, quant::put_codes_q6_k};
    case WeightType::q5_k:
      return {quant::grid_q5_k, quant::put_codes_q5_k};
    case WeightType::q4_k:
      return {quant::grid_q4_k, quant::put_codes_q4_k};
    default:
      fail(Status::internal, "weights of {} have no codes to choose", facts(type).name);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  Lanes sums[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int k = 0; k < 4; ++k) {
      sums[k] += quant::load(a + i + 4 * k) * quant::load(b + i + 4 * k);
    }
  }
  float sum = quant::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y += a * x
void add(float* y, float a, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// Nearest code; whatever is no number gets the lowest.
float nearest(float value, float low, float top) {
  return std::rint(value > low ? (value < top ? value : top) : low);
}

// A row on its way: the codes of [cols] values and the grid they lie on.
struct Row {
  std::vector<float> code, scale, minimum;
  std::vector<float> pull;  // what errors so far ask of each column

  explicit Row(size_t cols) : code(cols), scale(cols), minimum(cols), pull(cols) {}
  float value(size_t j) const { return scale[j] * code[j] - minimum[j]; }
};

}  // namespace

InputMetric::InputMetric(std::span<const float> gram, int64_t cols, ThreadPool& pool)
    : cols_(cols), gram_(gram.begin(), gram.end()), importance_(static_cast<size_t>(cols)) {
  const auto n = static_cast<size_t>(cols);
  double sum = 0;
  for (size_t j = 0; j < n; ++j) sum += gram_[j * n + j];
  // Inputs that were all zero say nothing: every column counts alike.
  const float raise = sum > 0 ? kDamping * static_cast<float>(sum / static_cast<double>(n)) : 1.0f;
  for (size_t j = 0; j < n; ++j) importance_[j] = gram_[j * n + j] += raise;
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(order_, {},
                           [&](int32_t j) { return importance_[static_cast<size_t>(j)]; });
  factor(pool);
}

void InputMetric::factor(ThreadPool& pool) {
  lower_.resize(gram_.size());
  const int64_t n = cols_;
  const float least = 0.1f * kDamping * *std::ranges::min_element(importance_);
  // Columns [begin, end) of row i, once the rows up to `end` have them.
  const auto row = [&](int64_t i, int64_t begin, int64_t end) {
    float* out = &lower_[static_cast<size_t>(i * n)];
    const float* products = &gram_[static_cast<size_t>(order_[static_cast<size_t>(i)] * n)];
    for (int64_t j = begin; j < end; ++j) {
      const float* other = &lower_[static_cast<size_t>(j * n)];
      const float rest = products[order_[static_cast<size_t>(j)]] - dot(out, other, j);
      out[j] = i == j ? std::sqrt(rest > least ? rest : least) : rest / other[j];
    }
  };
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) row(i, begin, i + 1);
    pool.run(n - end, [&](int64_t i, int) { row(end + i, begin, end); });
  }
}

void InputMetric::encode_rows(WeightType type, const float* src, std::byte* dst,
                              int64_t count) const {
  const Format format = format_of(type);
  const auto n = static_cast<size_t>(cols_), block = static_cast<size_t>(facts(type).block);
  const int64_t block_bytes = facts(type).block_bytes, stride = row_bytes(type, cols_);
  std::vector<Row> rows(static_cast<size_t>(count), Row(n));
  float low = 0, top = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::byte* at = dst + static_cast<int64_t>(r) * stride;
    encode_row(type, src + r * n, at, cols_, importance_.data());
    for (size_t j = 0; j < n; j += block, at += block_bytes) {
      const Grid grid = format.grid(at);
      low = grid.low, top = grid.top;
      for (size_t i = 0; i < block; ++i) {
        rows[r].scale[j + i] = grid.scales[i / static_cast<size_t>(grid.group)];
        rows[r].minimum[j + i] = grid.minima[i / static_cast<size_t>(grid.group)];
      }
    }
  }
  // |L^T e|^2 = e^T G e, and value i of L^T e is made of the errors from i on: from the last one
  // back, each code is chosen for what those behind it have left. pull[i]: what they add there.
  for (size_t i = n; i-- > 0;) {
    const float* line = &lower_[i * n];
    const auto j = static_cast<size_t>(order_[i]);
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      const float w = src[r * n + j], s = row.scale[j];  // 0: any code gives the same value
      if (s != 0) {
        row.code[j] = nearest((w + row.pull[i] / line[i] + row.minimum[j]) / s, low, top);
      }
      add(row.pull.data(), w - row.value(j), line, static_cast<int64_t>(i));
    }
  }
  // From here on pull = G e.
  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = rows[r];
    std::fill(row.pull.begin(), row.pull.end(), 0.0f);
    for (size_t j = 0; j < n; ++j) {
      add(row.pull.data(), src[r * n + j] - row.value(j), &gram_[j * n], cols_);
    }
  }
  bool changed = true;
  for (int sweep = 0; sweep < kSweeps && changed; ++sweep) {
    changed = false;
    for (size_t j = 0; j < n; ++j) {
      const float* line = &gram_[j * n];
      for (Row& row : rows) {
        const float s = row.scale[j];
        if (s == 0) continue;
        const float code = nearest(row.code[j] + row.pull[j] / (line[j] * s), low, top);
        if (code == row.code[j]) continue;
        add(row.pull.data(), s * (row.code[j] - code), line, cols_);
        row.code[j] = code;
        changed = true;
      }
    }
  }
  std::vector<int8_t> codes(n);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::byte* at = dst + static_cast<int64_t>(r) * stride;
    for (size_t j = 0; j < n; ++j) codes[j] = static_cast<int8_t>(rows[r].code[j]);
    for (size_t j = 0; j < n; j += block, at += block_bytes) format.put_codes(&codes[j], at);
  }
}

}  // namespace speech
