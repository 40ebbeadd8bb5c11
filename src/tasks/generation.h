// Text generation with a language model: many requests, one pass over the weights a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/language_model.h"
#include "nn/sampler.h"
#include "tasks/prompt_cache.h"
#include "text/grammar/grammar.h"

namespace speech {

struct GeneratedToken {
  int32_t id = 0;
  std::string bytes;           // as the tokenizer stores them; may end inside a code point
  double log_probability = 0;  // by the model's own logits; 0 unless asked for
  std::vector<std::pair<int32_t, double>> top;
};

enum class Finish { stop, length, cancelled, failed };
const char* finish_name(Finish finish);  // "stop", "length", "cancelled", "error"

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one id
  SamplingSettings sampling;
  int64_t max_tokens = -1;        // -1: until the model's positions are used up
  std::vector<std::string> stop;  // generation ends before the first of these
  bool ignore_eos = false;
  std::optional<int> top_log_probabilities;  // unset: none are computed
  bool prompt_log_probabilities = false;     // of the prompt's tokens too (all but the first)
  std::shared_ptr<const Grammar> grammar;
  // Called by the thread that steps, with text that can no longer change (whole code points, never
  // part of a stop string) and the tokens chosen since the last call. Returning true ends the
  // request.
  std::function<bool(std::string_view text, std::span<const GeneratedToken> tokens)> on_text;
};

struct GenerationResult {
  std::string text;                           // without special tokens and without the stop string
  std::vector<GeneratedToken> tokens;         // all chosen ones but an end-of-sequence
  std::vector<GeneratedToken> prompt_tokens;  // with prompt_log_probabilities
  Finish finish = Finish::stop;
  std::string error;  // with Finish::failed
  Status error_status = Status::ok;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  double prompt_seconds = 0, total_seconds = 0;
};

// One request under way.
class Generation {
 public:
  void cancel() { cancelled_ = true; }  // from any thread; takes effect at the next step
  bool done() const { return done_; }
  size_t prompt_size() const { return request.prompt.size(); }
  const GenerationResult& result() const { return result_; }  // once done()

 private:
  friend class Generator;
  GenerationRequest request;
  GenerationResult result_;
  std::atomic<bool> cancelled_{false}, done_{false};

  std::optional<KvCache> cache;
  std::vector<int32_t> ids;  // prompt and what was generated
  size_t computed = 0;       // ids whose keys and values are in the cache
  std::optional<Random> random;
  std::optional<GrammarState> grammar;
  std::string held;                   // bytes not given out yet
  std::vector<GeneratedToken> fresh;  // tokens since the last on_text
  double started = 0;
};

// Runs generations side by side (continuous batching): each step() takes the next token of every
// sequence that has its prompt behind it and a piece of the prompts of those that have not, in one
// pass. What a request gets does not depend on its neighbours. One thread calls add() and step();
// cancel() may come from any.
class Generator {
 public:
  struct Limits {
    int sequences = 8;           // computed together; more wait
    int64_t prompt_piece = 256;  // prompt positions a step may take while others generate
    // And without others: between steps requests join and leave.
    int64_t lone_prompt_piece = 512;
  };

  Generator(LanguageModel& model, Limits limits, PromptCache* cache = nullptr);

  // Error(out_of_range) when the prompt does not fit or a setting is out of its range,
  // Error(invalid_argument) for an empty prompt. Any thread.
  void check(const GenerationRequest& request) const;
  // check() and queue.
  std::shared_ptr<Generation> add(GenerationRequest request);
  size_t waiting() const { return queue_.size(); }
  size_t running() const { return running_.size(); }
  // One pass. False when there was nothing to do.
  bool step();
  // Steps until `generation` is done.
  GenerationResult run(GenerationRequest request);

 private:
  void start(Generation& g);
  void choose(Generation& g, std::span<const float> logits);
  void score_prompt(Generation& g, std::span<const float> logits, size_t first, size_t count);
  void give_text(Generation& g, bool last);
  void finish(Generation& g, Finish reason);
  GeneratedToken token(int32_t id, std::span<const float> logits,
                       const GenerationRequest& request) const;

  LanguageModel& model_;
  Limits limits_;
  PromptCache* cache_;
  std::deque<std::shared_ptr<Generation>> queue_;
  std::vector<std::shared_ptr<Generation>> running_;
};

}  // namespace speech
