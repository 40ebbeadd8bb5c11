// Manifests, rates with intervals, and the rules that choose the bare name's type.
#include "tasks/quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Manifests : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("speech_quality_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::ofstream(folder_ / "a.wav") << "x";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& text) const {
    const std::string path = (folder_ / "m.jsonl").string();
    std::ofstream(path) << text;
    return path;
  }
  // What read_manifest() says against a text.
  std::string refusal(const std::string& text, Status status = Status::invalid_argument) const {
    try {
      read_manifest(write(text));
      return "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), status) << error.what();
      EXPECT_EQ(error.option(), "quality");
      std::string message = error.what();
      const std::string place = (folder_ / "m.jsonl").string() + ":";
      EXPECT_TRUE(message.starts_with(place)) << message;
      return message.substr(std::min(message.size(), place.size()));
    }
  }

  fs::path folder_;
};

TEST_F(Manifests, AreReadLineByLine) {
  const auto utterances = read_manifest(
      write("\xEF\xBB\xBF{\"format\": 1}\r\n\r\n"
            R"({"audio": "a.wav", "text": "Ten.", "groups": {"voice": "x"}, "seconds": 1.5})"
            "\n"
            R"({"audio": "a.wav", "text": "あ。", "language": "ja", "segments": [)"
            R"({"bracketed": true, "spellings": ["い"], "pieces": [{"text": "あ。"}]}]})"));
  ASSERT_EQ(utterances.size(), 2u);
  EXPECT_EQ(utterances[0].audio, (folder_ / "a.wav").string());
  EXPECT_EQ(utterances[0].text, "Ten.");
  EXPECT_EQ(utterances[0].unit, TextUnit::word);
  EXPECT_EQ(utterances[0].groups.at("voice"), "x");
  EXPECT_EQ(utterances[1].unit, TextUnit::character);
  ASSERT_EQ(utterances[1].segments.size(), 1u);
  EXPECT_TRUE(utterances[1].segments[0].bracketed);
}

