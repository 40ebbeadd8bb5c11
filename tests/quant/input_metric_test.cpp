#include "quant/input_metric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "quant/codec.h"

namespace speech {
namespace {

constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q6_k, WeightType::q5_k,
                                 WeightType::q4_k};

std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  std::vector<float> out(count);
  for (float& v : out) v = values(random);
  return out;
}

// G of inputs in which a few hidden causes move all columns, and each column a little by itself.
std::vector<float> correlated_gram(int64_t cols) {
  const size_t n = static_cast<size_t>(cols), causes = n / 8, inputs = 4 * n;
  const auto mix = normal(causes * n, 1), hidden = normal(inputs * causes, 2),
             own = normal(inputs * n, 3);
  std::vector<double> sum(n * n);
  for (size_t i = 0; i < inputs; ++i) {
    std::vector<double> x(n);
    for (size_t j = 0; j < n; ++j) {
      x[j] = 0.5 * own[i * n + j];
      for (size_t c = 0; c < causes; ++c) x[j] += hidden[i * causes + c] * mix[c * n + j];
    }
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) sum[a * n + b] += x[a] * x[b];
    }
  }
  return {sum.begin(), sum.end()};
}

// Sum over the rows of e^T G e, e = src - stored.
double error(WeightType type, const std::vector<float>& src, const std::vector<std::byte>& stored,
             int64_t cols, const std::vector<float>& gram) {
  const auto n = static_cast<size_t>(cols);
  const auto stride = static_cast<size_t>(row_bytes(type, cols));
  double total = 0;
  std::vector<float> values(n);
  for (size_t r = 0; r * n < src.size(); ++r) {
    decode_row(type, stored.data() + r * stride, values.data(), cols);
    for (size_t a = 0; a < n; ++a) {
      double pull = 0;
      for (size_t b = 0; b < n; ++b) {
        pull += static_cast<double>(gram[a * n + b]) * (src[r * n + b] - values[b]);
      }
      total += pull * (src[r * n + a] - values[a]);
    }
  }
  return total;
}

std::vector<std::byte> plain(WeightType type, const std::vector<float>& src, int64_t cols) {
  const int64_t rows = static_cast<int64_t>(src.size()) / cols, stride = row_bytes(type, cols);
  std::vector<std::byte> out(static_cast<size_t>(rows * stride));
  for (int64_t r = 0; r < rows; ++r) {
    encode_row(type, src.data() + r * cols, out.data() + r * stride, cols);
  }
  return out;
}

std::vector<std::byte> by_metric(WeightType type, const std::vector<float>& src, int64_t cols,
                                 const InputMetric& metric, int64_t together = 8) {
  const int64_t rows = static_cast<int64_t>(src.size()) / cols, stride = row_bytes(type, cols);
  std::vector<std::byte> out(static_cast<size_t>(rows * stride));
  for (int64_t r = 0; r < rows; r += together) {
    metric.encode_rows(type, src.data() + r * cols, out.data() + r * stride,
                       std::min(together, rows - r));
  }
  return out;
}

TEST(InputMetric, ErrorsOfColumnsThatGoTogetherCancel) {
  const int64_t cols = 512;
  const auto gram = correlated_gram(cols), src = normal(10 * cols, 4);
  ThreadPool pool(2);
  const InputMetric metric(gram, cols, pool);
  for (WeightType type : kTypes) {
    // Plain rounding makes errors of all directions alike; an eighth of them carries nearly all of
    // the inputs here, and there is room in the others.
    EXPECT_LT(error(type, src, by_metric(type, src, cols, metric), cols, gram),
              0.3 * error(type, src, plain(type, src, cols), cols, gram))
        << facts(type).name;
  }
}

TEST(InputMetric, ColumnsThatDoNotGoTogetherGetTheirNearestCodes) {
  const int64_t cols = 256;
  std::vector<float> gram(static_cast<size_t>(cols * cols));
  for (size_t j = 0; j < 256; ++j) gram[j * 256 + j] = 3;
  const std::vector<float> zero(gram.size());
  const auto src = normal(4 * cols, 5);
  ThreadPool pool(1);
  for (WeightType type : kTypes) {
    const double nearest = error(type, src, plain(type, src, cols), cols, gram);
    for (const auto& inputs : {gram, zero}) {
      const InputMetric metric(inputs, cols, pool);
      // q8_0 is stored with codes for its scale before rounding, as ggml does.
      EXPECT_NEAR(error(type, src, by_metric(type, src, cols, metric), cols, gram) / nearest, 1,
                  3e-3)
          << facts(type).name;
    }
  }
}

TEST(InputMetric, BytesDependNeitherOnThreadsNorOnTheRowsTogether) {
  const int64_t cols = 256;
  const auto gram = correlated_gram(cols), src = normal(9 * cols, 6);
  ThreadPool one(1), three(3);
  const InputMetric a(gram, cols, one), b(gram, cols, three);
  for (WeightType type : kTypes) {
    const auto bytes = by_metric(type, src, cols, a);
    EXPECT_EQ(by_metric(type, src, cols, b), bytes);
    EXPECT_EQ(by_metric(type, src, cols, a, 1), bytes);
  }
}

TEST(InputMetric, OddInputIsHarmless) {
  const int64_t cols = 256;
  auto gram = correlated_gram(cols);
  for (size_t j = 0; j < 256; ++j) gram[7 * 256 + j] = gram[j * 256 + 7] = 0;  // a dead column
  for (size_t j = 0; j < 256; ++j) gram[9 * 256 + j] = gram[8 * 256 + j];      // and a twin
  for (size_t j = 0; j < 256; ++j) gram[j * 256 + 9] = gram[j * 256 + 8];
  ThreadPool pool(1);
  const InputMetric metric(gram, cols, pool);
  auto src = normal(3 * cols, 7);
  std::fill_n(src.begin(), cols, 0.0f);
  src[300] = std::numeric_limits<float>::quiet_NaN();
  src[301] = std::numeric_limits<float>::infinity();
  for (WeightType type : kTypes) {
    const auto stored = by_metric(type, src, cols, metric);
    const auto stride = static_cast<size_t>(row_bytes(type, cols));
    std::vector<float> values(static_cast<size_t>(cols));
    decode_row(type, stored.data(), values.data(), cols);
    EXPECT_EQ(values, std::vector<float>(static_cast<size_t>(cols)));
    // The row after the one that is no row of numbers.
    const std::vector<float> last(src.begin() + 2 * cols, src.end());
    const auto alone = by_metric(type, last, cols, metric);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), stored.data() + 2 * stride));
    EXPECT_LT(error(type, last, alone, cols, gram),
              error(type, last, plain(type, last, cols), cols, gram));
  }
}

}  // namespace
}  // namespace speech
