// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace speech {

// Applied in this order, which is that of transformers' generate(): logit bias, repetition penalty,
// presence and frequency penalties, temperature, top_k, top_p, min_p.
struct SamplingSettings {
  double temperature = 0;  // 0: the largest logit, the lowest id on ties
  int64_t top_k = 0;       // keep logits not below the k-th largest; 0: all
  double top_p = 1;        // keep the most likely tokens that together reach this probability
  double min_p = 0;        // keep tokens at least this likely relative to the most likely one
  double repetition_penalty = 1;  // over every id of the context, the prompt included, once each
  double presence_penalty = 0;    // subtracted once for each id that has been generated
  double frequency_penalty = 0;   // subtracted for each time an id has been generated
  std::map<int32_t, double> logit_bias;
  std::vector<int32_t> suppressed;  // ids that never come out, whatever their bias
  uint64_t seed = 0;

  // Error(out_of_range) naming the option.
  void check() const;
};

// A small fast generator with the same numbers everywhere (SplitMix64, Steele et al. 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  double uniform();  // in [0, 1)

 private:
  uint64_t state_;
};

struct Candidate {
  int32_t id;
  double probability;
};

// What is left of `logits` after penalties and filters, most likely first, ids rising among equals;
// probabilities sum to 1. `allowed`: a bit for each id, empty for all; ids from `limit` on (padding
// rows of the head) never come out. Error(internal) when no token has a finite logit.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingSettings& settings,
                                  std::span<const int32_t> context, size_t prompt_size,
                                  int64_t limit, std::span<const uint32_t> allowed = {});

// One choice: the first candidate at temperature 0, else by a number from `random`.
int32_t sample(std::span<const float> logits, const SamplingSettings& settings,
               std::span<const int32_t> context, size_t prompt_size, int64_t limit, Random& random,
               std::span<const uint32_t> allowed = {});

// Natural logarithms of softmax over all of `logits`: that of `id` and the `count` most likely
// ones.
struct LogProbabilities {
  double chosen;
  std::vector<std::pair<int32_t, double>> top;
};
LogProbabilities log_probabilities(std::span<const float> logits, int32_t id, size_t count);

}  // namespace speech