TEST_F(Manifests, ErrorsNameFileAndLine) {
  const std::string good = R"({"audio": "a.wav", "text": "Ten."})"
                           "\n";
  EXPECT_EQ(refusal(good + "{\"audio\": "), "2: it is not JSON");
  EXPECT_EQ(refusal(good + "\n[]"), "3: it is not an object");
  EXPECT_EQ(refusal(good + R"({"text": "b"})"), "2: no string \"audio\"");
  EXPECT_EQ(refusal(R"({"audio": "a.wav", "text": 3})"), "1: no string \"text\"");
  EXPECT_EQ(refusal(good + R"({"audio": "a.wav", "text": " ... "})"),
            "2: the text \" ... \" has nothing to compare");
  EXPECT_EQ(refusal(good + R"({"audio": "b.wav", "text": "b"})", Status::io),
            "2: there is no recording " + (folder_ / "b.wav").string());
  EXPECT_EQ(refusal(R"({"audio": "a.wav", "text": "b", "groups": {"voice": 1}})"),
            "1: groups: voice is not a string");
  for (const char* groups : {R"({"": "x"})", R"({"voice": ""})", R"({"voice": "a|b"})",
                             R"({"voice": "\u001b[31m"})", R"({"a\nb": "x"})"}) {
    EXPECT_EQ(refusal(std::string(R"({"audio": "a.wav", "text": "b", "groups": )") + groups + "}"),
              "1: groups: a name is empty or holds control characters or \"|\"");
  }
  EXPECT_EQ(
      refusal(R"({"audio": "a.wav", "text": "b", "segments": [{"pieces": [{"text": "c"}]}]})"),
      "1: the pieces of its segments give another text");
  EXPECT_EQ(refusal(R"({"audio": "a.wav", "text": "b", "segments": 1})"),
            "1: \"segments\" is not a list");
  EXPECT_EQ(refusal("\n"), " there is no utterance");
  EXPECT_THROW(read_manifest((folder_ / "none.jsonl").string()), Error);
}

// ---- intervals ----

TEST(Bootstrap, IntervalOfSingleWordsIsThatOfTheBinomial) {
  // 1000 utterances of a word, 200 of them wrong: the standard error is sqrt(0.2 * 0.8 / 1000), and
  // 95 % of a normal distribution lie within 1.96 of it. 2000 draws know the ends to about 5 % of
  // the width.
  std::vector<ErrorCount> counts(1000, {0, 1});
  for (size_t i = 0; i < 200; ++i) counts[i * 5].errors = 1;
  EXPECT_DOUBLE_EQ(error_rate(counts), 0.2);
  const Interval interval = bootstrap_rate(counts);
  const double half = 1.96 * std::sqrt(0.2 * 0.8 / 1000);
  EXPECT_NEAR(interval.low, 0.2 - half, 0.1 * half);
  EXPECT_NEAR(interval.high, 0.2 + half, 0.1 * half);
  const Interval again = bootstrap_rate(counts);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
}

TEST(Bootstrap, LongUtterancesWeighMore) {
  // The rate is that of the sums: 10 errors of 100 and none of 100, not the mean of 100 % and 0 %.
  const std::vector<ErrorCount> counts = {{10, 10}, {0, 190}};
  EXPECT_DOUBLE_EQ(error_rate(counts), 0.05);
  EXPECT_DOUBLE_EQ(bootstrap_rate(counts).high, 1);  // the first alone, drawn twice
  EXPECT_DOUBLE_EQ(bootstrap_rate(counts).low, 0);
}

TEST(Bootstrap, DifferencesArePaired) {
  // b has one error more in every utterance, and the same length: exactly 10 points, always.
  std::mt19937 random(1);
  std::vector<ErrorCount> a, b;
  for (int i = 0; i < 300; ++i) {
    const int64_t errors = static_cast<int64_t>(random() % 8);
    a.push_back({errors, 10});
    b.push_back({errors + 1, 10});
  }
  const Interval difference = bootstrap_difference(b, a);
  EXPECT_NEAR(difference.low, 0.1, 1e-12);
  EXPECT_NEAR(difference.high, 0.1, 1e-12);
  const Interval same = bootstrap_difference(a, a);
  EXPECT_EQ(same.low, 0);
  EXPECT_EQ(same.high, 0);
  EXPECT_GT(bootstrap_rate(a).high - bootstrap_rate(a).low, 0.02);
}

TEST(Bootstrap, NothingHasNoRate) {
  EXPECT_EQ(error_rate({}), 0);
  EXPECT_EQ(bootstrap_rate({}).high, 0);
}

// ---- reports ----

Utterance utterance(const std::string& text, const std::string& voice,
                    TextUnit unit = TextUnit::word) {
  return {.audio = "", .text = text, .unit = unit, .segments = {}, .groups = {{"voice", voice}}};
}

QualityRun run_of(const std::string& type, std::vector<std::string> texts,
                  const std::string& decoding = "") {
  QualityRun run{.model = "m", .file = "m-" + type, .type = type, .decoding = decoding};
  run.texts = std::move(texts);
  return run;
}

TEST(Quality, RatesByGroupAndDifferences) {
  const std::vector<Utterance> said = {utterance("one two", "x"), utterance("three four", "y"),
                                       utterance("five", "y")};
  const QualityReport report = score_quality(said, {run_of("f32", {"one two", "three for", "five"}),
                                                    run_of("q4_k", {"one", "three for", ""})});
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_TRUE(report.by_words);
  EXPECT_EQ(report.rows[0].all.words->errors, 1);
  EXPECT_EQ(report.rows[0].all.words->length, 5);
  EXPECT_EQ(report.rows[0].all.characters->errors, 1);
  EXPECT_EQ(report.rows[0].all.characters->length, 19);
  EXPECT_FALSE(report.rows[0].all.accepted);
  EXPECT_EQ(report.rows[1].all.words->errors, 3);
  EXPECT_EQ(report.rows[1].empty, 1);
  EXPECT_DOUBLE_EQ(report.rows[1].words->value, 0.4);
  EXPECT_EQ(report.rows[1].groups.at({"voice", "x"}).words->errors, 1);
  EXPECT_EQ(report.rows[1].groups.at({"voice", "y"}).words->length, 3);
  EXPECT_EQ(report.rows[1].groups.at({"voice", "y"}).utterances, 2);

  const json j = json::parse(quality_json(report));
  EXPECT_EQ(j["runs"][1]["wer"]["errors"], 3);
  EXPECT_DOUBLE_EQ(j["runs"][1]["wer_to_first"]["difference"], 0.4);
  EXPECT_EQ(j["runs"][0]["texts"][1], "three for");
  EXPECT_TRUE(j["bare_type"]["type"].is_null());
  const std::string markdown = quality_markdown(report), text = quality_text(report);
  EXPECT_NE(markdown.find("| m | q4_k | default | 0.00 | 60.00 ("), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("| voice x | 1 | 2 | 0.00 (0.00 to 0.00) | 50.00 ("), std::string::npos)
      << markdown;
  EXPECT_NE(text.find("not decided, it takes a row of f16 and one of q8_0"), std::string::npos);
}

TEST(Quality, DifferencesAreToTheFirstOfTheSameDecoding) {
  const std::vector<Utterance> said = {utterance("one two", "x")};
  const QualityReport report =
      score_quality(said, {run_of("f32", {""}, "greedy"), run_of("f32", {"one two"}, "ctc"),
                           run_of("q8_0", {"one"}, "greedy"), run_of("q8_0", {"one"}, "ctc")});
  EXPECT_DOUBLE_EQ(report.rows[1].words->value, 0);
  EXPECT_DOUBLE_EQ(report.rows[2].words->value, -0.5);
  EXPECT_DOUBLE_EQ(report.rows[3].words->value, 0.5);
}

TEST(Quality, AcceptedSpellingsAreARateOfTheirOwn) {
  std::vector<Utterance> said = {utterance("三時", "x", TextUnit::character),
                                 utterance("はい", "x", TextUnit::character)};
  said[0].segments = {{{{"三", {}}}, true, false, {"3"}}, {{{"時", {}}}}};
  const QualityReport report = score_quality(said, {run_of("f16", {"3時", "へい"})});
  EXPECT_FALSE(report.by_words);
  EXPECT_FALSE(report.rows[0].all.words);
  EXPECT_EQ(report.rows[0].all.characters->errors, 2);
  EXPECT_EQ(report.rows[0].all.accepted->errors, 1);
  EXPECT_EQ(report.rows[0].all.accepted->length, 4);
}

TEST(Quality, RunsSurviveAsJson) {
  QualityRun run = run_of("q8_0", {"a \"b\"", ""}, "ctc");
  run.device = "cpu";
  run.processor = "P";
  run.threads = 2;
  run.file_bytes = 5;
  run.load_seconds = 0.25;
  run.audio_seconds = 4;
  run.seconds = 1;
  run.peak_memory = 7;
  run.file_memory = 3;
  const QualityRun back = parse_quality_run(quality_run_json(run));
  EXPECT_EQ(quality_run_json(back), quality_run_json(run));
  EXPECT_EQ(back.texts, run.texts);
  EXPECT_EQ(json::parse(quality_run_json(run))["real_time_factor"], 0.25);
  EXPECT_THROW(parse_quality_run("{}"), Error);
}

// A report of 1000 words in which types have so many errors.
QualityReport with_errors(const std::vector<std::pair<std::string, int>>& types,
                          const std::string& decoding = "") {
  std::vector<Utterance> said;
  for (int i = 0; i < 1000; ++i) said.push_back(utterance("yes", "x"));
  std::vector<QualityRun> runs;
  for (const auto& [type, errors] : types) {
    std::vector<std::string> texts(1000, "yes");
    for (int i = 0; i < errors; ++i) texts[static_cast<size_t>(i)] = "no";
    runs.push_back(run_of(type, texts, decoding));
  }
  return score_quality(said, runs);
}

TEST(BareName, IsQ8WhereItIsWithinTwoTenthsOfAPoint) {
  EXPECT_EQ(choose_bare_type(with_errors({{"f16", 100}, {"q8_0", 102}})).type, "q8_0");
  EXPECT_EQ(choose_bare_type(with_errors({{"f16", 100}, {"q8_0", 103}})).type, "f16");
  EXPECT_EQ(choose_bare_type(with_errors({{"f16", 100}, {"q8_0", 50}})).type, "q8_0");
}

TEST(BareName, IsNeverAKType) {
  EXPECT_EQ(
      choose_bare_type(with_errors({{"q4_k", 0}, {"q6_k", 0}, {"f16", 100}, {"q8_0", 110}})).type,
      "f16");
}

TEST(BareName, NeedsBothTypesInOneWayOfDecoding) {
  EXPECT_EQ(choose_bare_type(with_errors({{"f32", 0}, {"q8_0", 0}})).type, "");
  QualityReport report = with_errors({{"q8_0", 0}}, "greedy");
  report.rows.push_back(with_errors({{"f16", 0}}, "ctc").rows[0]);
  EXPECT_EQ(choose_bare_type(report).type, "");
}

TEST(BareName, LooksAtAcceptedSpellingsToo) {
  QualityReport report = with_errors({{"f16", 100}, {"q8_0", 100}});
  report.rows[0].all.accepted = Rate{.errors = 10, .length = 1000, .value = 0.010, .interval = {}};
  report.rows[1].all.accepted = Rate{.errors = 13, .length = 1000, .value = 0.013, .interval = {}};
  EXPECT_EQ(choose_bare_type(report).type, "f16");
  EXPECT_NE(choose_bare_type(report).reason.find("+0.30 with accepted spellings"),
            std::string::npos);
}

}  // namespace
}  // namespace speech
