// Patterns and texts that others wrote: what is found, and that every search ends.
#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace speech {
namespace {

std::string refusal(const std::string& pattern) {
  try {
    Regex regex(pattern);
    return "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::invalid_argument);
    return e.what();
  }
}

// "yes", "no" or why the search was given up.
std::string search(const std::string& pattern, const std::string& text) {
  try {
    return Regex(pattern).search(text) ? "yes" : "no";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::out_of_range);
    return e.what();
  }
}

TEST(Regex, IsFoundAnywhere) {
  EXPECT_EQ(search("b+c", "abbcd"), "yes");
  EXPECT_EQ(search("^b", "abbcd"), "no");
  EXPECT_EQ(search("", ""), "yes");
  EXPECT_EQ(search("\\b(?i:seven|7)\\b", "It is SEVEN."), "yes");
  EXPECT_EQ(search("(?P<twice>a.)-(?P=twice)", "ab-ab"), "yes");  // as Python writes it
  EXPECT_EQ(search(std::string("a\0b", 3), std::string("xa\0b", 4)), "yes");
}

TEST(Regex, KnowsUnicode) {
  EXPECT_EQ(search("^.$", "\u00FC"), "yes");
  EXPECT_EQ(search("^\\w{3}$", "\u00FC\u044F\u5B57"), "yes");
  EXPECT_EQ(search("(?i)\u00DC", "\u00FC"), "yes");
  EXPECT_EQ(search("^a\uFFFD\uFFFDb$",
                   "a\xFF\xC3"
                   "b"),
            "yes");  // invalid bytes
  EXPECT_NE(refusal("a\xFF").find("UTF-8"), std::string::npos) << refusal("a\xFF");
}

TEST(Regex, WhatIsNoPatternIsNamed) {
  EXPECT_EQ(refusal("a(b"), "missing closing parenthesis (at byte 3 of the pattern)");
  EXPECT_NE(refusal("a{1111111111111111111}"), "compiled");
  EXPECT_NE(refusal("((a{60000}){60000}){60000}"), "compiled");
  EXPECT_NE(refusal("\\C"), "compiled");
  EXPECT_NE(refusal(std::string(400, '(') + std::string(400, ')')), "compiled");
  EXPECT_NE(refusal(std::string(1001, 'a')).find("1000 bytes"), std::string::npos);
  EXPECT_EQ(refusal(std::string(1000, 'a')), "compiled");
}

TEST(Regex, EverySearchEnds) {
  std::string a(Regex::longest_text - 1, 'a'), end = a + "!";
  for (const char* pattern : {"(a+)+$", "(a|aa)+$", "(?:a*)*[bc]$", "^(a?){50}a{50}$",
                              "(.*)(.*)(.*)(.*)[xy]", "(a*)\\1[bc]", "(?i)(.*)\\1[xy]",
                              "((a)|(?1)b)*[xy]", "(?R)?a", "(*LIMIT_MATCH=4000000000)(a+)+$",
                              "(*NO_START_OPT)(a{9000}|\\X{9000}|((a{60}){60})[xy])"}) {
    std::string result = search(pattern, end);
    EXPECT_TRUE(result.starts_with("searching a text of 8192 bytes: "))
        << pattern << ": " << result;
  }
  // What takes no more than a few steps a character is searched to the end.
  for (const char* pattern : {"a*+[bc]", "(?:ab|ac|ad)[xy]", "\\w[xy]", "x"}) {
    EXPECT_EQ(search(pattern, end), "no") << pattern;
  }
  EXPECT_EQ(search("!$", end), "yes");
  EXPECT_NE(search("a", end + "!").find("too long"), std::string::npos);
}

}  // namespace
}  // namespace speech
