// Text and times of ids that no golden run emits. What is expected follows from SentencePiece 0.2.3
// and NeMo 2.6.2's rules, in words in text.h.
#include "models/fastconformer/text.h"

#include <gtest/gtest.h>

#include "models/fastconformer/checkpoint.h"

namespace speech::fastconformer {
namespace {

class FastConformerText : public ::testing::Test {
 protected:
  FastConformerText() {
    config_.pieces = {"<unk>", "\u2581", "\u2581o", "x", "?", "\u2581\u00bf", "\u3000", ".", "_"};
    config_.unknown_id = 0;
    config_.unknown_surface = " \u2047 ";
    config_.punctuation = {".", "?", "_", "\u00bf"};
    config_.separators = {".", "?", "!"};
  }
  std::string text(std::vector<int32_t> ids) { return Detokenizer(config_).text(ids); }

  TextConfig config_;
};

TEST_F(FastConformerText, OneLeadingSpaceIsDropped) {
  EXPECT_EQ(text({2, 2}), "o o");
  EXPECT_EQ(text({1, 2}), " o");
  EXPECT_EQ(text({0, 2}), " \u2047  o");
  config_.strip_leading_space = false;
  EXPECT_EQ(text({2, 2}), " o o");
  EXPECT_EQ(text({}), "");
}

TEST_F(FastConformerText, OneSpaceBeforeAMarkIsRemoved) {
  EXPECT_EQ(text({3, 1, 4}), "x?");
  EXPECT_EQ(text({3, 1, 1, 4}), "x ?");    // two leave one
  EXPECT_EQ(text({3, 5, 3}), "x\u00bfx");  // before opening marks too
  EXPECT_EQ(text({3, 6, 4}), "x?");        // any white space
  EXPECT_EQ(text({3, 1, 4, 1, 4}), "x??");
}

TEST_F(FastConformerText, MarksJoinTheWordBefore) {
  const Detokenizer d(config_);
  const std::vector<Emission> tokens{{2, 0, 1, 0}, {3, 1, 2, 0}, {7, 3, 5, 0}, {2, 6, 7, 0}};
  const Spans rnnt = d.spans(tokens, SpanRule::rnnt);
  ASSERT_EQ(rnnt.words.size(), 2u);
  EXPECT_EQ(rnnt.words[0].text, "ox.");
  EXPECT_EQ(rnnt.words[0].end, 5);
  ASSERT_EQ(rnnt.segments.size(), 2u);
  EXPECT_EQ(rnnt.segments[1].text, "o");
  const Spans tdt = d.spans(tokens, SpanRule::tdt);
  EXPECT_EQ(tdt.tokens[2].start, 2);
  EXPECT_EQ(tdt.tokens[2].end, 2);
}

TEST(FastConformerPunctuation, SkipsSpecialPiecesAndWordStarts) {
  EXPECT_EQ(
      punctuation_of({"<unk>", "<|en|>", "[x!]", "##.", "\u2581-", "a,b", "\u3002", "$", "'"}),
      (std::vector<std::string>{"'", ",", "\u3002"}));
}

}  // namespace
}  // namespace speech::fastconformer
