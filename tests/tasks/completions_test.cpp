// OpenAI's requests against a tiny random model: shapes, constraints, batching, refusals.
#include "tasks/completions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "models/qwen3/model.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::unique_ptr<LanguageModel> tiny_model() {
  std::string path = testing::data_path("qwen3/dense-tied/checkpoint");
  return qwen3::load_folder_model(path, open_tensor_file(path), {.threads = 2});
}

class CompletionsTest : public ::testing::Test {
 protected:
  CompletionsTest() : model_(tiny_model()) {}

  Json chat(Completions& c, Json request) {
    return Json::parse(c.run(CompletionKind::chat, request.dump(), {}));
  }
  Json text(Completions& c, Json request) {
    return Json::parse(c.run(CompletionKind::text, request.dump(), {}));
  }
  static Json hello(int tokens = 12) {
    return {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
            {"temperature", 0},
            {"max_tokens", tokens}};
  }
  std::string refusal(Completions& c, CompletionKind kind, const Json& request) {
    try {
      c.run(kind, request.dump(), {});
      return "accepted";
    } catch (const Error& e) {
      return std::string(status_name(e.status())) + " " + e.option();
    }
  }

  std::unique_ptr<LanguageModel> model_;
};

TEST_F(CompletionsTest, AnswersInOpenAisShape) {
  Completions c(*model_, {.model_name = "tiny"});
  Json answer = chat(c, hello());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_TRUE(answer["choices"][0]["finish_reason"] == "length" ||
              answer["choices"][0]["finish_reason"] == "stop");
  int64_t prompt = answer["usage"]["prompt_tokens"];
  EXPECT_EQ(prompt, std::ssize(c.chat_prompt(hello().dump()).ids));
  EXPECT_EQ(answer["usage"]["total_tokens"],
            prompt + answer["usage"]["completion_tokens"].get<int64_t>());
}

