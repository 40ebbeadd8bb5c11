#include "models/fastconformer/encoder.h"

#include <algorithm>
#include <cmath>

#include "models/fastconformer/subsampling.h"

namespace speech::fastconformer {
namespace {

// Rows of a feed-forward's inner activations that exist at a time.
constexpr int64_t kFeedForwardRows = 1024;

// The tensors that one pass over the layers works in; rows of all utterances.
struct Activations {
  Tensor x;          // [rows, d] the residual stream
  Tensor y;          // [rows, d] what a module reads; the attention's context
  Tensor q, k, v;    // [rows, d] attention; the convolution module uses the same three
  Tensor hidden;     // [up to kFeedForwardRows, ff]; lies where q, k and v do
  Tensor positions;  // [distances, d] sinusoids
  Tensor p;          // [distances, d] the same as a layer projects them
};

// A stage that is computed only inside a fused product: the product alone, when anybody asks.
void trace_product(Run& run, const char* name, const Tensor& x, const Linear& w) {
  if (!run.trace || !name) return;
  Workspace::Scope scope(run.workspace);
  Tensor out = run.tensor({x.dim(0), w.weight.rows});
  run.backend.matmul(out, x, w.weight, {.bias = w.bias});
  trace(run, name, out);
}

void norm(Run& run, const Tensor& out, const Tensor& x, const Norm& w, float eps) {
  run.backend.layer_norm(out, x, w.weight, w.bias, eps);
}

// x += factor * down(silu(up(y)))
void feed_forward(Run& run, Activations& a, const Linear& up, const Linear& down, float factor,
                  const char* stage) {
  for (int64_t begin = 0; begin < a.x.dim(0); begin += kFeedForwardRows) {
    const int64_t end = std::min(a.x.dim(0), begin + kFeedForwardRows);
    const Tensor x = a.x.slice(0, begin, end), y = a.y.slice(0, begin, end);
    const Tensor hidden = a.hidden.slice(0, 0, end - begin);
    run.backend.matmul(hidden, y, up.weight, {.bias = up.bias, .activation = Activation::silu});
    trace_product(run, stage, hidden, down);
    run.backend.matmul(x, hidden, down.weight, {.bias = down.bias, .scale = factor, .add = x});
  }
}

// y = attention(y) before its output product: relative positions as in Transformer-XL.
void attention(Run& run, Activations& a, const Layer& w, const EncoderConfig& c,
               std::span<const Utterance> utterances) {
  run.backend.matmul(a.y, {{a.q, w.q.weight, {.bias = w.q.bias}},
                           {a.k, w.k.weight, {.bias = w.k.bias}},
                           {a.v, w.v.weight, {.bias = w.v.bias}}});
  run.backend.matmul(a.p, a.positions, w.pos);

  const int64_t heads = c.num_heads, size = c.head_size();
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  AttentionMask mask;
  if (c.local) {
    mask.window_left = mask.window_right = c.context;
    mask.global_keys = c.global_tokens;
  }
  for (const Utterance& u : utterances) {
    const auto rows = [&](const Tensor& t) {
      return t.slice(0, u.first, u.first + u.frames).reshape({u.frames, heads, size});
    };
    // Distances frames - 1 down to -(frames - 1) are the middle of the longest utterance's.
    const int64_t distances = c.local ? a.p.dim(0) : 2 * u.frames - 1;
    const int64_t skip = (a.p.dim(0) - distances) / 2;
    const Tensor p = a.p.slice(0, skip, skip + distances).reshape({distances, heads, size});
    run.backend.relative_attention(rows(a.y), rows(a.q), rows(a.k), rows(a.v), p, w.pos_bias_u,
                                   w.pos_bias_v, scale, mask);
  }
}

// v = silu(batch_norm(depthwise(glu(y)))): the convolution module before its last product.
void convolution(Run& run, Activations& a, const Layer& w, std::span<const Utterance> utterances) {
  const Tensor &gate = a.q, &glu = a.k, &out = a.v;
  run.backend.matmul(
      a.y,
      {{gate, w.conv_gate.weight, {.bias = w.conv_gate.bias, .activation = Activation::sigmoid}},
       {glu, w.conv_value.weight, {.bias = w.conv_value.bias, .multiply = gate}}});
  const int pad = static_cast<int>(w.conv_dw.dim(1) / 2);
  for (const Utterance& u : utterances) {
    const int64_t end = u.first + u.frames;
    run.backend.depthwise_conv1d(out.slice(0, u.first, end), glu.slice(0, u.first, end), w.conv_dw,
                                 w.conv_dw_bias, pad, Activation::silu);
  }
}

// What convolution() leaves unsaid, for a trace: [rows, 2 d] before the GLU, and the depthwise
// convolution before its activation.
void trace_convolution(Run& run, const Activations& a, const Layer& w) {
  Workspace::Scope scope(run.workspace);
  const int64_t rows = a.x.dim(0), d = a.x.dim(1);
  Tensor both = run.tensor({rows, 2 * d});
  run.backend.matmul(both.slice(1, 0, d), a.y, w.conv_value.weight, {.bias = w.conv_value.bias});
  run.backend.matmul(both.slice(1, d, 2 * d), a.y, w.conv_gate.weight, {.bias = w.conv_gate.bias});
  trace(run, "layer0.32_conv_pw1", both);
  trace(run, "layer0.33_conv_glu", a.k);
  Tensor plain = run.tensor({rows, d});
  run.backend.depthwise_conv1d(plain, a.k, w.conv_dw, w.conv_dw_bias,
                               static_cast<int>(w.conv_dw.dim(1) / 2), Activation::none);
  trace(run, "layer0.35_conv_bn", plain);
  trace(run, "layer0.36_conv_act", a.v);
}

// One block. `quiet` runs without naming stages (they are named for the first layer).
void layer(Run& run, Activations& a, const Layer& w, const EncoderConfig& c,
           std::span<const Utterance> utterances, bool named) {
  Run silent{run.backend, run.workspace, nullptr};
  Run& stages = named ? run : silent;
  Backend& b = run.backend;

  norm(run, a.y, a.x, w.ff1_norm, c.norm_eps);
  trace(stages, "layer0.20_ff1_norm", a.y);
  feed_forward(stages, a, w.ff1_up, w.ff1_down, c.ff_factor, "layer0.21_ff1");
  trace(stages, "layer0.22_after_ff1", a.x);

  norm(run, a.y, a.x, w.attn_norm, c.norm_eps);
  trace(stages, "layer0.23_attn_norm", a.y);
  attention(run, a, w, c, utterances);
  trace(stages, "layer0.24_attn_q", a.q);
  trace(stages, "layer0.25_attn_k", a.k);
  trace(stages, "layer0.26_attn_v", a.v);
  trace(stages, "layer0.27_attn_pos", a.p);
  trace(stages, "layer0.28_attn_context", a.y);
  trace_product(stages, "layer0.29_attn", a.y, w.attn_out);
  b.matmul(a.x, a.y, w.attn_out.weight, {.bias = w.attn_out.bias, .add = a.x});
  trace(stages, "layer0.30_after_attn", a.x);

  norm(run, a.y, a.x, w.conv_norm, c.norm_eps);
  trace(stages, "layer0.31_conv_norm", a.y);
  convolution(run, a, w, utterances);
  if (stages.trace) trace_convolution(stages, a, w);
  trace_product(stages, "layer0.37_conv", a.v, w.conv_out);
  b.matmul(a.x, a.v, w.conv_out.weight, {.bias = w.conv_out.bias, .add = a.x});
  trace(stages, "layer0.38_after_conv", a.x);

  norm(run, a.y, a.x, w.ff2_norm, c.norm_eps);
  trace(stages, "layer0.39_ff2_norm", a.y);
  feed_forward(stages, a, w.ff2_up, w.ff2_down, c.ff_factor, "layer0.40_ff2");
  trace(stages, "layer0.41_after_ff2", a.x);

  norm(run, a.x, a.x, w.out_norm, c.norm_eps);
  trace(stages, "layer0.42_out_norm", a.x);
}

// Rows of distance `last` down to -`last`: sin and cos of distance * pos_base^(-2 i / d),
// interleaved. Angles are rounded to float32 where NeMo rounds them.
Tensor positions(Run& run, const EncoderConfig& c, int64_t last) {
  const int64_t d = c.d_model;
  std::vector<float> frequency(static_cast<size_t>(d / 2));
  const auto step =
      static_cast<float>(-std::log(static_cast<double>(c.pos_base)) / static_cast<double>(d));
  for (size_t i = 0; i < frequency.size(); ++i) {
    frequency[i] =
        static_cast<float>(std::exp(static_cast<double>(static_cast<float>(2 * i) * step)));
  }
  std::vector<float> table(static_cast<size_t>((2 * last + 1) * d));
  for (int64_t distance = 0; distance <= last; ++distance) {
    float* ahead = &table[static_cast<size_t>((last - distance) * d)];
    float* behind = &table[static_cast<size_t>((last + distance) * d)];
    for (size_t i = 0; i < frequency.size(); ++i) {
      const double angle = static_cast<float>(distance) * frequency[i];
      ahead[2 * i] = static_cast<float>(std::sin(angle));
      behind[2 * i] = -ahead[2 * i];
      behind[2 * i + 1] = ahead[2 * i + 1] = static_cast<float>(std::cos(angle));
    }
    if (distance == 0) {
      for (size_t i = 0; i < frequency.size(); ++i) ahead[2 * i] = 0;  // not -0
    }
  }
  Tensor out = run.tensor({2 * last + 1, d});
  run.backend.write(out, table);
  return out;
}

}  // namespace

Tensor encode(Run& run, const Weights& weights, const Config& config,
              std::span<const std::vector<float>> features, std::vector<Utterance>& utterances,
              const std::function<void(int)>& layer_done) {
  const EncoderConfig& c = config.encoder;
  const int64_t d = c.d_model;
  utterances.clear();
  int64_t rows = 0, longest = 0;
  for (const auto& f : features) {
    const int64_t mel_frames = static_cast<int64_t>(f.size()) / config.frontend.n_mels;
    utterances.push_back({rows, config.encoder_frames(mel_frames)});
    rows += utterances.back().frames;
    longest = std::max(longest, utterances.back().frames);
  }

  // The feed-forwards and the other modules never need theirs at the same time.
  const int64_t inner = weights.layers[0].ff1_up.weight.rows;
  const int64_t inner_rows = std::min(rows, kFeedForwardRows);
  const int64_t shared_size = std::max(3 * rows * d, inner_rows * inner);
  const int64_t last_distance = c.local ? c.context : longest - 1;
  const int64_t positions_size = (2 * last_distance + 1) * d;
  run.workspace.reserve(sizeof(float) * static_cast<size_t>(2 * rows * d + shared_size +
                                                            2 * positions_size + 5 * 16));

  Activations a;
  a.x = run.tensor({rows, d});
  Workspace::Scope scope(run.workspace);
  for (size_t i = 0; i < features.size(); ++i) {
    const Utterance& u = utterances[i];
    subsample(run, weights.subsampling, config, features[i],
              a.x.slice(0, u.first, u.first + u.frames));
  }
  trace(run, "15_sub", a.x);
  if (c.xscale != 1.0f) run.backend.scale(a.x, a.x, c.xscale);
  trace(run, "16_scaled", a.x);

  a.y = run.tensor({rows, d});
  const Tensor shared = run.tensor({shared_size});
  const auto part = [&](int64_t i) {
    return shared.slice(0, i * rows * d, (i + 1) * rows * d).reshape({rows, d});
  };
  a.q = part(0);
  a.k = part(1);
  a.v = part(2);
  a.hidden = shared.slice(0, 0, inner_rows * inner).reshape({inner_rows, inner});
  a.positions = positions(run, c, last_distance);
  trace(run, "17_pos_emb", a.positions);
  a.p = run.tensor({a.positions.dim(0), d});

  for (size_t n = 0; n < weights.layers.size(); ++n) {
    layer(run, a, weights.layers[n], c, utterances, n == 0);
    if (n > 0) trace(run, "layer" + std::to_string(n) + ".50_out", a.x);
    layer_done(static_cast<int>(n));
  }
  trace(run, "60_encoded", a.x);
  return a.x;
}

}  // namespace speech::fastconformer
