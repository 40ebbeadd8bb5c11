// What the subcommands of language models share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"

namespace speech::cli {

// Ids of a text, added tokens included.
std::vector<int32_t> token_ids(speech_model* model, const std::string& text);

// A flag for token ids, 1,2,3.
CLI::Option* add_ids(CLI::App& app, const std::string& flag, std::vector<int32_t>& ids,
                     const std::string& help);

// Flags of sampling and limits, put into a request.
class SamplingFlags {
 public:
  void add(CLI::App& app);
  void apply(nlohmann::ordered_json& request) const;

 private:
  std::optional<double> temperature_, top_p_, min_p_, repetition_, presence_, frequency_;
  std::optional<int64_t> top_k_, seed_, max_tokens_;
  std::vector<std::string> stop_;
};

// --grammar, --json-schema, --prompt-cache-dir: settings of a speech_completions.
class CompletionFlags {
 public:
  void add(CLI::App& app);
  // What a server sets besides; left out, the library's own.
  struct Serving {
    std::string name;
    int sequences = 0, queue = 0;
  };
  CompletionsHandle make(speech_model* model, const Serving& serving) const;
  CompletionsHandle make(speech_model* model) const { return make(model, {}); }

 private:
  std::string grammar_, schema_, cache_;
};

// Runs a request whose answer is not streamed.
nlohmann::ordered_json complete(speech_completions* completions, speech_completion_kind kind,
                                const nlohmann::ordered_json& request);
// Runs a streamed one; `piece` gets each choice. A false from it ends the request.
void complete_stream(speech_completions* completions, speech_completion_kind kind,
                     nlohmann::ordered_json request,
                     const std::function<bool(const nlohmann::ordered_json& choice)>& piece);

}  // namespace speech::cli
