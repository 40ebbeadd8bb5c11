#include "compute/timed_backend.h"

#include <gtest/gtest.h>

#include <vector>

namespace speech {
namespace {

struct Values {
  std::vector<float> data;
  Tensor t;
  explicit Values(std::initializer_list<int64_t> shape) {
    int64_t size = 1;
    for (int64_t dim : shape) size *= dim;
    data.assign(static_cast<size_t>(size), 0.5f);
    t = TensorAccess::make(data.data(), shape);
  }
};

Weight weight_of(const Values& values) {
  Weight w;
  w.rows = values.t.dim(0);
  w.cols = values.t.dim(1);
  w.data = reinterpret_cast<const std::byte*>(values.data.data());
  w.row_bytes = w.cols * 4;
  return w;
}

TEST(TimedBackend, ProductsCountOperationsAndBytes) {
  OpTimes times;
  auto backend = make_timed_backend(make_cpu_backend(1), times);
  Values w({5, 7}), few({3, 7}), few_out({3, 5}), many({16, 7}), many_out({16, 5});
  backend->matmul(few_out.t, few.t, weight_of(w));
  backend->matmul(few_out.t, few.t, weight_of(w));
  backend->matmul(many_out.t, many.t, weight_of(w));
  EXPECT_FLOAT_EQ(few_out.data[0], 7 * 0.25f);  // computed, not only counted
  const OpTimes::Entry &small = times.entries["matmul, few rows"], &large = times.entries["matmul"];
  EXPECT_EQ(small.calls, 2);
  EXPECT_EQ(large.calls, 1);
  EXPECT_EQ(small.operations, 2 * 2.0 * 3 * 5 * 7);
  EXPECT_EQ(large.operations, 2.0 * 16 * 5 * 7);
  EXPECT_EQ(small.bytes, 2 * 5 * 7 * 4);
  EXPECT_EQ(times.product_bytes(), 3 * 5 * 7 * 4);
  ASSERT_EQ(times.products.size(), 3u);
  EXPECT_EQ(times.products[2].rows, 16);
  EXPECT_GT(times.total(), 0);
  EXPECT_EQ(times.total(), small.seconds + large.seconds);
}

TEST(TimedBackend, AttentionCountsWhatTheMaskShows) {
  const int64_t heads = 4, kv_heads = 2, width = 16;
  const auto operations = [&](int64_t rows, int64_t keys, const AttentionMask& mask) {
    OpTimes times;
    auto backend = make_timed_backend(make_cpu_backend(1), times);
    Values q({rows, heads, width}), k({keys, kv_heads, width}), out({rows, heads, width});
    backend->attention(out.t, q.t, k.t, k.t, 1, mask);
    const double count = times.entries["attention"].operations;
    // The rows of a cache count as much.
    KvCache cache(1, kv_heads, width);
    cache.reserve(keys);
    backend->store(cache.key_rows(0, keys), k.t);
    backend->store(cache.value_rows(0, keys), k.t);
    const AttentionSequence all{rows, cache.keys(0, keys), cache.values(0, keys),
                                mask.query_offset};
    backend->cached_attention(out.t, q.t, {&all, 1}, 1, mask);
    EXPECT_EQ(times.entries["attention"].operations, 2 * count);
    return count / (4 * heads * width);
  };
  EXPECT_EQ(operations(3, 10, {}), 3 * 10);
  EXPECT_EQ(operations(3, 10, {.causal = true, .query_offset = 7}), 8 + 9 + 10);
  EXPECT_EQ(operations(3, 10, {.window_left = 2, .window_right = 1}), 3 * 4);

  OpTimes times;
  auto backend = make_timed_backend(make_cpu_backend(1), times);
  Values q({3, heads, width}), out({3, heads, width});
  KvCache first(1, kv_heads, width), second(1, kv_heads, width);
  first.reserve(5);
  second.reserve(9);
  const AttentionSequence sequences[] = {{2, first.keys(0, 5), first.values(0, 5), 3},
                                         {1, second.keys(0, 9), second.values(0, 9), 8}};
  backend->cached_attention(out.t, q.t, sequences, 1, {.causal = true});
  EXPECT_EQ(times.entries["attention"].operations, 4 * heads * width * (4.0 + 5 + 9));
}

}  // namespace
}  // namespace speech
