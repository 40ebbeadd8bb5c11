// The two networks that transducers decode with: prediction (an LSTM over the tokens so far) and
// joint (of one encoder frame and one prediction).
#pragma once

#include <span>
#include <vector>

#include "compute/trace.h"
#include "models/fastconformer/weights.h"

namespace speech::fastconformer {

// What the prediction network knows after a sequence of tokens.
struct Prediction {
  std::vector<float> h, c;   // [layers, width]
  std::vector<float> joint;  // [joint width] its side of the joint
};

class Transducer {
 public:
  Transducer(const Weights& weights, const Config& config) : w_(weights), config_(config) {}

  const DecoderConfig& config() const { return config_.decoder; }
  // The state before any token; its first step takes the blank.
  Prediction start() const;

  // One LSTM step for each of several sequences: labels[i] after *before[i].
  std::vector<Prediction> predict(Run& run, std::span<const int32_t> labels,
                                  std::span<const Prediction* const> before) const;

  // The encoder's side of the joint: [rows, d_model] -> [rows, joint width].
  Tensor encoder_side(Run& run, const Tensor& encoded) const;

  // One evaluation of the joint: consecutive frames with the same prediction.
  struct Query {
    int64_t row, rows;
    const Prediction* prediction;
  };
  // Logits [sum of rows, pieces + blank + durations] in run.workspace.
  Tensor joint(Run& run, const Tensor& encoder_side, std::span<const Query> queries) const;

 private:
  const Weights& w_;
  const Config& config_;
};

// Natural logarithm of the softmax of `logits` at `index`.
double log_probability(std::span<const float> logits, int32_t index);

}  // namespace speech::fastconformer
