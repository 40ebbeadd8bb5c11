#include "language.h"

#include <cmath>
#include <type_traits>

#include "base/file.h"

namespace speech::cli {

using Json = nlohmann::ordered_json;

std::vector<int32_t> token_ids(speech_model* model, const std::string& text) {
  speech_text* raw = nullptr;
  check(speech_tokenize(model, c_text(text, "the prompt"), 1, &raw));
  TextHandle owned(raw);
  return Json::parse(speech_text_get(raw))["ids"].get<std::vector<int32_t>>();
}

CLI::Option* add_ids(CLI::App& app, const std::string& flag, std::vector<int32_t>& ids,
                     const std::string& help) {
  // CLI11 would read nothing as 0.
  auto given = [](const std::string& id) {
    return std::string(id.empty() ? "an id is empty" : "");
  };
  return app.add_option(flag, ids, help)->delimiter(',')->check(given)->type_name("IDS");
}

void SamplingFlags::add(CLI::App& app) {
  const char* group = "Sampling (defaults: generation_config.json's, else the likeliest token)";
  app.add_option("--temperature", temperature_, "0: always the likeliest token")->group(group);
  app.add_option("--top-k", top_k_, "Keep the k likeliest tokens; 0: all")->group(group);
  app.add_option("--top-p", top_p_, "Keep the likeliest tokens up to this probability")
      ->group(group);
  app.add_option("--min-p", min_p_, "Keep tokens this likely relative to the likeliest")
      ->group(group);
  app.add_option("--repetition-penalty", repetition_)->group(group);
  app.add_option("--presence-penalty", presence_)->group(group);
  app.add_option("--frequency-penalty", frequency_)->group(group);
  app.add_option("--seed", seed_, "The same seed gives the same text")->group(group);
  app.add_option("--max-tokens", max_tokens_, "Tokens of an answer at most");
  app.add_option("--stop", stop_, "End before this text (may be repeated)");
}

void SamplingFlags::apply(Json& request) const {
  auto put = [&](const char* name, const auto& value) {
    if (!value) return;
    if constexpr (std::is_same_v<decltype(value), const std::optional<double>&>) {
      if (!std::isfinite(*value))
        throw UsageError(fmt::format("{}: {} is no number", name, *value));
    }
    request[name] = *value;
  };
  put("temperature", temperature_);
  put("top_k", top_k_);
  put("top_p", top_p_);
  put("min_p", min_p_);
  put("repetition_penalty", repetition_);
  put("presence_penalty", presence_);
  put("frequency_penalty", frequency_);
  put("seed", seed_);
  put("max_tokens", max_tokens_);
  if (!stop_.empty()) request["stop"] = stop_;
}

void CompletionFlags::add(CLI::App& app) {
  app.add_option("--grammar", grammar_, "A file with a GBNF grammar or a JSON schema")
      ->type_name("FILE");
  app.add_option("--json-schema", schema_, "A JSON schema that answers must follow")
      ->type_name("JSON")
      ->excludes("--grammar");
  app.add_option("--prompt-cache-dir", cache_, "Keep prompts' keys and values here between runs")
      ->type_name("DIR");
}

CompletionsHandle CompletionFlags::make(speech_model* model, const Serving& serving) const {
  Handle<speech_completions_params, speech_completions_params_free> params(
      speech_completions_params_new());
  std::string grammar = grammar_.empty() ? schema_ : read_text_file(grammar_);
  if (!grammar.empty()) {
    check(speech_completions_params_set_grammar(params.get(), c_text(grammar, "the grammar")));
  }
  if (!cache_.empty()) check(speech_completions_params_set_cache(params.get(), cache_.c_str()));
  if (!serving.name.empty()) {
    check(speech_completions_params_set_name(params.get(), serving.name.c_str()));
  }
  if (serving.sequences > 0) {
    check(speech_completions_params_set_limits(params.get(), serving.sequences, serving.queue));
  }
  speech_completions* completions = nullptr;
  check(speech_completions_new(model, params.get(), &completions));
  return CompletionsHandle(completions);
}

Json complete(speech_completions* completions, speech_completion_kind kind, const Json& request) {
  speech_text* raw = nullptr;
  check(
      speech_complete(completions, kind, request.dump().c_str(), nullptr, nullptr, nullptr, &raw));
  TextHandle owned(raw);
  return Json::parse(speech_text_get(raw));
}

void complete_stream(speech_completions* completions, speech_completion_kind kind, Json request,
                     const std::function<bool(const Json& choice)>& piece) {
  request["stream"] = true;
  auto chunk = [](const char* json, void* user) -> int {
    Json parsed = Json::parse(json);
    if (parsed["choices"].empty()) return 0;
    const auto& call = *static_cast<const std::function<bool(const Json&)>*>(user);
    return call(parsed["choices"][0]) ? 0 : 1;
  };
  speech_text* raw = nullptr;
  speech_status status =
      speech_complete(completions, kind, request.dump().c_str(), chunk, nullptr,
                      const_cast<std::function<bool(const Json&)>*>(&piece), &raw);
  TextHandle owned(raw);
  check(status);
}

}  // namespace speech::cli
