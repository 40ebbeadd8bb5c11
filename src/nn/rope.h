// Frequencies of rotary position embeddings.
#pragma once

#include <cstdint>
#include <vector>

namespace speech {

// Rotary embedding (Su et al. 2021, arXiv:2104.09864) over `dim` values of a head, and YaRN (Peng
// et al. 2023, arXiv:2309.00071) as transformers' modeling_rope_utils.py computes it.
struct RopeSettings {
  int64_t dim = 0;
  double theta = 10000;
  bool yarn = false;
  double factor = 1;
  double original_positions = 0;
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;  // 0: 0.1 ln(factor) + 1
  bool truncate = true;
};

struct RopeTable {
  std::vector<float> inverse_frequency;  // [dim / 2]
  float magnitude = 1;                   // multiplies cos and sin
};

RopeTable make_rope_table(const RopeSettings& settings);

}  // namespace speech
