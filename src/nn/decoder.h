// The layers of a causal decoder of the Qwen3 kind: pre-norm, grouped-query attention with a norm
// on each head's query and key, rotary positions, gated SiLU feed-forward. Qwen3 language models
// use it whole; the decoders inside Qwen3-ASR and Qwen3-TTS are the same layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compute/kv_cache.h"
#include "compute/trace.h"
#include "nn/rope.h"

namespace speech {

struct DecoderConfig {
  int layers = 0;
  int64_t hidden = 0, intermediate = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 0;
  RopeSettings rope;
};

struct DecoderLayer {
  Tensor input_norm;      // [hidden]
  Weight q, k, v, o;      // [heads * head_dim, hidden], [kv_heads * head_dim, hidden] x2,
                          // [hidden, heads * head_dim]
  Tensor q_norm, k_norm;  // [head_dim]
  Tensor post_norm;       // [hidden]
  Weight gate, up, down;  // [intermediate, hidden] x2, [hidden, intermediate]
};

struct Decoder {
  DecoderConfig config;
  RopeTable rope;
  std::vector<DecoderLayer> layers;
  // Stage names of layer `l` begin with this; null when a family does not trace.
  std::string (*stage_prefix)(int l) = nullptr;
};

// The rows of one sequence within a step: its next `count` positions.
struct DecoderRows {
  KvCache* cache;
  int64_t count;
};

// Runs x[n, hidden] (embeddings of the new positions of all sequences, one sequence after the
// other) through all layers in place and appends to the caches. Weights are read once for all
// sequences.
void run_decoder(Run& run, const Decoder& decoder, const Tensor& x,
                 std::span<const DecoderRows> sequences);

}  // namespace speech