TEST_F(CompletionsTest, StreamAddsUpToTheAnswer) {
  Completions c(*model_, {.model_name = "tiny"});
  Json whole = chat(c, hello(24));
  Json request = hello(24);
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  std::string content, reasoning;
  Json usage, finish;
  int chunks = 0;
  std::string rest = c.run(CompletionKind::chat, request.dump(), {.chunk = [&](std::string_view t) {
                             Json chunk = Json::parse(t);
                             ++chunks;
                             EXPECT_EQ(chunk["object"], "chat.completion.chunk");
                             if (chunk["choices"].empty()) {
                               usage = chunk["usage"];
                               return true;
                             }
                             const Json& choice = chunk["choices"][0];
                             content += choice["delta"].value("content", "");
                             reasoning += choice["delta"].value("reasoning_content", "");
                             if (!choice["finish_reason"].is_null())
                               finish = choice["finish_reason"];
                             return true;
                           }});
  EXPECT_EQ(rest, "");
  EXPECT_GT(chunks, 3);
  EXPECT_EQ(content, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(finish, whole["choices"][0]["finish_reason"]);
  EXPECT_EQ(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
}

TEST_F(CompletionsTest, SchemaAndSeedDecide) {
  Completions c(*model_, {});
  Json schema{{"type", "object"},
              {"properties", {{"n", {{"type", "integer"}}}, {"ok", {{"type", "boolean"}}}}},
              {"required", {"n", "ok"}},
              {"additionalProperties", false}};
  Json request = hello(400);
  request["temperature"] = 1;
  request["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "t"}, {"schema", schema}}}};
  for (int seed : {1, 2, 3, 4, 5}) {
    request["seed"] = seed;
    Json first = chat(c, request);
    EXPECT_EQ(first["choices"][0]["message"]["content"],
              chat(c, request)["choices"][0]["message"]["content"]);
    if (first["choices"][0]["finish_reason"] != "stop") continue;  // a number without an end
    Json value = Json::parse(first["choices"][0]["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["n"].is_number_integer());
    EXPECT_TRUE(value["ok"].is_boolean());
    EXPECT_EQ(value.size(), 2u);
  }
}

TEST_F(CompletionsTest, AListOfPromptsLongerThanTheQueueIsAnswered) {
  Completions c(*model_, {.sequences = 2, .queue = 3});
  Json prompts = Json::array();
  for (int i = 0; i < 12; ++i) prompts.push_back("prompt " + std::to_string(i));
  Json answer = text(c, {{"prompt", prompts}, {"max_tokens", 2}, {"temperature", 0}});
  ASSERT_EQ(answer["choices"].size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    Json alone = text(c, {{"prompt", prompts[i]}, {"max_tokens", 2}, {"temperature", 0}});
    EXPECT_EQ(answer["choices"][i]["text"], alone["choices"][0]["text"]);
  }
  EXPECT_EQ(c.counts().requests, 24u);
}

TEST_F(CompletionsTest, UnknownFieldsInsideObjectsAreNamed) {
  Completions c(*model_, {});
  Json schema{{"type", "boolean"}};
  Json tool{{"type", "function"},
            {"function", {{"name", "f"}, {"strict", true}, {"parameters", Json::object()}}}};
  auto with = [&](const char* field, const Json& value) {
    Json request = hello(1);
    request["tools"] = Json::array({tool});
    request[field] = value;
    return refusal(c, CompletionKind::chat, request);
  };
  Json format{{"type", "json_schema"},
              {"json_schema", {{"name", "n"}, {"strict", true}, {"schema", schema}}}};
  EXPECT_EQ(with("response_format", format), "accepted");
  format["json_schema"]["extra"] = nullptr;  // null is as good as absent
  EXPECT_EQ(with("response_format", format), "accepted");
  format["json_schema"]["extra"] = 1;
  EXPECT_EQ(with("response_format", format), "invalid_argument response_format.json_schema.extra");
  EXPECT_EQ(with("response_format", {{"type", "text"}, {"schema", schema}}),
            "invalid_argument response_format.schema");
  EXPECT_EQ(with("response_format", {{"type", "json_object"}, {"json_schema", schema}}),
            "invalid_argument response_format.json_schema");
  EXPECT_EQ(with("stream_options", {{"include_usage", true}, {"include_obfuscation", false}}),
            "accepted");
  EXPECT_EQ(with("stream_options", {{"usage", true}}), "invalid_argument stream_options.usage");
  EXPECT_EQ(with("stream_options", {{"include_usage", "yes"}}),
            "invalid_argument stream_options.include_usage");
  EXPECT_EQ(with("tool_choice",
                 {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}),
            "invalid_argument tool_choice.function.arguments");
  tool["function"]["returns"] = schema;
  EXPECT_EQ(with("tools", Json::array({tool})), "invalid_argument tools[0].function.returns");
}

TEST_F(CompletionsTest, GrammarsThatLeaveNoTokenAreRefused) {
  Completions c(*model_, {});
  // Each rule calls the next and has something to come back for.
  auto nested = [](const std::string& before, int calls) {
    std::string grammar = "root ::= " + before + " r0\n";
    for (int i = 0; i < calls; ++i) {
      grammar += fmt::format("r{} ::= r{} \"b\"\n", i, i + 1);
    }
    return grammar + fmt::format("r{} ::= \"a\"\n", calls);
  };
  for (const char* before : {"", "\"x\""}) {
    Json request = hello(4);
    request["grammar"] = nested(before, 200);
    EXPECT_EQ(refusal(c, CompletionKind::chat, request), "accepted");
    request["grammar"] = nested(before, 400);
    try {
      c.run(CompletionKind::chat, request.dump(), {});
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::out_of_range);
      EXPECT_STREQ(e.what(), "the grammar nests more than 300 calls of rules");
    }
  }
}

TEST_F(CompletionsTest, RequiredToolIsCalled) {
  Completions c(*model_, {});
  Json request = hello(300);
  Json parameters{{"type", "object"},
                  {"properties", {{"on", {{"type", "boolean"}}}}},
                  {"required", Json::array({"on"})},
                  {"additionalProperties", false}};
  request["tools"] = Json::array(
      {{{"type", "function"}, {"function", {{"name", "light"}, {"parameters", parameters}}}}});
  request["tool_choice"] = "required";
  Json choice = chat(c, request)["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice.dump();
  Json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "light");
  EXPECT_TRUE(Json::parse(call["function"]["arguments"].get<std::string>())["on"].is_boolean());
}

TEST_F(CompletionsTest, ParametersOfToolsMayReferToTheirDefinitions) {
  Completions c(*model_, {});
  Json parameters = Json::parse(R"({"$defs":{"Room":{"enum":["kitchen","hall"]}},"type":"object",
    "properties":{"room":{"$ref":"#/$defs/Room"}},"required":["room"],
    "additionalProperties":false})");
  Json request = hello(300);
  for (const char* name : {"light", "door"}) {  // one call, then a choice of two
    request["tools"].push_back(
        {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}});
    request["tool_choice"] = "required";
    Json call = chat(c, request)["choices"][0]["message"]["tool_calls"][0]["function"];
    Json room = Json::parse(call["arguments"].get<std::string>())["room"];
    EXPECT_TRUE(room == "kitchen" || room == "hall") << room;
  }
}

TEST_F(CompletionsTest, ClientsAtOnceGetWhatEachGetsAlone) {
  Completions c(*model_, {.sequences = 3});
  constexpr int kClients = 6;
  std::vector<std::string> alone(kClients), together(kClients);
  auto ask = [&](int i) {
    Json request = hello(20);
    request["messages"][0]["content"] = "Question " + std::string(static_cast<size_t>(i * 7), 'x');
    request["temperature"] = i % 2;
    request["seed"] = i;
    return chat(c, request)["choices"][0]["message"].dump();
  };
  for (int i = 0; i < kClients; ++i) alone[static_cast<size_t>(i)] = ask(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] { together[static_cast<size_t>(i)] = ask(i); });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(alone, together);
}

TEST_F(CompletionsTest, StopStringsNeverShow) {
  Completions c(*model_, {});
  Json request{{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 40}};
  std::string all = text(c, request)["choices"][0]["text"];
  ASSERT_GT(all.size(), 12u);
  // A stop string out of the middle of the text, cut where characters begin.
  size_t at = 5;
  while ((static_cast<unsigned char>(all[at]) & 0xC0) == 0x80) ++at;
  size_t end = at + 3;
  while ((static_cast<unsigned char>(all[end]) & 0xC0) == 0x80) ++end;
  std::string stop = all.substr(at, end - at);
  request["stop"] = stop;
  Json choice = text(c, request)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["text"], all.substr(0, all.find(stop)));
}

