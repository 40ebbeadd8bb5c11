#include "tasks/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/convert.h"
#include "models/registry.h"
#include "test_data.h"

namespace speech {
namespace {

using testing::data_path;

double shares(const std::vector<Profile::Part>& parts) {
  double sum = 0;
  for (const auto& part : parts) sum += part.share;
  return sum;
}

const Profile::Part& part(const std::vector<Profile::Part>& parts, const std::string& name) {
  auto it = std::find_if(parts.begin(), parts.end(), [&](auto& p) { return p.name == name; });
  if (it == parts.end()) ADD_FAILURE() << "no part " << name;
  return it == parts.end() ? parts.front() : *it;
}

void expect_consistent(const Profile::Work& work, int runs) {
  SCOPED_TRACE(work.name);
  ASSERT_EQ(work.runs.size(), static_cast<size_t>(runs));
  EXPECT_EQ(work.seconds, *std::min_element(work.runs.begin(), work.runs.end()));
  EXPECT_NE(std::find(work.runs.begin(), work.runs.end(), work.median), work.runs.end());
  EXPECT_GT(work.seconds, 0);
  EXPECT_NEAR(shares(work.operations), 1, 1e-9);
  EXPECT_EQ(work.operations.back().name, "other");
  double outside = 0;
  for (const auto& p : work.operations) {
    if (!p.name.starts_with("matmul") && !p.name.ends_with("attention")) outside += p.share;
  }
  EXPECT_NEAR(work.outside_products, outside, 1e-9);
  EXPECT_GT(work.products_alone, 0);
}

TEST(Profile, LanguageModelReadsEveryMatrixOncePerToken) {
  ProfileSettings settings;
  settings.prompt_tokens = 20;
  settings.tokens = 5;
  settings.sequences = 3;
  settings.runs = 2;
  const Profile p = profile_model(data_path("qwen3/dense-tied/checkpoint"), {}, settings);
  EXPECT_GT(p.limits.flops, 0);
  EXPECT_GT(p.limits.read_bytes, 0);
  EXPECT_GT(p.load_seconds, 0);
  ASSERT_EQ(p.works.size(), 3u);
  const char* names[] = {"prompt", "decode", "batch"};
  const double amounts[] = {20, 5, 15};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(p.works[i].name, names[i]);
    EXPECT_EQ(p.works[i].unit, "tokens");
    EXPECT_EQ(p.works[i].amount, amounts[i]);
    EXPECT_EQ(p.works[i].sequences, i == 2 ? 3 : 1);
    EXPECT_TRUE(p.works[i].stages.empty());
    EXPECT_GE(p.works[i].peak_memory, i == 0 ? 1 : p.works[i - 1].peak_memory);
    expect_consistent(p.works[i], 2);
  }
  EXPECT_GE(p.peak_memory, p.works[2].peak_memory);

