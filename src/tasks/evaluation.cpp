#include "tasks/evaluation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCalibrationTokens = 80;
constexpr const char* kWarmUp = "Say hello.";
constexpr std::array kCalibration = {
    "Why is the sky blue?",
    "Name three things that one finds on a desk.",
    "How do I save a file under another name?",
    "Describe a walk along a river in two sentences.",
    "What is the difference between a list and a table?",
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One streamed chat request, and what was seen of it.
struct Streamed {
  std::string content, finish_reason;
  std::optional<double> first_word;  // seconds from the call to the first text
};

Streamed ask(Completions& completions, Json request, uint64_t& resident) {
  Streamed s;
  request["stream"] = true;
  double begin = now();
  auto chunk = [&](std::string_view text) {
    resident = std::max(resident, resident_bytes());
    Json parsed = Json::parse(text);
    if (parsed["choices"].empty()) return true;
    const Json& choice = parsed["choices"][0];
    const Json& delta = choice["delta"];
    std::string piece = delta.value("content", ""), thought = delta.value("reasoning_content", "");
    if (!s.first_word && !(piece.empty() && thought.empty())) s.first_word = now() - begin;
    s.content += piece;
    if (choice["finish_reason"].is_string()) s.finish_reason = choice["finish_reason"];
    return true;
  };
  completions.run(CompletionKind::chat, request.dump(), {.chunk = chunk, .gone = {}});
  return s;
}

Json message(const char* role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

FixtureResult ask_fixture(Completions& completions, const FixtureSet& set, const Fixture& fixture,
                          const Json& fields, uint64_t& resident) {
  Json request{{"temperature", 0}, {"seed", 0}, {"max_tokens", 250}, {"enable_thinking", false}};
  request["messages"] = Json::array();
  if (!set.system_prompt.empty()) {
    request["messages"].push_back(message("system", set.system_prompt));
  }
  request["messages"].push_back(message("user", fixture_message(fixture)));
  if (!fixture.free_text && completions.settings().default_grammar.empty()) {
    Json schema = Json::parse(set.schema, nullptr, false);
    if (!schema.is_object()) {
      fail_option(Status::invalid_argument, "fixtures", "schema.json is not a JSON object");
    }
    request["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "answer"}, {"schema", schema}}}};
  }
  request.update(fields);
  Streamed s = ask(completions, std::move(request), resident);
  FixtureResult result{.name = fixture.name, .scored = fixture.scored()};
  result.answer = s.content;
  result.finish_reason = s.finish_reason;
  FixtureAnswer answer = parse_answer(fixture, s.content);
  if (!answer.error.empty() && s.finish_reason == "length") {
    answer.error += ": it was cut off at max_tokens";
  }
  result.failures = check_answer(fixture, answer);
  return result;
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void measure_speed(Completions& completions, Evaluation& e,
                   const std::function<void(int prompt)>& progress) {
  auto calibrate = [&](const char* prompt) {
    return ask(completions,
               {{"messages", Json::array({message("user", prompt)})},
                {"temperature", 0},
                {"max_tokens", kCalibrationTokens},
                {"ignore_eos", true},
                {"enable_thinking", false}},
               e.resident_bytes);
  };
  calibrate(kWarmUp);
  std::vector<double> first_words, speeds;
  for (size_t i = 0; i < kCalibration.size(); ++i) {
    progress(static_cast<int>(i));
    CompletionCounts before = completions.counts();
    Streamed s = calibrate(kCalibration[i]);
    CompletionCounts after = completions.counts();
    if (s.first_word) first_words.push_back(*s.first_word * 1000);
    // Tokens, not pieces of text: a piece may be several tokens. The first one comes with the
    // prompt.
    double tokens = static_cast<double>(after.generated_tokens - before.generated_tokens) - 1;
    double seconds = after.generation_seconds - before.generation_seconds;
    if (tokens > 0 && seconds > 0) speeds.push_back(tokens / seconds);
  }
  e.first_word_ms = median(first_words);
  e.tokens_per_second = median(speeds);
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

// A conversion of another number could be undefined behaviour.
uint64_t unsigned_number(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_unsigned()) {
    fail(Status::invalid_argument, "not the report of an evaluation: {} is no count", key);
  }
  return value.get<uint64_t>();
}

std::optional<double> optional_number(const Json& json, const char* key) {
  auto it = json.find(key);
  return it == json.end() || !it->is_number() ? std::nullopt
                                              : std::optional<double>(it->get<double>());
}

}  // namespace

int Evaluation::scored() const {
  return static_cast<int>(
      std::count_if(results.begin(), results.end(), [](auto& r) { return r.scored; }));
}

int Evaluation::passed() const {
  return static_cast<int>(std::count_if(results.begin(), results.end(),
                                        [](auto& r) { return r.scored && r.passed(); }));
}

double Evaluation::accuracy() const {
  return scored() == 0 ? 0 : static_cast<double>(passed()) / scored();
}

std::optional<double> Evaluation::score() const {
  if (!first_word_ms || !tokens_per_second || *first_word_ms <= 0 || disk_bytes == 0) {
    return std::nullopt;
  }
  double gib = static_cast<double>(disk_bytes + resident_bytes) / (1 << 30);
  return 120 / *first_word_ms * (*tokens_per_second / 50) * accuracy() * 2 / gib;
}

std::string Evaluation::json() const {
  Json list = Json::array();
  for (const FixtureResult& r : results) {
    list.push_back({{"name", r.name},
                    {"passed", r.scored ? Json(r.passed()) : Json()},
                    {"failures", r.failures},
                    {"finish_reason", r.finish_reason},
                    {"answer", r.answer}});
  }
  return Json{{"model", model},
              {"weights", weights},
              {"fixtures_sha256", fixtures_sha256},
              {"passed", passed()},
              {"scored", scored()},
              {"accuracy", accuracy()},
              {"disk_bytes", disk_bytes},
              {"resident_bytes", resident_bytes},
              {"first_word_ms", number_or_null(first_word_ms)},
              {"tokens_per_second", number_or_null(tokens_per_second)},
              {"score", number_or_null(score())},
              {"fixtures", list}}
      .dump();
}

Evaluation Evaluation::from_json(std::string_view text) {
  try {
    Json json = Json::parse(text);
    Evaluation e;
    e.model = json.at("model").get<std::string>();
    e.weights = json.at("weights").get<std::string>();
    e.fixtures_sha256 = json.at("fixtures_sha256").get<std::string>();
    e.disk_bytes = unsigned_number(json, "disk_bytes");
    e.resident_bytes = unsigned_number(json, "resident_bytes");
    e.first_word_ms = optional_number(json, "first_word_ms");
    e.tokens_per_second = optional_number(json, "tokens_per_second");
    for (const Json& f : json.at("fixtures")) {
      FixtureResult r{.name = f.at("name").get<std::string>()};
      r.scored = !f.at("passed").is_null();
      r.failures = f.at("failures").get<std::vector<std::string>>();
      r.answer = f.value("answer", "");
      r.finish_reason = f.value("finish_reason", "");
      e.results.push_back(std::move(r));
    }
    return e;
  } catch (const Json::exception& error) {
    fail(Status::invalid_argument, "not the report of an evaluation: {}", error.what());
  }
}

Evaluation evaluate(Completions& completions, const std::string& fixtures,
                    const EvaluationSettings& settings) {
  Json fields = Json::object();
  if (!settings.request.empty()) fields = Json::parse(settings.request, nullptr, false);
  if (!fields.is_object()) {
    fail_option(Status::invalid_argument, "request", "the request is not a JSON object");
  }
  FixtureSet set = read_fixtures(fixtures);
  const ModelInfo& info = completions.model().info();
  Evaluation e{.model = completions.settings().model_name,
               .weights = info.weight_type,
               .fixtures_sha256 = set.sha256,
               .disk_bytes = info.file_bytes};
  if (const std::string& grammar = completions.settings().default_grammar; !grammar.empty()) {
    std::string both = set.sha256 + grammar;  // takes the place of the schema
    e.fixtures_sha256 = sha256_hex(std::as_bytes(std::span(both)));
  }
  double steps = static_cast<double>(set.fixtures.size() + kCalibration.size());
  auto report = [&](size_t done) {
    if (settings.progress) settings.progress(static_cast<double>(done) / steps);
  };
  for (const Fixture& f : set.fixtures) {
    report(e.results.size());
    e.results.push_back(ask_fixture(completions, set, f, fields, e.resident_bytes));
  }
  if (e.scored() == 0) {
    fail_option(Status::invalid_argument, "fixtures", "{}: no fixture has a check", fixtures);
  }
  measure_speed(completions, e,
                [&](int prompt) { report(set.fixtures.size() + static_cast<size_t>(prompt)); });
  return e;
}

GateVerdict compare(const Evaluation& baseline, const Evaluation& candidate,
                    const GateSettings& settings) {
  if (baseline.fixtures_sha256 != candidate.fixtures_sha256 ||
      baseline.results.size() != candidate.results.size()) {
    fail_option(Status::invalid_argument, "baseline",
                "it was scored on other fixtures, another system prompt or another schema than {}",
                candidate.model);
  }
  GateVerdict v;
  for (size_t i = 0; i < candidate.results.size(); ++i) {
    const FixtureResult &before = baseline.results[i], &after = candidate.results[i];
    if (!after.scored || before.passed() == after.passed()) continue;
    (after.passed() ? v.won : v.lost).push_back(after.name);
  }
  v.accuracy_change = (candidate.accuracy() - baseline.accuracy()) * 100;
  constexpr double kRounding = 1e-9;  // of the two quotients
  if (-v.accuracy_change > settings.max_loss + kRounding) {
    v.reasons.push_back(
        fmt::format("{} of {} fixtures pass, {} before: {:.1f} points lost, at most "
                    "{:g} may be",
                    candidate.passed(), candidate.scored(), baseline.passed(), -v.accuracy_change,
                    settings.max_loss));
  }
  std::optional<double> before = baseline.score(), after = candidate.score();
  if (before && after && *before > 0) v.score_ratio = *after / *before;
  if (settings.min_score_ratio > 0 &&
      !(v.score_ratio && *v.score_ratio >= settings.min_score_ratio)) {
    v.reasons.push_back(
        v.score_ratio
            ? fmt::format("the score is {:.2f} times the baseline's, at least {:g} is asked",
                          *v.score_ratio, settings.min_score_ratio)
            : "one of the two has no score, or the baseline's is 0");
  }
  return v;
}

std::string GateVerdict::json() const {
  return Json{{"passed", passed()},
              {"reasons", reasons},
              {"accuracy_change", accuracy_change},
              {"score_ratio", number_or_null(score_ratio)},
              {"lost", lost},
              {"won", won}}
      .dump();
}

}  // namespace speech