TEST_F(CompletionsTest, PromptCacheSavesWorkAndChangesNothing) {
  std::string name = (fs::temp_directory_path() / "speech-cache-XXXXXX").string();
  std::string folder = ::mkdtemp(name.data());
  Json request = hello(10);
  request["messages"][0]["content"] = std::string(200, 'q');
  std::string expected;
  {
    Completions c(*model_, {.cache_folder = folder});
    Json first = chat(c, request), second = chat(c, request);
    EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    EXPECT_GT(second["usage"]["prompt_tokens_details"]["cached_tokens"], 100);
    EXPECT_EQ(first["choices"], second["choices"]);
    expected = first["choices"].dump();
  }
  EXPECT_FALSE(fs::is_empty(folder));
  {
    Completions c(*model_, {.cache_folder = folder});
    Json again = chat(c, request);
    EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 100);
    EXPECT_EQ(again["choices"].dump(), expected);
  }
  // A damaged file is a miss.
  for (const auto& file : fs::directory_iterator(folder)) {
    fs::resize_file(file.path(), fs::file_size(file.path()) - 8);
  }
  Completions c(*model_, {.cache_folder = folder});
  Json again = chat(c, request);
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(again["choices"].dump(), expected);
  fs::remove_all(folder);
}

TEST_F(CompletionsTest, RefusalsNameTheField) {
  Completions c(*model_, {});
  auto with = [&](const char* field, Json value) {
    Json request = hello();
    request[field] = std::move(value);
    return refusal(c, CompletionKind::chat, request);
  };
  EXPECT_EQ(refusal(c, CompletionKind::chat, Json::object()), "invalid_argument messages");
  EXPECT_EQ(with("n", 2), "invalid_argument n");
  EXPECT_EQ(with("temperature", -1), "out_of_range temperature");
  EXPECT_EQ(with("temperature", "hot"), "invalid_argument temperature");
  EXPECT_EQ(with("top_logprobs", 3), "invalid_argument top_logprobs");
  EXPECT_EQ(with("no_such_field", 1), "invalid_argument no_such_field");
  EXPECT_EQ(with("tool_choice", "required"), "invalid_argument tool_choice");
  EXPECT_EQ(with("response_format", {{"type", "xml"}}), "invalid_argument response_format");
  EXPECT_NE(
      with("response_format", {{"type", "json_schema"},
                               {"json_schema", {{"schema", {{"type", "object"}, {"if", true}}}}}}),
      "accepted");
  EXPECT_EQ(refusal(c, CompletionKind::text, {{"prompt", Json::array({1, 2, 999999})}}),
            "invalid_argument prompt");
  EXPECT_EQ(refusal(c, CompletionKind::text, {{"prompt", ""}}), "invalid_argument prompt");
  try {
    c.run(CompletionKind::chat, "{", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::invalid_argument);
  }
}

TEST_F(CompletionsTest, AFullQueueIsBusyAndALeavingClientIsCancelled) {
  Completions c(*model_, {.sequences = 1, .queue = 1});
  Json endless = hello(20000);
  endless["ignore_eos"] = true;
  std::atomic<bool> leave{false};
  std::vector<std::thread> clients;
  std::atomic<int> cancelled{0};
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&] {
      try {
        c.run(CompletionKind::chat, endless.dump(), {.gone = [&] { return leave.load(); }});
      } catch (const Error& e) {
        cancelled += e.status() == Status::cancelled;
      }
    });
    // One runs, the next waits.
    while (i == 0 ? c.counts().running == 0 : c.counts().waiting == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(refusal(c, CompletionKind::chat, hello()), "busy ");
  leave = true;
  for (auto& t : clients) t.join();
  EXPECT_EQ(cancelled, 2);
}

}  // namespace
}  // namespace speech
