#include "tasks/script.h"

#include <gtest/gtest.h>

namespace speech {
namespace {

TEST(Script, SpaceBetweenTexts) {
  EXPECT_TRUE(needs_space("Hello.", "How are you?"));
  EXPECT_FALSE(needs_space("Hello. ", "How"));
  EXPECT_FALSE(needs_space("Hello", " How"));
  EXPECT_FALSE(needs_space("", "How"));
  EXPECT_FALSE(needs_space("Hello", ""));
  EXPECT_FALSE(needs_space("\u4eca\u65e5", "hello"));
  EXPECT_FALSE(needs_space("hello", "\u306f\u3044"));
  EXPECT_FALSE(needs_space("\u3002", "\uff01"));
  EXPECT_TRUE(needs_space("\uc548\ub155", "\ud558\uc138\uc694"));  // Hangul
  EXPECT_TRUE(needs_space("\u0e2a", "\u0e2b"));                    // Thai
  EXPECT_FALSE(needs_space("a\xff", "b"));                         // ill-formed at the edge
  EXPECT_FALSE(needs_space("a", "\xe3\x81"));
  EXPECT_FALSE(needs_space("a\u3000", "b"));
}

TEST(Script, AgreedText) {
  EXPECT_EQ(agreed_text("Hello, world", "Hello, world"), "Hello, ");
  EXPECT_EQ(agreed_text("abc def", "abc def ghi"), "abc def");
  EXPECT_EQ(agreed_text("The quick bro", "The quick brown"), "The quick ");
  EXPECT_EQ(agreed_text("", "abc"), "");
  EXPECT_EQ(agreed_text("abc", "abd"), "");
  EXPECT_EQ(agreed_text("One. Two.", "One. Two."), "One. ");
  // Scripts without spaces are cut between any two characters; the last reading's end is cut back
  // to a mark.
  EXPECT_EQ(agreed_text("\u4eca\u65e5\u306f\u96e8", "\u4eca\u65e5\u306f\u6674\u308c"),
            "\u4eca\u65e5\u306f");
  EXPECT_EQ(agreed_text("\u306f\u3044\u3002\u305d\u3046", "\u306f\u3044\u3002\u305d\u3046"),
            "\u306f\u3044\u3002");
}

}  // namespace
}  // namespace speech
