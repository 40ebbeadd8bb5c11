#include "tasks/grammar_cache.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "test_data.h"
#include "text/bpe.h"

namespace speech {
namespace {

std::shared_ptr<const TokenTrie> tokens() {
  static const auto trie = std::make_shared<const TokenTrie>(
      BpeTokenizer::load(testing::data_path("qwen3/dense-tied/checkpoint")),
      std::vector<int32_t>{578, 576}, 608);
  return trie;
}

std::string word(char c) {
  return std::string("root ::= \"") + c + "\"";
}

TEST(GrammarCache, ATextIsCompiledOnce) {
  GrammarCache cache(tokens());
  auto first = cache.from_text(word('a'));
  EXPECT_EQ(cache.from_text(word('a')), first);
  EXPECT_NE(cache.from_text(word('b')), first);
  EXPECT_EQ(cache.json_object(), cache.json_object());
  std::string schema = R"({"type":"boolean"})";
  EXPECT_EQ(cache.from_json_schema(schema), cache.from_json_schema(schema));
  EXPECT_EQ(cache.compiled(), 4u);
  EXPECT_EQ(cache.size(), 4u);
}

TEST(GrammarCache, TheLeastRecentlyUsedGoesFirst) {
  GrammarCache cache(tokens(), {.entries = 2});
  auto a = cache.from_text(word('a'));
  auto b = cache.from_text(word('b'));
  EXPECT_EQ(cache.from_text(word('a')), a);
  cache.from_text(word('c'));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.from_text(word('a')), a);
  EXPECT_EQ(cache.compiled(), 3u);
  EXPECT_NE(cache.from_text(word('b')), b);
  EXPECT_EQ(cache.compiled(), 4u);
  // One that was dropped serves whoever has it.
  GrammarState state(b);
  EXPECT_TRUE(state.allows(tokens()->tokenizer().find("b")));
  EXPECT_FALSE(state.allows(tokens()->tokenizer().find("a")));
}

TEST(GrammarCache, MemoryIsBounded) {
  GrammarCache unbounded(tokens());
  auto used = unbounded.from_text(word('a'));
  size_t fresh = used->bytes();
  GrammarState state(used);
  state.allowed();
  EXPECT_GT(used->bytes(), fresh) << "masks count";
  GrammarCache cache(tokens(), {.bytes = 3 * fresh});
  for (char c = 'a'; c <= 'f'; ++c) cache.from_text(word(c));
  EXPECT_LT(cache.size(), 4u);
  EXPECT_GE(cache.size(), 1u);
  GrammarCache tiny(tokens(), {.bytes = 1});
  auto last = tiny.from_text(word('a'));
  EXPECT_EQ(tiny.from_text(word('a')), last) << "the last one stays";
}

TEST(GrammarCache, ErrorsAreNotKept) {
  GrammarCache cache(tokens());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(cache.from_text("root ::= root"), Error);
    EXPECT_THROW(cache.from_json_schema(R"({"if":true})"), Error);
  }
  EXPECT_EQ(cache.size(), 0u);
}

TEST(GrammarCache, ThreadsShareOneCompilation) {
  GrammarCache cache(tokens());
  // Large enough that compiling takes a while.
  std::string text = "root ::= ";
  for (int i = 0; i < 300; ++i) text += fmt::format("{}\"word{}\" [a-z]*", i ? " | " : "", i);
  std::vector<std::shared_ptr<const Grammar>> found(8);
  std::vector<std::thread> threads;
  for (auto& f : found) threads.emplace_back([&] { f = cache.from_text(text); });
  for (auto& t : threads) t.join();
  for (auto& f : found) EXPECT_EQ(f, found[0]);
  EXPECT_EQ(cache.compiled(), 1u);
}

}  // namespace
}  // namespace speech
