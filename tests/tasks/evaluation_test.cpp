// Scores and the gate: arithmetic by hand, and whole evaluations of tiny random models, whose
// fixtures (tests/data/eval) pass or fail whatever the weights are.
#include "tasks/evaluation.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/qwen3/model.h"
#include "test_data.h"

namespace speech {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

// An evaluation of `total` fixtures of which the first `passed` pass.
Evaluation scored(int passed, int total, double tokens_per_second = 50) {
  Evaluation e{.model = "m", .weights = "BF16", .fixtures_sha256 = "abc"};
  for (int i = 0; i < total; ++i) {
    FixtureResult r{.name = "f" + std::to_string(i)};
    if (i >= passed) r.failures = {"wrong"};
    e.results.push_back(r);
  }
  e.disk_bytes = uint64_t{1} << 30;
  e.resident_bytes = uint64_t{1} << 30;
  e.first_word_ms = 120;
  e.tokens_per_second = tokens_per_second;
  return e;
}

TEST(Evaluation, TheFormula) {
  // speed (120 / 120) * (50 / 50), accuracy 1, cost 2 GiB: 1 * 1 * 2 / 2.
  EXPECT_DOUBLE_EQ(*scored(15, 15).score(), 1);
  Evaluation e = scored(9, 15, 100);
  EXPECT_DOUBLE_EQ(e.accuracy(), 0.6);
  EXPECT_DOUBLE_EQ(*e.score(), 2 * 0.6);
  e.first_word_ms = 60;
  EXPECT_DOUBLE_EQ(*e.score(), 4 * 0.6);
  e.disk_bytes = 0x60000000;  // 1.5 GiB
  EXPECT_DOUBLE_EQ(*e.score(), 4 * 0.6 * 2 / 2.5);
  // The example of the published formula: 282 against 92 tokens per second, 8 of 15 against 9.
  EXPECT_NEAR(*scored(8, 15, 282).score() / *scored(9, 15, 92).score(), 2.72, 0.01);
  e.first_word_ms.reset();
  EXPECT_FALSE(e.score());
}

TEST(Evaluation, FixturesWithoutChecksDoNotCount) {
  Evaluation e = scored(1, 2);
  e.results.push_back({.name = "shown", .scored = false});
  EXPECT_EQ(e.scored(), 2);
  EXPECT_EQ(e.passed(), 1);
  EXPECT_DOUBLE_EQ(e.accuracy(), 0.5);
  EXPECT_EQ(Json::parse(e.json())["fixtures"][2]["passed"], nullptr);
}

TEST(Evaluation, TheGateLetsNoFixtureOfFifteenGo) {
  Evaluation baseline = scored(9, 15);
  EXPECT_TRUE(compare(baseline, scored(9, 15), {}).passed());
  EXPECT_TRUE(compare(baseline, scored(10, 15), {}).passed());
  GateVerdict v = compare(baseline, scored(8, 15), {});
  EXPECT_FALSE(v.passed());
  EXPECT_NEAR(v.accuracy_change, -100.0 / 15, 1e-9);
  EXPECT_EQ(v.lost, Names{"f8"});
  EXPECT_EQ(v.won, Names{});
  // The other way round it is a gain.
  v = compare(scored(8, 15), baseline, {});
  EXPECT_TRUE(v.passed());
  EXPECT_EQ(v.won, Names{"f8"});
  // 2 of 100 are exactly the two points that may go; 3 are not.
  EXPECT_TRUE(compare(scored(60, 100), scored(58, 100), {}).passed());
  EXPECT_FALSE(compare(scored(60, 100), scored(57, 100), {}).passed());
  EXPECT_TRUE(compare(scored(60, 100), scored(57, 100), {.max_loss = 3}).passed());
  EXPECT_FALSE(compare(scored(60, 100), scored(59, 100), {.max_loss = 0}).passed());
}

TEST(Evaluation, TheGateMayAskForABetterScore) {
  GateSettings settings{.min_score_ratio = 1.2};
  EXPECT_FALSE(compare(scored(9, 15, 50), scored(9, 15, 59), settings).passed());
  GateVerdict v = compare(scored(9, 15, 50), scored(9, 15, 61), settings);
  EXPECT_TRUE(v.passed());
  EXPECT_DOUBLE_EQ(*v.score_ratio, 61.0 / 50);
  // No ratio to a score of 0.
  v = compare(scored(0, 15), scored(9, 15), settings);
  EXPECT_FALSE(v.passed());
  EXPECT_FALSE(v.score_ratio);
  EXPECT_EQ(Json::parse(v.json())["score_ratio"], nullptr);
}

TEST(Evaluation, OnlyTheSameQuestionsAreCompared) {
  Evaluation other = scored(9, 15);
  other.fixtures_sha256 = "abd";
  EXPECT_THROW(compare(scored(9, 15), other, {}), Error);
  EXPECT_THROW(compare(scored(9, 15), scored(9, 14), {}), Error);
}

TEST(Evaluation, ReportsAreReadBack) {
  Evaluation e = scored(9, 15);
  e.results[3].answer = "say \"\u00FC\"";
  e.results[4].scored = false;
  EXPECT_EQ(Evaluation::from_json(e.json()).json(), e.json());
  EXPECT_TRUE(compare(Evaluation::from_json(e.json()), e, {}).passed());
  for (const char* text : {"", "[]", "{}", "{\"model\": 3}", "3"}) {
    EXPECT_THROW(Evaluation::from_json(text), Error) << text;
  }
  for (const char* count : {"1e300", "-1", "\"7\"", "null"}) {
    std::string text = e.json();
    const std::string key = "\"disk_bytes\":";
    const size_t at = text.find(key) + key.size();
    text.replace(at, text.find(',', at) - at, count);
    EXPECT_THROW(Evaluation::from_json(text), Error) << text;
  }
}

class EvaluationOfWeights : public ::testing::TestWithParam<int> {};

TEST_P(EvaluationOfWeights, CountsWhatTheSchemaDecides) {
  std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
  LoadParams params{.threads = 2, .quantize_bits = GetParam(), .quantize_group = 64};
  auto model = qwen3::load_folder_model(path, open_tensor_file(path), params);
  Completions completions(*model, {.model_name = "tiny", .sequences = 1});
  double done = -1;
  Evaluation e =
      evaluate(completions, testing::data_path("eval"), {.request = "", .progress = [&](double d) {
                                                           EXPECT_GE(d, done);
                                                           EXPECT_LT(d, 1);
                                                           done = d;
                                                         }});
  EXPECT_GT(done, 0);
  EXPECT_EQ(e.model, "tiny");
  EXPECT_EQ(e.weights, GetParam() == 0 ? "BF16" : fmt::format("int{}-g64", GetParam()));
  Names passed, failed;
  for (const FixtureResult& r : e.results) {
    if (r.scored) (r.passed() ? passed : failed).push_back(r.name);
    EXPECT_FALSE(r.finish_reason.empty());
  }
  EXPECT_EQ(passed, (Names{"always_by_schema", "always_one_of"}));
  EXPECT_EQ(failed, (Names{"never_click", "never_digits", "never_free_text"}));
  EXPECT_EQ(e.passed(), 2);
  EXPECT_EQ(e.scored(), 5);
  EXPECT_DOUBLE_EQ(e.accuracy(), 0.4);
  // The files of the folder, with 3.2 MB of weights.
  EXPECT_GT(e.disk_bytes, 3200512u);
  EXPECT_LT(e.disk_bytes, 3400000u);
  EXPECT_GT(e.resident_bytes, 1000000u);
  ASSERT_TRUE(e.first_word_ms && e.tokens_per_second && e.score());
  EXPECT_GT(*e.first_word_ms, 0);
  EXPECT_GT(*e.tokens_per_second, 0);
  EXPECT_GT(*e.score(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, EvaluationOfWeights, ::testing::Values(0, 8, 4),
                         [](const auto& info) {
                           return info.param == 0 ? std::string("dense")
                                                  : "int" + std::to_string(info.param);
                         });

TEST(Evaluation, RequestsGoIntoTheAnswersAndErrorsCome) {
  std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
  auto model = qwen3::load_folder_model(path, open_tensor_file(path), {.threads = 2});
  Completions completions(*model, {.model_name = "tiny"});
  auto run = [&](const char* request) {
    return evaluate(completions, testing::data_path("eval"), {.request = request, .progress = {}});
  };
  // Three tokens are no answer.
  Evaluation cut = run("{\"max_tokens\": 3}");
  EXPECT_EQ(cut.passed(), 0);
  for (const FixtureResult& r : cut.results) {
    EXPECT_EQ(r.finish_reason, "length") << r.name;
    if (r.name == "never_free_text") continue;
    ASSERT_EQ(r.failures.size(), 1u);
    EXPECT_NE(r.failures[0].find("cut off"), std::string::npos) << r.failures[0];
  }
  EXPECT_EQ(run("{\"temperature\": 1, \"seed\": 3}").passed(), 2);
  EXPECT_THROW(run("{\"no_such_field\": 1}"), Error);
  EXPECT_THROW(run("[]"), Error);
  EvaluationSettings stopped{.request = "",
                             .progress = [](double) { fail(Status::cancelled, "cancelled"); }};
  EXPECT_THROW(evaluate(completions, testing::data_path("eval"), stopped), Error);
  // A grammar of the completions takes the schema's place, and is pinned instead.
  Completions other(*model,
                    {.model_name = "tiny",
                     .default_grammar = "root ::= \"{\\\"spokenText\\\": \\\"say 7\\\"}\""});
  Evaluation e = evaluate(other, testing::data_path("eval"), {});
  EXPECT_NE(e.fixtures_sha256, cut.fixtures_sha256);
  for (const FixtureResult& r : e.results) {
    EXPECT_EQ(r.answer, "{\"spokenText\": \"say 7\"}") << r.name;
    EXPECT_EQ(r.passed(), r.name == "never_digits" || !r.scored) << r.name;
  }
}

}  // namespace
}  // namespace speech
