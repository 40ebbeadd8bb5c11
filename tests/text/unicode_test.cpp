#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace speech {
namespace {

TEST(Utf8, InvalidPartsAreReplacedOneByOne) {
  // Expected values: Python's bytes.decode("utf-8", "replace").
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\x80x"), "\uFFFD\uFFFD\uFFFDx");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82\xE2\x82\xAC"), "\uFFFD\u20AC");
  EXPECT_EQ(replace_invalid_utf8("\xFF\x80"), "\uFFFD\uFFFD");
}

TEST(Utf8, RoundTripOfEveryCodePoint) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    CodePoint back = decode_utf8(text, 0);
    ASSERT_TRUE(back.valid && back.value == c && back.size == text.size()) << c;
  }
}

TEST(Utf8, StreamGivesWholeCharacters) {
  Utf8Stream stream;
  std::string out;
  for (char c : std::string("a\u00E9\u20AC\U0001F600")) {
    std::string piece = stream.push(std::string(1, c));
    EXPECT_EQ(replace_invalid_utf8(piece), piece);
    out += piece;
  }
  EXPECT_EQ(out, "a\u00E9\u20AC\U0001F600");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("z"), "\uFFFDz");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Unicode, Classes) {
  EXPECT_EQ(char_class('a'), CharClass::letter);
  EXPECT_EQ(char_class(0x4E2D), CharClass::letter);
  EXPECT_EQ(char_class(0x301), CharClass::other);
  EXPECT_EQ(char_class(0x2160), CharClass::number);
  EXPECT_EQ(char_class(0xBD), CharClass::number);
  EXPECT_EQ(char_class(0x85), CharClass::space);
  EXPECT_EQ(char_class(0x1C), CharClass::other);
  EXPECT_EQ(char_class(0x180E), CharClass::other);
  EXPECT_EQ(char_class(0x105D2), CharClass::letter);  // Unicode 16
  EXPECT_EQ(char_class(0x31350), CharClass::letter);
  EXPECT_EQ(char_class(0x10FFFF), CharClass::other);
}

TEST(Unicode, Nfc) {
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u212B"), "\u00C5");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");  // composed since Unicode 13
  EXPECT_EQ(nfc(std::string("a\0e\u0301", 5)), std::string("a\0\u00E9", 4));
}

}  // namespace
}  // namespace speech
