#include "nn/decoder.h"

#include <algorithm>
#include <cmath>

namespace speech {
namespace {

struct LayerTrace {
  Run& run;
  std::string prefix;  // empty: not traced

  void operator()(const char* name, const Tensor& x) const {
    if (!prefix.empty()) trace(run, prefix + name, x);
  }
};

// The softmax of queries q[n, heads, d] against a cache's keys k[s, kv_heads, d], [heads, n, s],
// which the operation on attention keeps to itself: with the rows of an identity as values it gives
// the weights of d keys at a time.
void trace_attention_weights(const LayerTrace& stage, const Tensor& q, const KvRows& k, float scale,
                             const AttentionMask& mask) {
  Backend& b = stage.run.backend;
  int64_t n = q.dim(0), heads = q.dim(1), d = q.dim(2), s = k.rows, kv_heads = k.heads;
  Workspace::Scope scope(stage.run.workspace);
  Tensor ones = stage.run.tensor({s, kv_heads, d});
  KvCache values(1, kv_heads, d, k.type);
  values.reserve(s);
  Tensor out = stage.run.tensor({n, heads, d});
  std::vector<float> identity(static_cast<size_t>(s * kv_heads * d));
  std::vector<float> part(static_cast<size_t>(n * heads * d));
  std::vector<float> weights(static_cast<size_t>(heads * n * s));
  for (int64_t first = 0; first < s; first += d) {
    int64_t count = std::min(d, s - first);
    std::fill(identity.begin(), identity.end(), 0.0f);
    for (int64_t i = 0; i < count * kv_heads; ++i) {
      identity[static_cast<size_t>((first * kv_heads + i) * d + i / kv_heads)] = 1;
    }
    b.write(ones, identity);
    b.store(values.value_rows(0, s), ones);
    AttentionSequence sequence{n, k, values.value_rows(0, s), mask.query_offset};
    b.cached_attention(out, q, {&sequence, 1}, scale, mask);
    b.read(out, part);
    for (int64_t row = 0; row < n * heads; ++row) {
      auto to = (row % heads * n + row / heads) * s + first;
      std::copy_n(part.begin() + row * d, count, weights.begin() + to);
    }
  }
  stage.run.trace->add(stage.prefix + "08_attention_weights", {heads, n, s}, weights);
}

// Attention of layer `l`, added to x[n, hidden].
void run_attention(Run& run, const Decoder& decoder, int l, const Tensor& x,
                   std::span<const DecoderRows> sequences, std::span<const int32_t> positions,
                   const LayerTrace& stage) {
  const DecoderConfig& c = decoder.config;
  const DecoderLayer& w = decoder.layers[static_cast<size_t>(l)];
  Backend& b = run.backend;
  Workspace::Scope scope(run.workspace);
  int64_t n = x.dim(0), d = c.head_dim;

  Tensor h = run.tensor({n, c.hidden});
  Tensor q = run.tensor({n, c.heads, d});
  Tensor k = run.tensor({n, c.kv_heads, d});
  Tensor v = run.tensor({n, c.kv_heads, d});
  Tensor a = run.tensor({n, c.heads, d});
  auto flat = [n](const Tensor& t) { return t.reshape({n, t.size() / n}); };

  b.rms_norm(h, x, w.input_norm, c.eps);
  stage("00_input_norm", h);
  b.matmul(h, {{flat(q), w.q}, {flat(k), w.k}, {flat(v), w.v}});
  stage("01_q_proj", flat(q));
  stage("02_k_proj", flat(k));
  stage("03_v_proj", flat(v));
  b.rms_norm(q, q, w.q_norm, c.eps);
  b.rms_norm(k, k, w.k_norm, c.eps);
  stage("04_q_norm", q);
  stage("05_k_norm", k);
  b.rope(q, positions, decoder.rope.inverse_frequency, decoder.rope.magnitude);
  b.rope(k, positions, decoder.rope.inverse_frequency, decoder.rope.magnitude);
  stage("06_q_rope", q.swap_axes(0, 1));
  stage("07_k_rope", k.swap_axes(0, 1));

  auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  AttentionMask mask{.causal = true};
  std::vector<KvWrite> writes;
  std::vector<AttentionSequence> batch;
  int64_t row = 0;
  for (const DecoderRows& s : sequences) {
    writes.push_back({s.cache->key_rows(l, s.count), k.slice(0, row, row + s.count)});
    writes.push_back({s.cache->value_rows(l, s.count), v.slice(0, row, row + s.count)});
    batch.push_back(
        {s.count, s.cache->keys(l, s.count), s.cache->values(l, s.count), s.cache->positions()});
    row += s.count;
  }
  b.store(writes);
  b.cached_attention(a, q, batch, scale, mask);
  if (!stage.prefix.empty() && batch.size() == 1) {
    mask.query_offset = batch[0].query_offset;
    trace_attention_weights(stage, q, batch[0].k, scale, mask);
  }
  stage("09_attention_values", flat(a));

  if (!stage.prefix.empty()) {  // the sum below hides the product itself
    Workspace::Scope extra(run.workspace);
    Tensor o = run.tensor({n, c.hidden});
    b.matmul(o, flat(a), w.o);
    stage("10_o_proj", o);
  }
  b.matmul(x, flat(a), w.o, {.add = x});
  stage("11_after_attention", x);
}

// Its feed-forward network, added to x[n, hidden].
void run_feed_forward(Run& run, const Decoder& decoder, int l, const Tensor& x,
                      const LayerTrace& stage) {
  const DecoderConfig& c = decoder.config;
  const DecoderLayer& w = decoder.layers[static_cast<size_t>(l)];
  Backend& b = run.backend;
  Workspace::Scope scope(run.workspace);
  int64_t n = x.dim(0);

  Tensor h = run.tensor({n, c.hidden});
  Tensor gated = run.tensor({n, c.intermediate});
  Tensor up = run.tensor({n, c.intermediate});
  b.rms_norm(h, x, w.post_norm, c.eps);
  stage("12_post_norm", h);
  if (!stage.prefix.empty()) {
    b.matmul(gated, h, w.gate);
    stage("13_gate_proj", gated);
  }
  b.matmul(h, {{up, w.up}, {gated, w.gate, {.activation = Activation::silu, .multiply = up}}});
  stage("14_up_proj", up);
  stage("15_silu_gate_times_up", gated);
  if (!stage.prefix.empty()) {
    Workspace::Scope extra(run.workspace);
    Tensor down = run.tensor({n, c.hidden});
    b.matmul(down, gated, w.down);
    stage("16_down_proj", down);
  }
  b.matmul(x, gated, w.down, {.add = x});
}

// One layer; x[n, hidden] is read and replaced.
void run_layer(Run& run, const Decoder& decoder, int l, const Tensor& x,
               std::span<const DecoderRows> sequences, std::span<const int32_t> positions) {
  bool traced = run.trace && decoder.stage_prefix;
  std::string prefix = traced ? decoder.stage_prefix(l) : "";
  // Stages inside a layer are recorded for the first one, outputs for all.
  LayerTrace stage{run, l == 0 ? prefix : ""};
  run_attention(run, decoder, l, x, sequences, positions, stage);
  run_feed_forward(run, decoder, l, x, stage);
  if (traced) trace(run, prefix + "17_out", x);
}

}  // namespace

void run_decoder(Run& run, const Decoder& decoder, const Tensor& x,
                 std::span<const DecoderRows> sequences) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(x.dim(0)));
  for (const DecoderRows& s : sequences) {
    s.cache->reserve(s.count);
    for (int64_t i = 0; i < s.count; ++i) {
      positions.push_back(static_cast<int32_t>(s.cache->positions() + i));
    }
  }
  for (int l = 0; l < decoder.config.layers; ++l) {
    run_layer(run, decoder, l, x, sequences, positions);
  }
  for (const DecoderRows& s : sequences) s.cache->advance(s.count);
}

}  // namespace speech
