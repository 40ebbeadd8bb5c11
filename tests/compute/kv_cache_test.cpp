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

// The values of a layer's keys or values, [positions, heads, d].
std::vector<float> floats(const KvRows& rows) {
  std::vector<float> out;
  for (int64_t position = rows.first; position < rows.first + rows.rows; ++position) {
    const std::byte* block = rows.blocks[position / kKvBlock] + rows.offset;
    int64_t i = position % kKvBlock;
    for (int64_t head = 0; head < rows.heads; ++head) {
      for (int64_t c = 0; c < rows.d; ++c) {
        int64_t at = rows.side == KvSide::keys ? (head * rows.d + c) * kKvBlock + i
                                               : (head * kKvBlock + i) * rows.d + c;
        out.push_back(rows.type == KvType::f16
                          ? f16_to_f32(reinterpret_cast<const uint16_t*>(block)[at])
                          : reinterpret_cast<const float*>(block)[at]);
      }
    }
  }
  return out;
}
std::vector<float> first_rows(std::vector<float> values, int64_t rows) {
  values.resize(static_cast<size_t>(rows * kHeads * kWidth));
  return values;
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
    EXPECT_EQ(floats(cache.keys(l)), all[i]);
    EXPECT_EQ(floats(cache.values(l)), all[i + 1]);
  }
  // Rows read back from blocks are the same again.
  KvCache restored(2, kHeads, kWidth, GetParam());
  append(*backend_, restored, 5, 1);
  std::vector<std::byte> blocks;
  for (int64_t b = 0; b < KvCache::blocks_of(100); ++b) {
    blocks.insert(blocks.end(), cache.block(b).begin(), cache.block(b).end());
  }
  restored.restore(100, blocks);
  for (int l : {0, 1}) {
    auto i = static_cast<size_t>(2 * l);
    EXPECT_EQ(floats(restored.keys(l)), first_rows(all[i], 100));
    EXPECT_EQ(floats(restored.values(l)), first_rows(all[i + 1], 100));
  }
  cache.truncate(7);
  EXPECT_EQ(floats(cache.keys(0)), first_rows(all[0], 7));
  EXPECT_THROW(cache.truncate(8), Error);
  EXPECT_THROW(cache.prefix(8), Error);
  EXPECT_THROW(restored.restore(129, blocks), Error);
  EXPECT_THROW(cache.keys(0, 1000), Error);
}

// A prefix shares memory, and neither cache sees what is written to the other.
TEST_P(KvCacheTest, PrefixesShareBlocksUntilTheyAreWritten) {
  KvCache cache(2, kHeads, kWidth, GetParam());
  append(*backend_, cache, 200, 1);
  std::vector<float> keys = floats(cache.keys(1)), values = floats(cache.values(1));
  for (int64_t positions : {64, 100, 200}) {
    KvCache part = cache.prefix(positions);
    EXPECT_EQ(part.block(0).data(), cache.block(0).data());
    EXPECT_EQ(floats(part.keys(1)), first_rows(keys, positions));
    append(*backend_, part, 90, 2);
    EXPECT_EQ(part.block(0).data(), cache.block(0).data());
    EXPECT_EQ(first_rows(floats(part.keys(1)), positions), first_rows(keys, positions));
    EXPECT_EQ(floats(cache.keys(1)), keys);
    EXPECT_EQ(floats(cache.values(1)), values);
  }
  // The other way round: the first cache forgets and goes on in blocks that a prefix holds.
  KvCache part = cache.prefix(150);
  cache.truncate(70);
  append(*backend_, cache, 100, 3);
  EXPECT_EQ(floats(part.keys(1)), first_rows(keys, 150));
  EXPECT_EQ(floats(part.values(1)), first_rows(values, 150));
  EXPECT_EQ(first_rows(floats(cache.values(1)), 70), first_rows(values, 70));
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
      AttentionSequence all{queries, cache.keys(1), cache.values(1), 150 - queries};
      backend->cached_attention(TensorAccess::make(out.data(), {queries, 6, kWidth}), qt, {&all, 1},
                                0.2f, mask);
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
  AttentionSequence mixed{1, full.keys(0, 1), half.values(0, 1), 0};
  EXPECT_THROW(backend->cached_attention(t, t, {&mixed, 1}, 1, {}), Error);
  EXPECT_THROW(backend->store(half.key_rows(0, 2), t), Error);
}

TEST(KvCache, TypesHaveNames) {
  EXPECT_EQ(kv_type("f16"), KvType::f16);
  EXPECT_EQ(kv_type("f32"), KvType::f32);
  EXPECT_THROW(kv_type("q8_0"), Error);
}

}  // namespace
}  // namespace speech
