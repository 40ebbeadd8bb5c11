#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/model.h"

namespace speech {
namespace {

ModelInfo sample_info() {
  ModelInfo info;
  info.name = "sample";
  info.languages = {"en", "zh"};
  info.options = {
      {.id = option::language, .steers = false, .default_value = OptionValue("auto")},
      {.id = option::threshold, .default_value = OptionValue(0.5), .minimum = 0, .maximum = 1},
      {.id = option::speech_pad_ms, .default_value = OptionValue(int64_t{30}), .minimum = 0},
      {.id = option::max_speech_duration_s, .minimum = 0, .minimum_exclusive = true},
      {.id = option::decoding, .required = true, .choices = {"beam", "greedy"}},
  };
  return info;
}

Status status_of(int id, OptionValue value, std::string* option = nullptr) {
  try {
    check_option(sample_info(), id, std::move(value));
  } catch (const Error& error) {
    if (option) *option = error.option();
    return error.status();
  }
  return Status::ok;
}

TEST(Options, NumbersAreTheOnesOfTheApi) {
  int next = 0;
  for (const auto& word : option_vocabulary()) {
    EXPECT_EQ(word.id, next++) << word.name;
    EXPECT_EQ(find_option(word.name), &word);
    EXPECT_EQ(find_option(word.id), &word);
  }
  EXPECT_EQ(find_option("timestamps")->id, option::timestamps);
  EXPECT_EQ(find_option("max_speech_duration_s")->id, option::max_speech_duration_s);
  EXPECT_EQ(find_option("nothing"), nullptr);
  EXPECT_EQ(find_option(-1), nullptr);
}

TEST(Options, RangesAndTypes) {
  std::string option;
  EXPECT_EQ(status_of(option::threshold, 1.0), Status::ok);
  EXPECT_EQ(status_of(option::threshold, 1.5, &option), Status::out_of_range);
  EXPECT_EQ(option, "threshold");
  EXPECT_EQ(status_of(option::threshold, std::nan("")), Status::out_of_range);
  EXPECT_EQ(status_of(option::threshold, int64_t{1}), Status::invalid_argument);
  EXPECT_EQ(status_of(option::speech_pad_ms, int64_t{-1}), Status::out_of_range);
  EXPECT_EQ(status_of(option::max_speech_duration_s, 0.0), Status::out_of_range);
  EXPECT_EQ(status_of(option::max_speech_duration_s, 1e-9), Status::ok);
  EXPECT_EQ(status_of(option::decoding, "fast"), Status::out_of_range);
  EXPECT_EQ(status_of(999, "x"), Status::invalid_argument);
}

TEST(Options, NeutralValuesOfOptionsThatAreNotTaken) {
  EXPECT_EQ(check_option(sample_info(), option::timestamps, false), std::nullopt);
  EXPECT_EQ(status_of(option::timestamps, true), Status::unsupported);
  EXPECT_EQ(status_of(option::prompt, ""), Status::ok);
  EXPECT_EQ(status_of(option::min_speech_duration_ms, int64_t{0}), Status::unsupported);
  ModelInfo silent;
  EXPECT_EQ(check_option(silent, option::language, "AUTO"), std::nullopt);
  EXPECT_THROW(check_option(silent, option::language, "en"), Error);
}

TEST(Options, LanguageTags) {
  auto tag = [](const char* value) {
    return std::get<std::string>(*check_option(sample_info(), option::language, value));
  };
  EXPECT_EQ(tag("EN"), "en");
  EXPECT_EQ(tag("zh-Hant-TW"), "zh");
  EXPECT_EQ(tag("zh_CN"), "zh");
  EXPECT_EQ(tag("auto"), "auto");
  EXPECT_EQ(status_of(option::language, "fr"), Status::out_of_range);
  EXPECT_EQ(status_of(option::language, "english"), Status::out_of_range);
  EXPECT_EQ(status_of(option::language, ""), Status::out_of_range);
}

TEST(Options, RequiredOptions) {
  Options options;
  EXPECT_THROW(check_required(sample_info(), options), Error);
  options.set(option::decoding, "beam");
  EXPECT_NO_THROW(check_required(sample_info(), options));
}

TEST(ModelInfo, Json) {
  ModelInfo info = sample_info();
  info.architecture = "test";
  info.license = "MIT";
  info.file_bytes = 12;
  auto json = nlohmann::ordered_json::parse(model_info_json(info, "cpu", 2));
  EXPECT_EQ(json["name"], "sample");
  EXPECT_FALSE(json.contains("version"));
  EXPECT_FALSE(json.contains("source"));
  EXPECT_EQ(json["options"][1]["default"], 0.5);
  EXPECT_EQ(json["options"][2]["minimum"].dump(), "0");
  EXPECT_TRUE(json["options"][3].contains("exclusive_minimum"));
  EXPECT_EQ(json["options"][4]["choices"].size(), 2u);
  EXPECT_EQ(json["threads"], 2);
  EXPECT_FALSE(nlohmann::json::parse(model_info_json(info)).contains("device"));
}

TEST(Control, CancelAndProgress) {
  std::atomic<bool> cancel{false};
  Control control;
  control.cancel = &cancel;
  EXPECT_NO_THROW(control.report(0.5));
  double seen = 0;
  control.progress = [&](double done) {
    seen = done;
    return done > 0.8;
  };
  control.report(0.5);
  EXPECT_EQ(seen, 0.5);
  EXPECT_THROW(control.report(0.9), Error);
  cancel = true;
  EXPECT_THROW(control.check(), Error);
}

}  // namespace
}  // namespace speech
