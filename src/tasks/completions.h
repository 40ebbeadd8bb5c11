// OpenAI's completion requests over a language model: JSON in, JSON out, many requests in one
// batch. Shapes: openai/openai-openapi, CreateChatCompletionRequest and CreateCompletionRequest.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "models/language_model.h"
#include "tasks/generation.h"
#include "tasks/grammar_cache.h"
#include "tasks/prompt_cache.h"
#include "text/chat_template.h"

namespace speech {

enum class CompletionKind { chat, text };

struct CompletionSettings {
  std::string model_name;    // in answers; a request's "model" may be anything
  int sequences = 8;         // computed in one batch
  size_t queue = 64;         // while so many prompts wait, requests are refused with Status::busy
  std::string cache_folder;  // prompt caches on disk; empty: none
  // The constraint of requests that bring none: a JSON schema, or a GBNF grammar.
  std::string default_grammar;
};

// Numbers since the start, for a metrics endpoint.
struct CompletionCounts {
  uint64_t requests = 0, failed = 0, cancelled = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double prompt_seconds = 0, generation_seconds = 0;
  size_t running = 0, waiting = 0;
  uint64_t grammars = 0;  // compiled: a text that comes again soon is not compiled again
};

// Owns the thread that runs the model. run() may be called from any number of threads at once.
class Completions {
 public:
  Completions(LanguageModel& model, CompletionSettings settings);
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  struct Callbacks {
    // Each chunk of a streamed answer, in order, on the calling thread; false cancels.
    std::function<bool(std::string_view json)> chunk;
    // Asked a few times a second while waiting; true cancels.
    std::function<bool()> gone;
  };

  // Runs one request to its end. Returns the answer's JSON; of a streamed request ("stream": true)
  // the chunks go to callbacks.chunk and "" is returned. Errors: invalid_argument, unsupported,
  // out_of_range (naming the field), busy, cancelled, internal.
  std::string run(CompletionKind kind, std::string_view request, const Callbacks& callbacks);

  // The prompt a chat request becomes: its text and its ids.
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
  };
  Prompt chat_prompt(std::string_view request) const;

  CompletionCounts counts() const;
  LanguageModel& model() { return model_; }
  const CompletionSettings& settings() const { return settings_; }

 private:
  struct Job;
  class JobList;
  class Conversation;
  friend class Conversation;

  // Queues all of them, or none: Error(busy). What is queued stands in `jobs` in the same order.
  void submit(std::vector<GenerationRequest> requests, JobList& jobs);
  void loop();

  LanguageModel& model_;
  CompletionSettings settings_;
  PromptCache cache_;
  Generator generator_;
  std::shared_ptr<const TokenTrie> tokens_;
  GrammarCache grammars_;
  std::optional<ChatTemplate> template_;
  std::shared_ptr<const Grammar> default_grammar_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Job>> arrived_;
  std::vector<std::shared_ptr<Job>> running_;
  CompletionCounts counts_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace speech
