// The network: chunks of samples to probabilities of speech.
//
// Reference: snakers4/silero-vad, the code inside silero_vad.jit (v6.2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compute/backend.h"
#include "compute/trace.h"
#include "models/silero_vad/weights.h"

namespace speech::silero_vad {

class Network {
 public:
  explicit Network(Weights weights);

  const Config& config() const { return weights_.config; }
  int64_t hidden() const { return weights_.hidden; }
  uint64_t weight_bytes() const;

  // Writes context and chunk (input() samples) with the padding of the transform behind them:
  // padded() samples.
  void pad(std::span<const float> input, std::span<float> padded) const;

  // Everything before the recurrent state, independent of the other chunks:
  // gates[n, 4 hidden] (without W_hh h) of padded[n, padded()].
  Tensor encode(Run& run, const Tensor& padded) const;
  // gates of one or more independent chunks += W_hh h[n, hidden].
  void add_state(Run& run, const Tensor& gates, const Tensor& h) const;
  // prob[n, 1] of the new states h[n, hidden].
  Tensor decode(Run& run, const Tensor& h) const;

  // The chunks of one stream in order: h and c [1, hidden] hold the state before and after.
  // all_h and all_c [n, hidden] get the state after each chunk; all_c may be empty. Returns
  // prob[n, 1].
  Tensor forward(Run& run, const Tensor& padded, const Tensor& h, const Tensor& c,
                 const Tensor& all_h, const Tensor& all_c) const;

 private:
  Tensor convolve(Run& run, size_t block, const Tensor& x, int64_t frames, int stage) const;

  Weights weights_;
  std::vector<std::vector<float>> taps_first_;  // encoder weights as [out, taps, in]
};

}  // namespace speech::silero_vad
