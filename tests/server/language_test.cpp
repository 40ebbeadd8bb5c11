// OpenAI's API over HTTP with a tiny random model whose logits and greedy tokens the official
// implementation gave (tests/data/qwen3/dense-tied).
#include "server/language.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/file.h"
#include "formats/safetensors.h"
#include "http_client.h"
#include "test_data.h"

namespace speech::server {
namespace {

using testing::HttpClient;
using testing::Reply;
using Json = nlohmann::ordered_json;

std::string model_folder() {
  return testing::data_path("qwen3/dense-tied/checkpoint");
}

struct Setup {
  AccessSettings access;
  int sequences = 8, queue = 64;
  uint64_t body_limit = uint64_t{64} << 20;
};

class LanguageServer {
 public:
  explicit LanguageServer(const Setup& setup = {}) : access_(setup.access) {
    speech_load_params* load = speech_load_params_new();
    speech_load_params_set_threads(load, 2);
    check(speech_model_load(model_folder().c_str(), load, &model_));
    speech_load_params_free(load);
    speech_completions_params* params = speech_completions_params_new();
    check(speech_completions_params_set_name(params, "tiny"));
    check(speech_completions_params_set_limits(params, setup.sequences, setup.queue));
    check(speech_completions_new(model_, params, &completions_));
    speech_completions_params_free(params);
    endpoints_.emplace(completions_, "tiny");
    http_.emplace(ServerSettings{.port = 0, .body_limit = setup.body_limit},
                  [this](const Request& request, Response& response) {
                    if (!guard(access_, request, response)) endpoints_->handle(request, response);
                  });
    port_ = http_->port();
    thread_ = std::thread([this] { http_->run(); });
  }
  ~LanguageServer() {
    http_->stop();
    http_->stop();
    thread_.join();
    speech_completions_free(completions_);
    speech_model_free(model_);
  }

  int port() const { return port_; }

  Reply get(const std::string& path, const HttpClient::Headers& headers = {}) const {
    return HttpClient(port_).request("GET", path, "", headers);
  }
  Reply post(const std::string& path, const std::string& body) const {
    return HttpClient(port_).request("POST", path, body, {{"Content-Type", "application/json"}});
  }
  Reply chat(const Json& request) const { return post("/v1/chat/completions", request.dump()); }
  Reply text(const Json& request) const { return post("/v1/completions", request.dump()); }

  // The one choice of a request that must succeed.
  Json chat_choice(const Json& request) const { return choice(chat(request)); }
  Json text_choice(const Json& request) const { return choice(text(request)); }
  // The chunks of a streamed one.
  std::vector<Json> stream(const std::string& path, Json request) const {
    request["stream"] = true;
    Reply reply = post(path, request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<std::string> events = reply.events();
    EXPECT_TRUE(!events.empty() && events.back() == "[DONE]") << reply.body;
    std::vector<Json> chunks;
    for (size_t i = 0; i + 1 < events.size(); ++i) chunks.push_back(Json::parse(events[i]));
    return chunks;
  }
  // "STATUS PARAM" of a request that must fail.
  static std::string refusal(const Reply& reply) {
    Json error = Json::parse(reply.body)["error"];
    EXPECT_FALSE(error["message"].get<std::string>().empty());
    EXPECT_EQ(error["type"], reply.status == 429 ? "rate_limit_error" : "invalid_request_error");
    std::string param = error["param"].is_null() ? "-" : error["param"].get<std::string>();
    return std::to_string(reply.status) + " " + param;
  }

  double metric(const std::string& name) const {
    std::string text = "\n" + get("/metrics").body;
    size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) throw std::runtime_error("no metric " + name);
    return std::stod(text.substr(at + name.size() + 2));
  }
  void wait_until(const std::function<bool()>& condition) const {
    auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited in vain");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void wait_until_idle() const {
    wait_until([&] {
      return metric("speech_requests_running") == 0 && metric("speech_requests_waiting") == 0;
    });
  }

 private:
  static void check(speech_status status) {
    if (status != SPEECH_OK) throw std::runtime_error(speech_last_error());
  }
  static Json choice(const Reply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["choices"].at(0);
  }

