// The task of language models: logits of the next token, for several sequences at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compute/kv_cache.h"
#include "models/model.h"
#include "text/bpe.h"

namespace speech {

// What generation_config.json advises.
struct SamplingDefaults {
  bool sample = false;
  // For sampling:
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  // With and without sampling:
  double repetition_penalty = 1;
  std::vector<int32_t> suppressed;  // ids that never come out
};

class LanguageModel : public Model {
 public:
  // The next ids of one sequence.
  struct Input {
    KvCache* cache = nullptr;      // positions seen so far; grows by ids.size()
    std::span<const int32_t> ids;  // at least one, each below vocabulary()
    bool all_logits = false;       // logits after every id, not only the last
  };

  // One pass over the weights for all inputs. Returns for each input its logits, [rows,
  // vocabulary()] one row after the other. What a sequence gets does not depend on the others in
  // the call. Error(out_of_range) past max_positions().
  virtual std::vector<std::vector<float>> step(std::span<const Input> inputs,
                                               Trace* trace = nullptr) = 0;

  virtual KvCache new_cache() const = 0;
  virtual int64_t vocabulary() const = 0;  // logits per position
  virtual int64_t max_positions() const = 0;
  virtual const std::shared_ptr<const BpeTokenizer>& tokenizer() const = 0;
  virtual const std::string& chat_template() const = 0;  // Jinja; empty if the model has none
  virtual const std::vector<int32_t>& eos() const = 0;
  virtual const SamplingDefaults& sampling() const = 0;
  // Changes whenever the same ids could give other keys and values: names a prompt cache.
  virtual std::string fingerprint() const = 0;
  // Largest workspace of any step so far, in bytes.
  virtual size_t workspace_bytes() const = 0;
};

}  // namespace speech
