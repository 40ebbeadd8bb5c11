#include "compute/observed_backend.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "compute/input_statistics.h"

namespace speech {
namespace {

constexpr int64_t kCols = 48, kOuts = 5;

TEST(ObservedBackend, ShowsEveryProductAndComputesIt) {
  std::vector<float> weights(static_cast<size_t>(kOuts * kCols), 0.5f), x(2 * kCols, 1.0f), out(10);
  Weight w;
  w.rows = kOuts;
  w.cols = kCols;
  w.data = reinterpret_cast<const std::byte*>(weights.data());
  w.row_bytes = kCols * 4;
  std::vector<std::pair<int64_t, const std::byte*>> seen;
  auto backend = make_observed_backend(
      make_cpu_backend(1), [&](Backend& inner, const Tensor& input, const Weight& weight) {
        EXPECT_EQ(inner.name(), "cpu");
        seen.emplace_back(input.rows(), weight.data);
      });
  backend->matmul(TensorAccess::make(out.data(), {2, kOuts}),
                  TensorAccess::make(x.data(), {2, kCols}), w);
  EXPECT_EQ(out[0], kCols * 0.5f);
  const Weight tail = w.slice_rows(3, 5);
  backend->matmul(TensorAccess::make(x.data(), {1, kCols}),
                  {{TensorAccess::make(out.data(), {1, 2}), tail},
                   {TensorAccess::make(&out[2], {1, kOuts}), w}});
  const decltype(seen) expected = {{2, w.data}, {1, tail.data}, {1, w.data}};
  EXPECT_EQ(seen, expected);
}

// Calls of many rows, of few, and rows that lie apart.
TEST(InputStatistics, AreSumsOfProductsOfColumns) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.3f, 1);
  std::vector<float> values(static_cast<size_t>(300 * kCols));
  for (float& v : values) v = normal(random);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 3}) {
    auto backend = make_cpu_backend(threads);
    InputStatistics statistics(kCols);
    std::vector<double> sum(static_cast<size_t>(kCols * kCols));
    const Tensor all = TensorAccess::make(values.data(), {300, kCols});
    int64_t rows = 0;
    const auto add = [&](const Tensor& x) {
      statistics.add(*backend, x);
      std::vector<float> copy(static_cast<size_t>(x.size()));
      backend->read(x, copy);
      for (int64_t r = 0; r < x.rows(); ++r, ++rows) {
        const float* row = copy.data() + r * kCols;
        for (int64_t a = 0; a < kCols; ++a) {
          for (int64_t b = 0; b < kCols; ++b) {
            sum[static_cast<size_t>(a * kCols + b)] += static_cast<double>(row[a]) * row[b];
          }
        }
      }
    };
    add(all.slice(0, 0, 150));
    for (int64_t r = 150; r < 160; ++r) add(all.slice(0, r, r + 1));
    add(all.reshape({100, 3 * kCols}).slice(1, kCols, 2 * kCols));
    statistics.finish(*backend);
    EXPECT_EQ(statistics.rows(), rows);
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(statistics.gram()[i], sum[i], 1e-5 * static_cast<double>(rows)) << i;
    }
    results.emplace_back(statistics.gram().begin(), statistics.gram().end());
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace speech