  AccessSettings access_;
  speech_model* model_ = nullptr;
  speech_completions* completions_ = nullptr;
  std::optional<LanguageEndpoints> endpoints_;
  std::optional<HttpServer> http_;
  int port_ = 0;
  std::thread thread_;
};

Json hello(int tokens = 12) {
  return {{"model", "tiny"},
          {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
          {"temperature", 0},
          {"max_tokens", tokens}};
}

// A request that ends when its client leaves, and not before the test is over.
Json endless() {
  Json request = hello(30000);
  request["ignore_eos"] = true;
  return request;
}

Json golden() {
  return Json::parse(read_text_file(testing::data_path("qwen3/dense-tied/expect.json")));
}

TEST(LanguageServer, HealthModelsAndMetrics) {
  LanguageServer server;
  EXPECT_EQ(server.get("/health").body, R"({"status":"ok"})");
  Json models = Json::parse(server.get("/v1/models").body);
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(Json::parse(server.get("/v1/models/tiny").body), models["data"][0]);

  EXPECT_EQ(server.metric("speech_requests_total"), 0);
  double prompt = 0, generated = 0;
  for (int tokens : {3, 5}) {
    Json usage = Json::parse(server.chat(hello(tokens)).body)["usage"];
    prompt += usage["prompt_tokens"].get<double>();
    generated += usage["completion_tokens"].get<double>();
  }
  server.wait_until_idle();
  EXPECT_EQ(server.metric("speech_requests_total"), 2);
  EXPECT_EQ(server.metric("speech_prompt_tokens_total"), prompt);
  EXPECT_EQ(server.metric("speech_cached_tokens_total"), prompt / 2 - 1);
  EXPECT_EQ(server.metric("speech_generated_tokens_total"), generated);
  EXPECT_EQ(server.metric("speech_requests_failed_total"), 0);
  EXPECT_GT(server.metric("speech_generation_seconds_total"), 0);
  EXPECT_TRUE(server.get("/metrics").headers["content-type"].starts_with("text/plain"));
}

TEST(LanguageServer, GreedyTokensAreTheOfficialOnes) {
  LanguageServer server;
  Json expect = golden();
  auto count = expect["greedy_ids"].size();
  // One answer with the ids, and one whose pieces add up to its text.
  Json request{{"prompt", expect["ids"]},
               {"temperature", 0},
               {"max_tokens", count},
               {"ignore_eos", true},
               {"return_ids", true}};
  Json choice = server.text_choice(request);
  EXPECT_EQ(choice["ids"], expect["greedy_ids"]);
  EXPECT_EQ(choice["finish_reason"], "length");
  std::string text;
  for (const Json& chunk : server.stream("/v1/completions", request)) {
    EXPECT_EQ(chunk["object"], "text_completion");
    text += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, choice["text"]);
}

TEST(LanguageServer, EchoGivesTheLogProbabilitiesOfThePrompt) {
  LanguageServer server;
  Json ids = golden()["ids"];
  Json choice = server.text_choice(
      {{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}, {"temperature", 0}});
  EXPECT_EQ(choice["text"], golden()["prompt"]);
  const Json& log = choice["logprobs"];
  ASSERT_EQ(log["tokens"].size(), ids.size());
  EXPECT_TRUE(log["token_logprobs"][0].is_null());
  EXPECT_TRUE(log["top_logprobs"][0].is_null());

  auto file = SafetensorsFile::open(testing::data_path("qwen3/dense-tied/stages.safetensors"));
  std::vector<float> logits = to_f32(file->require("91_logits"));
  size_t width = logits.size() / ids.size();
  int64_t offset = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(log["text_offset"][i], offset);
    offset += std::ssize(log["tokens"][i].get<std::string>());  // ASCII
    if (i == 0) continue;
    const float* row = logits.data() + (i - 1) * width;
    double sum = 0, largest = row[0];
    for (size_t t = 0; t < width; ++t) {
      sum += std::exp(row[t]);
      largest = std::max<double>(largest, row[t]);
    }
    // The logits themselves differ by 5e-5 of their RMS of about 4 (docs/language-models.md).
    EXPECT_NEAR(log["token_logprobs"][i], row[ids[i].get<size_t>()] - std::log(sum), 1e-3) << i;
    ASSERT_EQ(log["top_logprobs"][i].size(), 2u);
    EXPECT_NEAR(log["top_logprobs"][i].front(), largest - std::log(sum), 1e-3);
  }
}

TEST(LanguageServer, AChatStreamAddsUpToTheAnswer) {
  LanguageServer server;
  Json request = hello(30);
  request["logprobs"] = true;
  request["top_logprobs"] = 2;
  Json answer = Json::parse(server.chat(request).body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "tiny");
  const Json& whole = answer["choices"][0];
  EXPECT_EQ(whole["message"]["role"], "assistant");

  request["stream_options"] = {{"include_usage", true}};
  std::vector<Json> chunks = server.stream("/v1/chat/completions", request);
  ASSERT_GE(chunks.size(), 4u);  // role, text, reason, usage
  EXPECT_EQ(chunks.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
  std::string content, reasoning;
  Json finish, log = Json::array();
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    for (const Json& choice : chunk["choices"]) {
      content += choice["delta"].value("content", "");
      reasoning += choice["delta"].value("reasoning_content", "");
      if (!choice["logprobs"].is_null()) {
        for (const Json& entry : choice["logprobs"]["content"]) log.push_back(entry);
      }
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
  }
  EXPECT_EQ(content, whole["message"]["content"]);
  EXPECT_EQ(reasoning, whole["message"].value("reasoning_content", ""));
  EXPECT_EQ(finish, whole["finish_reason"]);
  EXPECT_EQ(log, whole["logprobs"]["content"]);
  EXPECT_EQ(log.size(), answer["usage"]["completion_tokens"].get<size_t>());
  for (const Json& entry : log) {  // the likeliest token is the one taken
    ASSERT_EQ(entry["top_logprobs"].size(), 2u);
    EXPECT_EQ(entry["logprob"], entry["top_logprobs"][0]["logprob"]);
    EXPECT_LE(entry["top_logprobs"][1]["logprob"], entry["logprob"]);
  }
}

TEST(LanguageServer, StopStringsEndTheAnswerAndNeverShow) {
  LanguageServer server;
  Json request{{"prompt", "Once upon a time"}, {"temperature", 0}, {"max_tokens", 60}};
  std::string all = server.text_choice(request)["text"];
  // Stops of several lengths out of the text, also inside of tokens; the model's text has bytes
  // that are no UTF-8 too, which no stop can name.
  for (size_t length : {1, 3, 5, 8}) {
    size_t from = 5 + length;
    auto plain = [&] {
      return std::all_of(all.begin() + static_cast<long>(from),
                         all.begin() + static_cast<long>(from + length),
                         [](char c) { return c >= ' ' && c <= '~'; });
    };
    while (from + length < all.size() && !plain()) ++from;
    ASSERT_LT(from + length, all.size());
    std::string stop = all.substr(from, length);
    request["stop"] = Json::array({"never in this text", stop});
    std::string expected = all.substr(0, all.find(stop));
    Json choice = server.text_choice(request);
    EXPECT_EQ(choice["text"], expected);
    EXPECT_EQ(choice["finish_reason"], "stop");
    std::string streamed;
    for (const Json& chunk : server.stream("/v1/completions", request)) {
      streamed += chunk["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(streamed, expected);
  }
}

TEST(LanguageServer, TheSeedDecides) {
  LanguageServer server;
  Json request = hello(40);
  request["temperature"] = 1;
  request["top_k"] = 0;
  request["top_p"] = 1;
  auto with_seed = [&](int seed) {
    request["seed"] = seed;
    return server.chat_choice(request)["message"];
  };
  EXPECT_EQ(with_seed(7), with_seed(7));
  EXPECT_NE(with_seed(7), with_seed(8));
}

TEST(LanguageServer, ASchemaOrAGrammarDecidesTheForm) {
  LanguageServer server;
  Json schema = Json::parse(R"({"type":"object","required":["kind","on"],
    "properties":{"kind":{"enum":["lamp","door"]},"on":{"type":"boolean"},
                  "names":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},
    "additionalProperties":false})");
  Json request = hello(300);
  request["temperature"] = 1.5;
  request["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "thing"}, {"schema", schema}}}};
  for (int seed = 0; seed < 6; ++seed) {
    request["seed"] = seed;
    Json choice = server.chat_choice(request);
    ASSERT_EQ(choice["finish_reason"], "stop");
    Json value = Json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["kind"] == "lamp" || value["kind"] == "door") << value;
    EXPECT_TRUE(value["on"].is_boolean()) << value;
    EXPECT_LE(value.value("names", Json::array()).size(), 2u) << value;
  }
  EXPECT_EQ(server.metric("speech_grammars_compiled_total"), 1) << "by the first request";
  request["response_format"] = {{"type", "json_object"}};
  request["max_tokens"] = 3000;
  Json choice = server.chat_choice(request);
  if (choice["finish_reason"] == "stop") {  // a text without an end is cut
    EXPECT_TRUE(Json::parse(choice["message"]["content"].get<std::string>()).is_object());
  }

  request = hello(50);
  request["grammar"] = "root ::= \"yes \" (\"and no\" | \"or no\") [0-9]";
  std::string content = server.chat_choice(request)["message"]["content"];
  EXPECT_TRUE(content.starts_with("yes and no") || content.starts_with("yes or no")) << content;
  EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(content.back()))) << content;
  Json text{{"prompt", "x"}, {"grammar", "root ::= \"exactly this\""}, {"max_tokens", 50}};
  EXPECT_EQ(server.text_choice(text)["text"], "exactly this");
}

Json light_tools() {
  return Json::parse(R"([
    {"type":"function","function":{"name":"light","parameters":{"type":"object",
      "properties":{"on":{"type":"boolean"}},"required":["on"],"additionalProperties":false}}},
    {"type":"function","function":{"name":"door","parameters":{"type":"object",
      "properties":{"state":{"enum":["open","shut"]}},"required":["state"],
      "additionalProperties":false}}}])");
}

TEST(LanguageServer, ToolsAreCalledWhenTheyMustBe) {
  LanguageServer server;
  Json request = hello(300);
  request["tools"] = light_tools();
  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "door"}}}};
  Json choice = server.chat_choice(request);
  ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  Json function = choice["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], "door");
  Json state = Json::parse(function["arguments"].get<std::string>())["state"];
  EXPECT_TRUE(state == "open" || state == "shut");

  Json streamed, finish;
  for (const Json& chunk : server.stream("/v1/chat/completions", request)) {
    const Json& part = chunk["choices"][0];
    if (part["delta"].contains("tool_calls")) streamed = part["delta"]["tool_calls"][0];
    if (!part["finish_reason"].is_null()) finish = part["finish_reason"];
  }
  EXPECT_EQ(streamed["function"], function);
  EXPECT_EQ(streamed["index"], 0);
  EXPECT_EQ(finish, "tool_calls");

  request["tool_choice"] = "required";
  request["temperature"] = 1;
  std::set<std::string> called;
  for (int seed = 0; seed < 20; ++seed) {
    request["seed"] = seed;
    called.insert(server.chat_choice(request)["message"]["tool_calls"][0]["function"]["name"]);
  }
  EXPECT_EQ(called, (std::set<std::string>{"light", "door"}));
  // What the tools are changes the prompt; "none" takes them out of it.
  auto prompt_tokens = [&](const Json& r) {
    return Json::parse(server.chat(r).body)["usage"]["prompt_tokens"].get<int>();
  };
  request["max_tokens"] = 5;
  request["tool_choice"] = "none";
  EXPECT_FALSE(server.chat_choice(request)["message"].contains("tool_calls"));
  EXPECT_EQ(prompt_tokens(request), prompt_tokens(hello(5)));
  request["tool_choice"] = "auto";
  EXPECT_GT(prompt_tokens(request), prompt_tokens(hello(5)) + 50);
  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "window"}}}};
  EXPECT_EQ(server.refusal(server.chat(request)), "400 tool_choice");
}

