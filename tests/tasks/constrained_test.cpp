// Answers that follow a schema, through a whole model: random schemas, random weights, sampling.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "models/qwen3/model.h"
#include "tasks/completions.h"
#include "test_data.h"
#include "text/json_schema.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;

class Constrained : public ::testing::TestWithParam<int> {
 protected:
  Constrained() {
    std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
    LoadParams params{.threads = 2, .quantize_bits = GetParam(), .quantize_group = 64};
    model_ = qwen3::load_folder_model(path, open_tensor_file(path), params);
    completions_ = std::make_unique<Completions>(*model_, CompletionSettings{.model_name = "tiny"});
  }

  // The choice that answers a question under `schema`.
  Json ask(const Json& schema, int seed, int max_tokens, const Json& bias) {
    Json request{{"messages", {{{"role", "user"}, {"content", "Answer in JSON."}}}},
                 {"temperature", 1},
                 {"seed", seed},
                 {"max_tokens", max_tokens},
                 {"logit_bias", bias},
                 {"response_format",
                  {{"type", "json_schema"}, {"json_schema", {{"name", "s"}, {"schema", schema}}}}}};
    return Json::parse(completions_->run(CompletionKind::chat, request.dump(), {}))["choices"][0];
  }

  // Weights that know nothing open more than they close; this makes them end in time.
  Json closing_bias() const {
    Json bias = Json::object();
    for (const char* token : {"\"", "}", "]"}) {
      bias[std::to_string(model_->tokenizer()->find(token))] = 8;
    }
    for (int32_t id : model_->eos()) bias[std::to_string(id)] = 8;
    return bias;
  }

  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<Completions> completions_;
};

TEST_P(Constrained, RandomSchemasGiveJsonThatValidates) {
  std::mt19937 random(11);
  const Json bias = closing_bias();
  constexpr int kRounds = 120;
  int ended = 0;
  for (int round = 0; round < kRounds; ++round) {
    Json schema = testing::random_schema(random, 3);
    SCOPED_TRACE(schema.dump());
    Json choice = ask(schema, round, 300, bias);
    std::string content = choice["message"]["content"];
    if (choice["finish_reason"] == "length") continue;
    ASSERT_EQ(choice["finish_reason"], "stop") << content;
    ++ended;
    Json value = Json::parse(content, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << content;
    EXPECT_TRUE(testing::validates(value, schema, schema)) << content;
  }
  EXPECT_GT(ended, kRounds / 2);
}

TEST_P(Constrained, WhatHasNoEndEndsAtMaxTokens) {
  constexpr int kTokens = 40;
  auto tokenizer = model_->tokenizer();
  auto longest = size_t{0};
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer->size()); ++id) {
    longest = std::max(longest, tokenizer->bytes(id).size());
  }
  // A string longer than so many tokens can be, however they are chosen.
  Json text{{"type", "string"}, {"minLength", longest * kTokens}};
  // A number goes on for ever when the model never chooses to end it.
  Json no_end = Json::object();
  for (int32_t id : model_->eos()) no_end[std::to_string(id)] = -100;
  auto generated = [&] { return completions_->counts().generated_tokens; };
  for (int seed = 0; seed < 5; ++seed) {
    for (const auto& [schema, bias] :
         {std::pair{text, Json::object()},
          std::pair{Json{{"type", "integer"}, {"minimum", 1}}, no_end}}) {
      auto before = generated();
      Json choice = ask(schema, seed, kTokens, bias);
      EXPECT_EQ(choice["finish_reason"], "length") << choice;
      EXPECT_EQ(generated() - before, uint64_t{kTokens});
      std::string content = choice["message"]["content"];
      EXPECT_FALSE(content.empty());
      EXPECT_EQ(Json::parse(content, nullptr, false).is_discarded(), schema == text) << content;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, Constrained, ::testing::Values(0, 8, 4), [](const auto& info) {
  return info.param == 0 ? std::string("dense") : "int" + std::to_string(info.param);
});

}  // namespace
}  // namespace speech
