#include "compute/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "compute/backend.h"
#include "quant/half.h"

namespace speech {
namespace {

constexpr int64_t kHeads = 2, kWidth = 24;

// `count` rows of random values appended to layer 0 and 1; what was written, in order k0 v0 k1 v1.
std::vector<std::vector<float>> append(Backend& backend, KvCache& cache, int64_t count,
                                       uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> written;
  cache.reserve(count);
  for (int l = 0; l < cache.layers(); ++l) {
    for (const KvRows& rows : {cache.key_rows(l, count), cache.value_rows(l, count)}) {
      written.emplace_back(static_cast<size_t>(count * kHeads * kWidth));
      for (float& v : written.back()) v = normal(random);
      backend.store(rows, TensorAccess::make(written.back().data(), {count, kHeads, kWidth}));
    }
  }
  cache.advance(count);
  return written;
}

std::vector<float> floats(std::span<const std::byte> raw, KvType type) {
  std::vector<float> out(raw.size() / (type == KvType::f16 ? 2 : 4));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    if (type == KvType::f16) {
      std::memcpy(&half, raw.data() + 2 * i, 2);
      out[i] = f16_to_f32(half);
    } else {
      std::memcpy(&out[i], raw.data() + 4 * i, 4);
    }
  }
  return out;
}

class KvCacheTest : public ::testing::TestWithParam<KvType> {
 protected:
  float expected(float value) const {
    return GetParam() == KvType::f16 ? f16_to_f32(f32_to_f16(value)) : value;
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_P(KvCacheTest, GrowsAndKeepsWhatWasWritten) {
  KvCache cache(2, kHeads, kWidth, GetParam());
  EXPECT_EQ(cache.bytes(), 0u);
  std::vector<std::vector<float>> all(4);
  for (int64_t count : {1, 3, 100, 1, 200}) {
    auto written = append(*backend_, cache, count, static_cast<uint32_t>(count));
    for (size_t i = 0; i < 4; ++i) {
      all[i].insert(all[i].end(), written[i].begin(), written[i].end());
    }
  }
  ASSERT_EQ(cache.positions(), 305);
  for (auto& side : all) {
    for (float& v : side) v = expected(v);
  }
  for (int l : {0, 1}) {
    auto i = static_cast<size_t>(2 * l);
    EXPECT_EQ(floats(cache.raw_keys(l), GetParam()), all[i]);
    EXPECT_EQ(floats(cache.raw_values(l), GetParam()), all[i + 1]);
  }
  // A prefix is a cache of its own; rows read back are the same again.
  KvCache part = cache.prefix(100);
  KvCache restored(2, kHeads, kWidth, GetParam());
  std::vector<std::span<const std::byte>> keys, values;
  for (int l : {0, 1}) {
    keys.push_back(part.raw_keys(l));
    values.push_back(part.raw_values(l));
  }
  restored.restore(100, keys, values);
  for (int l : {0, 1}) {
    auto whole = cache.raw_keys(l);
    EXPECT_TRUE(std::ranges::equal(part.raw_keys(l), whole.first(100 * cache.row_bytes())));
    EXPECT_TRUE(std::ranges::equal(restored.raw_values(l), part.raw_values(l)));
  }
  cache.truncate(7);
  EXPECT_EQ(cache.raw_keys(0).size(), 7 * cache.row_bytes());
  EXPECT_THROW(cache.truncate(8), Error);
  EXPECT_THROW(cache.prefix(8), Error);
  EXPECT_THROW(restored.restore(99, keys, values), Error);
}

TEST_P(KvCacheTest, AttentionReadsItsValues) {
  KvCache cache(2, kHeads, kWidth, GetParam());
  auto written = append(*backend_, cache, 150, 3);
  for (auto& side : written) {
    for (float& v : side) v = expected(v);
  }
  Tensor k = TensorAccess::make(written[2].data(), {150, kHeads, kWidth});
  Tensor v = TensorAccess::make(written[3].data(), {150, kHeads, kWidth});
  for (int64_t queries : {1, 2, 70}) {
    std::vector<float> q(static_cast<size_t>(queries * 6 * kWidth)), out(q.size()), same(q.size());
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    Tensor qt = TensorAccess::make(q.data(), {queries, 6, kWidth});
    AttentionMask mask{.causal = true, .query_offset = 150 - queries};
    for (int threads : {1, 3}) {
      auto backend = make_cpu_backend(threads);
      backend->attention(TensorAccess::make(out.data(), {queries, 6, kWidth}), qt, cache.keys(1),
                         cache.values(1), 0.2f, mask);
      backend->attention(TensorAccess::make(same.data(), {queries, 6, kWidth}), qt, k, v, 0.2f,
                         mask);
      EXPECT_EQ(std::memcmp(out.data(), same.data(), out.size() * sizeof(float)), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvCacheTest, ::testing::Values(KvType::f32, KvType::f16),
                         [](const auto& info) { return kv_type_name(info.param); });

TEST(KvCache, HalvesTakeHalfTheMemory) {
  KvCache full(3, kHeads, kWidth), half(3, kHeads, kWidth, KvType::f16);
  full.reserve(1000);
  half.reserve(1000);
  EXPECT_EQ(full.bytes(), 2 * half.bytes());
  auto backend = make_cpu_backend(1);
  std::vector<float> q(kHeads * kWidth);
  Tensor t = TensorAccess::make(q.data(), {1, kHeads, kWidth});
  EXPECT_THROW(backend->attention(t, t, full.keys(0, 1), half.values(0, 1), 1, {}), Error);
  EXPECT_THROW(backend->store(half.key_rows(0, 2), t), Error);
}

TEST(KvCache, TypesHaveNames) {
  EXPECT_EQ(kv_type("f16"), KvType::f16);
  EXPECT_EQ(kv_type("f32"), KvType::f32);
  EXPECT_THROW(kv_type("q8_0"), Error);
}

}  // namespace
}  // namespace speech