TEST(LanguageServer, RefusalsNameTheField) {
  LanguageServer server({.body_limit = 10000});
  auto with = [&](const char* field, Json value) {
    Json request = hello();
    request[field] = std::move(value);
    return server.refusal(server.chat(request));
  };
  EXPECT_EQ(with("temperature", -1), "400 temperature");
  EXPECT_EQ(with("n", 2), "400 n");
  EXPECT_EQ(with("no_such_field", 1), "400 no_such_field");
  EXPECT_EQ(with("grammar", "root ::= root"), "400 grammar");
  EXPECT_EQ(with("messages", "hi"), "400 messages");
  EXPECT_EQ(server.refusal(server.text({{"prompt", ""}})), "400 prompt");
  // A keyword that would have to be ignored is named.
  Json schema{{"type", "object"}, {"patternProperties", Json::object()}};
  Json request = hello();
  request["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}};
  Reply reply = server.chat(request);
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("patternProperties"), std::string::npos) << reply.body;
  // The same where the answer would have been streamed: the status line is not sent yet.
  request["stream"] = true;
  EXPECT_EQ(server.chat(request).status, 400);

  for (std::string body :
       {std::string("{"), std::string(), std::string("[]"),
        std::string("{\"prompt\":\"a\"}\0x", 16), std::string("{\"prompt\":\"\xFF\"}"),
        "{\"prompt\":" + std::string(4000, '[') + std::string(4000, ']') + "}"}) {
    EXPECT_EQ(server.refusal(server.post("/v1/completions", body)), "400 -") << body;
  }
  EXPECT_EQ(server.refusal(server.post("/v1/completions", std::string(10001, ' '))), "413 -");
}

