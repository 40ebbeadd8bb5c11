// Errors and lengths by the reference scorers: jiwer, and score.py of speech-bench
// (reference/quality/cases.py).
#include "tasks/error_rate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "test_data.h"

namespace speech {
namespace {

using nlohmann::json;

json cases() {
  return json::parse(read_text_file(testing::data_path("quality/cases.json")));
}

std::vector<std::string> texts(std::string_view text, TextUnit unit) {
  std::vector<std::string> out;
  for (const UnitOfText& u : units_of(text, unit)) out.push_back(u.text);
  return out;
}

using Texts = std::vector<std::string>;

TEST(ErrorRate, WordsAndCharactersAreCountedAsTheReferencesDo) {
  for (const auto& [name, unit] :
       {std::pair{"words", TextUnit::word}, {"characters", TextUnit::character}}) {
    const json list = cases()[name];
    ASSERT_GE(list.size(), 15u);
    for (const json& c : list) {
      const std::string reference = c["reference"], heard = c["heard"];
      const ErrorCount count = count_errors(reference, heard, unit);
      EXPECT_EQ(count.errors, c["errors"].get<int64_t>()) << reference << " | " << heard;
      EXPECT_EQ(count.length, c["length"].get<int64_t>()) << reference;
    }
  }
}

std::vector<AcceptedSegment> segments_of(const json& list) {
  std::vector<AcceptedSegment> out;
  for (const json& s : list) {
    AcceptedSegment segment{{}, s["bracketed"], s["optional"], s["spellings"]};
    for (const json& p : s["pieces"]) segment.pieces.push_back({p["text"], p["readings"]});
    out.push_back(segment);
  }
  return out;
}

TEST(ErrorRate, AcceptedSpellingsAreCountedAsTheReferenceDoes) {
  const json list = cases()["accepted"];
  ASSERT_EQ(list.size(), 11u);
  for (const json& c : list) {
    const std::string reference = c["reference"], heard = c["heard"];
    const auto segments = segments_of(c["segments"]);
    EXPECT_FALSE(wrong_segments(reference, segments, TextUnit::character)) << reference;
    const ErrorCount count = count_errors(reference, segments, heard, TextUnit::character);
    EXPECT_EQ(count.errors, c["errors"].get<int64_t>()) << reference << " | " << heard;
    EXPECT_EQ(count.length, c["length"].get<int64_t>()) << reference;
  }
}

TEST(ErrorRate, AcceptedSpellingsOfWords) {
  const std::string reference = "At 5 o'clock, please.";
  const std::vector<AcceptedSegment> segments = {
      {{{"At ", {}}}},
      {{{"5", {}}}, true, false, {"five"}},
      {{{" o'clock", {}}}},
      {{{", please.", {}}}, true, true, {}},
  };
  EXPECT_FALSE(wrong_segments(reference, segments, TextUnit::word));
  const auto errors = [&](const char* heard) {
    return count_errors(reference, segments, heard, TextUnit::word).errors;
  };
  EXPECT_EQ(errors("at five oclock"), 0);
  EXPECT_EQ(errors("at 5 o'clock please"), 0);
  EXPECT_EQ(errors("at six oclock please thanks"), 2);
  EXPECT_EQ(count_errors(reference, segments, "", TextUnit::word).length, 4);
}

TEST(ErrorRate, WordsWithoutPunctuation) {
  EXPECT_EQ(texts("  Don't -- (please) STOP; it's 3.5%! ", TextUnit::word),
            (Texts{"dont", "please", "stop", "its", "3", "5"}));
  EXPECT_EQ(texts("\xFFz", TextUnit::word), (Texts{"z"}));  // U+FFFD is a symbol
  EXPECT_TRUE(units_of("...", TextUnit::word).empty());
  EXPECT_TRUE(units_of("", TextUnit::character).empty());
}

TEST(ErrorRate, UnitsKnowTheirPlace) {
  const auto units = units_of("A, bc\u0301!", TextUnit::word);
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1].begin, 3u);
  EXPECT_EQ(units[1].end, 7u);
}

TEST(ErrorRate, TheLanguageDecidesTheUnit) {
  for (const char* language : {"ja", "ja-JP", "ko", "ZH", "zh_TW"}) {
    EXPECT_EQ(unit_of_language(language), TextUnit::character) << language;
  }
  for (const char* language : {"", "en", "jam", "de-CH"}) {
    EXPECT_EQ(unit_of_language(language), TextUnit::word) << language;
  }
}

TEST(ErrorRate, SegmentsThatDoNotFitAreFound) {
  EXPECT_EQ(
      wrong_segments("one two", std::vector<AcceptedSegment>{{{{"one", {}}}}}, TextUnit::word),
      "the pieces of its segments give another text");
  EXPECT_EQ(wrong_segments("one two", std::vector<AcceptedSegment>{{{{"one t", {}}, {"wo", {}}}}},
                           TextUnit::word),
            "the piece \"one t\" ends inside \"two\"");
}

}  // namespace
}  // namespace speech
