#include "nn/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/tensor_file.h"
#include "test_data.h"

namespace speech {
namespace {

using Json = nlohmann::json;

// What transformers' logits processors leave of one row under many settings.
TEST(Sampler, KeepsWhatTheOfficialProcessorsKeep) {
  std::string folder = testing::data_path("qwen3/decode");
  Json expect = Json::parse(read_text_file(folder + "/expect.json"));
  auto reference = open_tensor_file(folder + "/stages.safetensors");
  std::vector<float> logits = to_f32(reference->require("distribution:logits"));
  std::vector<int64_t> wide = to_i64(reference->require("distribution:ids"));
  std::vector<int32_t> context(wide.begin(), wide.end());
  Json tokens = Json::parse(read_text_file(testing::data_path("qwen3/dense-tied/expect.json")));
  auto limit = tokens["tokens"].get<int64_t>();
  ASSERT_GT(expect["distributions"].size(), 10u);
  for (size_t i = 0; i < expect["distributions"].size(); ++i) {
    const Json& d = expect["distributions"][i];
    SamplingSettings settings;
    settings.temperature = d.value("temperature", 1.0);
    settings.top_k = d.value("top_k", 0);
    settings.top_p = d.value("top_p", 1.0);
    settings.min_p = d.value("min_p", 0.0);
    settings.repetition_penalty = d.value("repetition_penalty", 1.0);
    std::vector<Candidate> left = candidates(logits, settings, context, context.size(), limit);
    std::string name = fmt::format("distribution:{:02d}", i);
    std::vector<int64_t> ids = to_i64(reference->require(name + ":ids"));
    std::vector<float> probabilities = to_f32(reference->require(name + ":probs"));
    EXPECT_EQ(left.size(), d["kept"].get<size_t>()) << d["name"];
    ASSERT_GE(left.size(), ids.size()) << d["name"];
    for (size_t k = 0; k < ids.size(); ++k) {
      // Neighbours whose probabilities agree to f32 may stand in either order.
      EXPECT_NEAR(left[k].probability, probabilities[k], 1e-6 + 1e-5 * probabilities[k])
          << d["name"] << " place " << k;
      if (k + 1 < ids.size() && probabilities[k] - probabilities[k + 1] > 1e-7 &&
          (k == 0 || probabilities[k - 1] - probabilities[k] > 1e-7)) {
        EXPECT_EQ(left[k].id, ids[k]) << d["name"] << " place " << k;
      }
    }
  }
}

TEST(Sampler, TemperatureZeroTakesTheLowestOfEqualIds) {
  std::vector<float> logits{1, 3, 3, 2};
  EXPECT_EQ(candidates(logits, {}, {}, 0, 4).front().id, 1);
  EXPECT_EQ(candidates(logits, {}, {}, 0, 1).front().id, 0);  // ids past the limit are padding
}

TEST(Sampler, MaskBiasAndPenalties) {
  std::vector<float> logits{1, 3, 2, 0};
  std::vector<uint32_t> mask{0b1101};
  EXPECT_EQ(candidates(logits, {}, {}, 0, 4, mask).front().id, 2);
  SamplingSettings bias;
  bias.logit_bias[3] = 100;
  EXPECT_EQ(candidates(logits, bias, {}, 0, 4).front().id, 3);
  SamplingSettings presence;
  presence.presence_penalty = 2;
  std::vector<int32_t> context{1, 1};
  EXPECT_EQ(candidates(logits, presence, context, 2, 4).front().id, 1);  // the prompt is free
  EXPECT_EQ(candidates(logits, presence, context, 1, 4).front().id, 2);
}

TEST(Sampler, SuppressedIdsNeverComeOut) {
  std::vector<float> logits{1, 5, 3, 4};
  SamplingSettings s{.logit_bias = {{1, 100.0}}, .suppressed = {1, 3, 9}};
  Random random(1);
  EXPECT_EQ(sample(logits, s, {}, 0, 4, random), 2);
}

TEST(Sampler, RefusesRowsWithoutAFiniteLogit) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(candidates(std::vector<float>{nan, nan}, {}, {}, 0, 2), Error);
  EXPECT_THROW(candidates(std::vector<float>{1, 2}, {}, {}, 0, 2, std::vector<uint32_t>{0}), Error);
  EXPECT_EQ(candidates(std::vector<float>{nan, -1}, {}, {}, 0, 2).front().id, 1);
}

TEST(Sampler, SeedDecidesAndFrequenciesFollowProbabilities) {
  std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  SamplingSettings settings;
  settings.temperature = 1;
  constexpr int kDraws = 20000;
  std::vector<int> counts(3), again(3);
  Random a(7), b(7);
  for (int i = 0; i < kDraws; ++i) ++counts[sample(logits, settings, {}, 0, 3, a)];
  for (int i = 0; i < kDraws; ++i) ++again[sample(logits, settings, {}, 0, 3, b)];
  EXPECT_EQ(counts, again);
  // Five standard deviations of a binomial count.
  double p[] = {0.5, 0.3, 0.2};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(counts[i], kDraws * p[i], 5 * std::sqrt(kDraws * p[i] * (1 - p[i])));
  }
}

TEST(Sampler, SettingsAreChecked) {
  SamplingSettings s;
  s.top_p = 1.5;
  EXPECT_THROW(s.check(), Error);
  s.top_p = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(s.check(), Error);
  s.top_p = 1;
  EXPECT_NO_THROW(s.check());
}

}  // namespace
}  // namespace speech