TEST(LanguageServer, UnknownRoutesMethodsAndModels) {
  LanguageServer server;
  EXPECT_EQ(server.refusal(server.get("/v1/nothing")), "404 -");
  EXPECT_EQ(server.refusal(server.get("/v1/models/other")), "404 -");
  EXPECT_EQ(server.refusal(server.get("/v1/chat/completions")), "405 -");
  EXPECT_EQ(server.refusal(server.post("/health", "")), "405 -");
  // The server has one model; a request may call it what it likes.
  Json request = hello(2);
  request["model"] = "gpt-4o";
  EXPECT_EQ(Json::parse(server.chat(request).body)["model"], "tiny");
}

TEST(LanguageServer, TheApiKeyIsAskedFor) {
  LanguageServer server({.access = {.api_key = "secret"}});
  EXPECT_EQ(server.refusal(server.get("/v1/models")), "401 -");
  for (const char* wrong :
       {"Bearer ", "Bearer secre", "Bearer secret2", "secret", "Basic secret"}) {
    EXPECT_EQ(server.get("/v1/models", {{"Authorization", wrong}}).status, 401) << wrong;
  }
  EXPECT_EQ(server.chat(hello(1)).status, 401);
  EXPECT_EQ(server.get("/metrics").status, 401);
  EXPECT_EQ(server.get("/v1/models", {{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(server.get("/health").status, 200) << "for those who watch over the process";
}

TEST(LanguageServer, ForeignPagesAreRefused) {
  LanguageServer server;
  for (const char* host : {"evil.example", "evil.example:80", "127.0.0.1.evil.example", ""}) {
    EXPECT_EQ(server.get("/v1/models", {{"Host", host}}).status, 403) << host;
  }
  for (const char* host : {"localhost", "localhost:1", "127.0.0.1", "[::1]:8080"}) {
    EXPECT_EQ(server.get("/v1/models", {{"Host", host}}).status, 200) << host;
  }
  EXPECT_EQ(server.get("/v1/models", {{"Origin", "http://evil.example"}}).status, 403);
  std::string own = "http://127.0.0.1:" + std::to_string(server.port());
  EXPECT_EQ(server.get("/v1/models", {{"Origin", own}}).headers["access-control-allow-origin"],
            own);

  LanguageServer open({.access = {.api_key = "k", .cors_origins = {"https://app.example"}}});
  Reply preflight =
      HttpClient(open.port())
          .request("OPTIONS", "/v1/chat/completions", "", {{"Origin", "https://app.example"}});
  EXPECT_EQ(preflight.status, 204) << "a preflight carries no key";
  EXPECT_EQ(preflight.headers["access-control-allow-origin"], "https://app.example");
  EXPECT_NE(preflight.headers["access-control-allow-headers"].find("Authorization"),
            std::string::npos);
  EXPECT_EQ(
      open.get("/v1/models", {{"Origin", "https://app.example"}, {"Authorization", "Bearer k"}})
          .status,
      200);
  EXPECT_EQ(open.get("/v1/models", {{"Origin", "https://app.example.evil.example"},
                                    {"Authorization", "Bearer k"}})
                .status,
            403);
}

TEST(LanguageServer, AFullQueueIs429) {
  LanguageServer server({.sequences = 1, .queue = 1});
  HttpClient running(server.port()), waiting(server.port());
  running.send_request("POST", "/v1/chat/completions", endless().dump());
  server.wait_until([&] { return server.metric("speech_requests_running") == 1; });
  waiting.send_request("POST", "/v1/chat/completions", endless().dump());
  server.wait_until([&] { return server.metric("speech_requests_waiting") == 1; });
  Reply reply = server.chat(hello(1));
  EXPECT_EQ(server.refusal(reply), "429 -");
  EXPECT_EQ(reply.headers["retry-after"], "1");
  // Who waits and leaves makes room, though what runs goes on.
  waiting.leave();
  server.wait_until([&] { return server.metric("speech_requests_waiting") == 0; });
  EXPECT_EQ(server.metric("speech_requests_running"), 1);
  running.leave();
  EXPECT_EQ(server.chat(hello(1)).status, 200);
}

// A grammar that compiles but goes on in more ways at once than are followed.
TEST(LanguageServer, AGrammarTooAmbiguousToStartEndsItsRequestAlone) {
  LanguageServer server;
  std::string grammar = "root ::= r0", rules;
  for (int i = 0; i < 2100; ++i) {
    std::string name = "r" + std::to_string(i);
    if (i > 0) grammar += " | " + name;
    rules += "\n" + name + " ::= \"" + std::to_string(i) + "\"";
  }
  Json request = hello(1);
  request["grammar"] = grammar + rules;
  Reply reply = server.chat(request);
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_NE(reply.body.find("too ambiguous"), std::string::npos) << reply.body;
  EXPECT_EQ(server.chat(hello(1)).status, 200);
}

TEST(LanguageServer, AClientThatLeavesEndsItsGeneration) {
  LanguageServer server;
  double left = 0;
  auto leave = [&](const std::string& path, Json request, double requests) {
    HttpClient client(server.port());
    client.send_request("POST", path, request.dump());
    if (request.contains("stream")) {
      while (client.read_some().find("content") == std::string::npos) {
      }
    } else {
      server.wait_until([&] { return server.metric("speech_requests_running") == requests; });
    }
    client.leave();
    server.wait_until_idle();
    left += requests;
    // Counted once the model's thread has seen it, which may be a little after the place is free.
    server.wait_until([&] { return server.metric("speech_requests_cancelled_total") == left; });
  };
  leave("/v1/chat/completions", endless(), 1);
  Json stream = endless();
  stream["stream"] = true;
  leave("/v1/chat/completions", stream, 1);
  // Every prompt of a request.
  leave("/v1/completions",
        {{"prompt", {"a", "b", "c"}}, {"max_tokens", 30000}, {"ignore_eos", true}}, 3);
  EXPECT_LT(server.metric("speech_generated_tokens_total"), 5 * 30000);
}

TEST(LanguageServer, ClientsAtOnceGetWhatEachGetsAlone) {
  LanguageServer server({.sequences = 3});
  constexpr int kClients = 6;
  auto ask = [&](int i) {
    Json request = hello(20);
    request["messages"][0]["content"] = "Question " + std::string(static_cast<size_t>(i * 7), 'x');
    request["temperature"] = i % 2;
    request["seed"] = i;
    return server.chat_choice(request)["message"].dump();
  };
  std::vector<std::string> alone(kClients), together(kClients);
  for (int i = 0; i < kClients; ++i) alone[static_cast<size_t>(i)] = ask(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] { together[static_cast<size_t>(i)] = ask(i); });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(alone, together);
}

}  // namespace
}  // namespace speech::server
