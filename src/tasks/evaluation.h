// Scoring a language model on fixtures: how many it passes, how fast and how large it is, and
// whether a smaller or faster one is as good.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/completions.h"
#include "tasks/fixtures.h"

namespace speech {

struct FixtureResult {
  std::string name;
  bool scored = true;
  std::vector<std::string> failures;  // none: it passed
  std::string answer, finish_reason;

  bool passed() const { return failures.empty(); }
};

struct Evaluation {
  std::string model, weights;  // the type of most of its weights: "bf16", "int4-g64"
  std::string fixtures_sha256;
  std::vector<FixtureResult> results;
  uint64_t disk_bytes = 0;  // of its files
  uint64_t resident_bytes =
      0;  // the most that the process had while the model answered; 0: unknown
  // Medians over the calibration prompts. The time to the first word includes the prompt's.
  std::optional<double> first_word_ms, tokens_per_second;

  int scored() const;
  int passed() const;       // of those scored
  double accuracy() const;  // 0..1
  // (120 / first_word_ms) * (tokens_per_second / 50) * accuracy * 2 / (disk + resident, in GiB):
  // posttrainllm's formula. Unset where a number is.
  std::optional<double> score() const;

  // One line: every member and number above.
  std::string json() const;
  // Error(invalid_argument) when it is not such a text.
  static Evaluation from_json(std::string_view text);
};

struct EvaluationSettings {
  // A JSON object of fields for every fixture's chat request, beside and before the defaults:
  // temperature 0, seed 0, max_tokens 250.
  std::string request;
  // 0..1; throws to stop.
  std::function<void(double done)> progress;
};

// Asks every fixture of a folder, then measures speed with one prompt to warm up and five fixed
// ones of 80 tokens. The answers follow the folder's schema, or the default grammar of
// `completions` where that has one; a fixture of free text is not constrained by the schema.
// Nothing else should run on `completions` meanwhile.
Evaluation evaluate(Completions& completions, const std::string& fixtures,
                    const EvaluationSettings& settings);

struct GateSettings {
  double max_loss = 2;         // percentage points that the accuracy may fall
  double min_score_ratio = 0;  // of the formula's scores; 0: not asked
};

struct GateVerdict {
  std::vector<std::string> reasons;    // why it fails; none: it passes
  double accuracy_change = 0;          // percentage points
  std::optional<double> score_ratio;   // candidate over baseline
  std::vector<std::string> lost, won;  // fixtures

  bool passed() const { return reasons.empty(); }
  std::string json() const;
};

// Holds `candidate` against `baseline`. Error(invalid_argument, "baseline") when they were not
// asked the same: other fixtures, system prompt or schema.
GateVerdict compare(const Evaluation& baseline, const Evaluation& candidate,
                    const GateSettings& settings);

}  // namespace speech