  // config.json: 2 layers, hidden 256, 8 and 2 heads of 64, ffn 512, vocabulary 608; BF16.
  const double layer = 256 * 512 * 2 + 2 * 256 * 128 + 3 * 256 * 512;
  const double matrices = 2 * layer + 608 * 256;
  for (size_t i : {size_t{1}, size_t{2}}) {
    const Profile::Work& work = p.works[i];
    const double sequences = i == 1 ? 1 : 3;
    // 25 positions in 2 layers, keys and values of 2 heads of 64, as f16 or wider.
    EXPECT_GE(work.cache_bytes, sequences * 25 * 2 * 2 * 128 * 2);
    EXPECT_NEAR(work.weight_bytes * work.seconds, 5 * 2 * matrices, 1);
    const auto& products = part(work.operations, "matmul, few rows");
    EXPECT_NEAR(products.flops * products.seconds, sequences * 5 * 2 * matrices, 1);
    // Behind a prompt of 20 the steps see 21, 22, 23, 24 and 25 positions.
    const auto& attention = part(work.operations, "attention");
    EXPECT_NEAR(attention.flops * attention.seconds, sequences * 2 * 4 * 512 * (5 * 23), 1);
  }
}

TEST(Profile, StagesOfARecognizerAddUpToTheWhole) {
  const std::string path = (std::filesystem::path(::testing::TempDir()) /
                            ("profile" + std::to_string(getpid()) + ".gguf"))
                               .string();
  convert(families(), data_path("fastconformer/v3-small/model.nemo"), path, {}, {});
  ProfileSettings settings;
  settings.seconds = 2;
  settings.runs = 1;
  Profile p = profile_model(path, {.threads = 1}, settings);
  ASSERT_EQ(p.works.size(), 1u);
  const Profile::Work& work = p.works[0];
  EXPECT_EQ(work.name, "transcription");
  EXPECT_EQ(work.unit, "seconds");
  EXPECT_EQ(work.amount, 2);
  EXPECT_EQ(p.threads, 1);
  expect_consistent(work, 1);
  ASSERT_EQ(work.stages.size(), 4u);
  const char* names[] = {"features", "encoder", "decoding", "text"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(work.stages[i].name, names[i]);
    EXPECT_GT(work.stages[i].seconds, 0);
  }
  EXPECT_NEAR(shares(work.stages), 1, 0.01);  // but for the clock's own calls

  // Given audio takes the place of the made-up voice.
  settings.audio.assign(8000, 0.1f);
  settings.rate = 8000;
  p = profile_model(path, {.threads = 1}, settings);
  EXPECT_EQ(p.works[0].amount, 1);
  std::filesystem::remove(path);
}

TEST(Profile, JsonHasTheRatios) {
  Profile p;
  p.info.name = "m";
  p.threads = 2;
  p.limits = {100, 50};
  p.works = {{.name = "decode",
              .unit = "tokens",
              .amount = 8,
              .runs = {2},
              .seconds = 2,
              .median = 2,
              .operations = {{"matmul", 3, 1.5, 0.75, 80, 40}, {"other", 0, 0.5, 0.25, 0, 0}},
              .weight_bytes = 30},
             {.name = "transcription", .unit = "seconds", .amount = 8, .seconds = 2}};
  const auto json = nlohmann::json::parse(profile_json(p));
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["peak_flops"], 100);
  EXPECT_EQ(json["read_bandwidth"], 50);
  const auto& decode = json["works"][0];
  EXPECT_EQ(decode["tokens_per_second"], 4);
  EXPECT_EQ(decode["of_read_bandwidth"], 0.6);
  EXPECT_EQ(decode["operations"][0]["of_peak"], 0.8);
  EXPECT_EQ(decode["operations"][0]["of_read_bandwidth"], 0.8);
  EXPECT_EQ(decode["operations"][0]["calls"], 3);
  EXPECT_FALSE(decode["operations"][1].contains("calls"));
  EXPECT_FALSE(decode["operations"][1].contains("of_peak"));
  EXPECT_FALSE(decode.contains("stages"));
  EXPECT_EQ(json["works"][1]["real_time_factor"], 0.25);
}

TEST(Profile, SettingsAreChecked) {
  const auto refused = [](const ProfileSettings& settings) -> std::string {
    try {
      profile_model(data_path("qwen3/dense-tied/checkpoint"), {}, settings);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::out_of_range);
      return error.option();
    }
    return "";
  };
  EXPECT_EQ(refused({.seconds = 0}), "seconds");
  EXPECT_EQ(refused({.prompt_tokens = 0}), "prompt_tokens");
  EXPECT_EQ(refused({.prompt_tokens = 40960}), "prompt_tokens");
  EXPECT_EQ(refused({.tokens = -1}), "tokens");
  EXPECT_EQ(refused({.sequences = 0}), "sequences");
  EXPECT_EQ(refused({.runs = 0}), "runs");
}

}  // namespace
}  // namespace speech
