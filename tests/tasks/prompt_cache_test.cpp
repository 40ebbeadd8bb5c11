// Where a prompt's keys and values come from, and that keeping them costs no copy.
#include "tasks/prompt_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "models/qwen3/model.h"
#include "tasks/generation.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;

// Nothing can copy a cache but prefix().
static_assert(!std::is_copy_constructible_v<KvCache> && !std::is_copy_assignable_v<KvCache>);

class PromptCacheTest : public ::testing::Test {
 protected:
  PromptCacheTest() {
    std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
    model_ = qwen3::load_folder_model(path, open_tensor_file(path), {.threads = 2});
  }

  static std::vector<int32_t> ids(int first, int count) {
    std::vector<int32_t> list(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) list[static_cast<size_t>(i)] = (first + i * 37) % 570;
    return list;
  }
  static std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  KvCache computed(std::span<const int32_t> list) {
    KvCache cache = model_->new_cache();
    LanguageModel::Input input{&cache, list};
    model_->step({&input, 1});
    return cache;
  }
  // Logits behind `list` when its first positions are in `cache`.
  std::vector<float> logits(KvCache& cache, std::span<const int32_t> list) {
    LanguageModel::Input input{&cache, list.subspan(static_cast<size_t>(cache.positions()))};
    return model_->step({&input, 1})[0];
  }

  std::unique_ptr<LanguageModel> model_;
};

TEST_F(PromptCacheTest, ASequenceThatIsContinuedMovesInAndOut) {
  PromptCache cache(*model_, {});
  std::vector<int32_t> turn = ids(1, 40), next = joined(turn, ids(2, 9));
  KvCache kv = computed(turn);
  const void* memory = kv.block(0).data();
  cache.store(turn, std::move(kv));
  auto found = cache.find(next);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->positions(), 40);
  EXPECT_EQ(found->block(0).data(), memory) << "the same memory, not a copy";
  EXPECT_FALSE(cache.find(next)) << "it is with who continues it";
  KvCache none = model_->new_cache();
  EXPECT_EQ(logits(*found, next), logits(none, next));
}

TEST_F(PromptCacheTest, ASharedPartIsFoundAndNoMore) {
  PromptCache cache(*model_, {});
  std::vector<int32_t> first = ids(1, 300), other = joined(ids(1, 25), ids(3, 10));
  KvCache kv = computed(first);
  const void* memory = kv.block(0).data();
  size_t whole = kv.bytes();
  cache.store(first, std::move(kv));
  auto found = cache.find(other);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->positions(), 25);
  EXPECT_EQ(found->block(0).data(), memory) << "shared until it is written to";
  EXPECT_LT(found->bytes(), whole / 2);
  KvCache none = model_->new_cache();
  EXPECT_EQ(logits(*found, other), logits(none, other));
  EXPECT_NE(found->block(0).data(), memory);
  // The entry is still there, also for its own prompt, whose last position has to be computed.
  EXPECT_EQ(cache.find(first)->positions(), 299);
  EXPECT_FALSE(cache.find(first, 299)) << "nothing longer than what is known already";
}

TEST_F(PromptCacheTest, TheLeastRecentlyUsedGoesFirst) {
  PromptCache cache(*model_, {.entries = 2});
  for (int i = 1; i <= 2; ++i) cache.store(ids(i, 20), computed(ids(i, 20)));
  EXPECT_TRUE(cache.find(ids(1, 20)));
  cache.store(ids(3, 20), computed(ids(3, 20)));
  EXPECT_TRUE(cache.find(ids(1, 20)));
  EXPECT_FALSE(cache.find(ids(2, 20)));
  // Bytes are a limit too, and what continues an entry replaces it.
  PromptCache small(*model_, {.bytes = 1});
  small.store(ids(1, 20), computed(ids(1, 20)));
  EXPECT_FALSE(small.find(ids(1, 20)));
  PromptCache growing(*model_, {.entries = 2});
  growing.store(ids(2, 20), computed(ids(2, 20)));
  for (int n : {10, 20, 30}) growing.store(ids(1, n), computed(ids(1, n)));
  EXPECT_TRUE(growing.find(ids(2, 20)));
  EXPECT_EQ(growing.find(ids(1, 30))->positions(), 29);
}

TEST_F(PromptCacheTest, FilesOutliveTheProcess) {
  std::string name = (fs::temp_directory_path() / "speech-cache-XXXXXX").string();
  std::string folder = ::mkdtemp(name.data());
  std::vector<int32_t> prompt = ids(1, 40), next = joined(ids(1, 30), ids(5, 9));
  KvCache kv = computed(prompt);
  {
    PromptCache cache(*model_, {}, folder);
    cache.write(ids(1, 8), kv);  // too short to be worth a file
    EXPECT_TRUE(fs::is_empty(folder));
    cache.write(prompt, kv);
  }
  PromptCache cache(*model_, {}, folder);
  auto found = cache.find(next);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->positions(), 30);
  KvCache none = model_->new_cache();
  EXPECT_EQ(logits(*found, next), logits(none, next));
  EXPECT_FALSE(cache.find(next, 30));

  // Keys and values in f16 are another model's, and have files of their own.
  std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
  model_ = qwen3::load_folder_model(path, open_tensor_file(path),
                                    {.threads = 2, .kv_cache = KvType::f16});
  PromptCache half(*model_, {}, folder);
  EXPECT_FALSE(half.find(next));
  half.write(prompt, computed(prompt));
  PromptCache again(*model_, {}, folder);
  found = again.find(next);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type(), KvType::f16);
  none = model_->new_cache();
  EXPECT_EQ(logits(*found, next), logits(none, next));
  fs::remove_all(folder);
}

TEST_F(PromptCacheTest, AnotherSequenceUnderWaySharesItsPrompt) {
  std::vector<int32_t> prompt = ids(1, 200);
  GenerationRequest request{.prompt = prompt, .max_tokens = 12, .ignore_eos = true};
  GenerationResult alone = Generator(*model_, {}).run(request);
  PromptCache cache(*model_, {});
  Generator generator(*model_, {}, &cache);
  auto first = generator.add(request);
  generator.step();
  generator.step();
  ASSERT_FALSE(first->done());
  auto second = generator.add(request);
  while (generator.step()) {
  }
  EXPECT_EQ(first->result().cached_tokens, 0);
  EXPECT_EQ(second->result().cached_tokens, 199);
  for (const auto& g : {first, second}) EXPECT_EQ(g->result().text, alone.text);
}

}  // namespace
}  // namespace speech
