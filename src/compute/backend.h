// Backend: the operations that models are made of.
//
// A model's forward pass is a sequence of these calls on named weights. The CPU backend runs each
// at once; another backend may record them and run when a value is read. Outputs are tensors the
// caller made in a Workspace. Shapes are [rows, cols] with the contiguous axis last; every
// operation checks the shapes it is given and throws Error(internal) naming itself and the shapes
// when they disagree. Unless said otherwise an output must not overlap an input, except that it may
// be exactly the same view where "in place" is noted.
//
// Determinism: a result does not depend on the number of threads, nor on which other rows are in
// the same call: row r of a product is the same bytes whether computed alone or in a batch.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compute/activation.h"
#include "compute/kv_cache.h"
#include "compute/tensor.h"
#include "compute/workspace.h"

namespace speech {

// What happens to y = x W^T before it is stored, in this order:
//   y += bias;  y = activation(y);  y *= multiply;  y = y * scale;  y += add
struct Epilogue {
  Tensor bias;  // [m]
  Activation activation = Activation::none;
  Tensor multiply;  // [n, m]: gates
  float scale = 1.0f;
  Tensor add;  // [n, m]: residual; may be the output itself
};

// One of several products of the same x.
struct Product {
  Tensor out;       // [n, m]
  const Weight& w;  // [m, k]
  Epilogue epilogue = {};
};

// Which keys a query may see. Positions count from 0; a query's position is its row plus
// `query_offset` (keys already in a cache).
struct AttentionMask {
  bool causal = false;
  int64_t query_offset = 0;
  int64_t window_left = -1;   // keys further back than this many positions are hidden; -1: no limit
  int64_t window_right = -1;  // the same ahead
  // The first keys are seen by every query, and the rows at those positions see all keys. Not
  // together with `causal`.
  int64_t global_keys = 0;
};

// Rows for a cache: x[rows, heads, d].
struct KvWrite {
  KvRows out;
  Tensor x;
};

// One sequence of a batch: its next `rows` rows of q attend to its own cache.
struct AttentionSequence {
  int64_t rows = 0;
  KvRows k, v;               // from position 0 on
  int64_t query_offset = 0;  // position of the first of its rows
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu", and what it runs on: "AVX2 + FMA, 2 threads".
  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual int threads() const = 0;

  // ---- host memory ----
  virtual void write(const Tensor& out, std::span<const float> values) = 0;
  virtual void read(const Tensor& x, std::span<float> values) = 0;
  virtual void fill(const Tensor& out, float value) = 0;
  virtual void copy(const Tensor& out, const Tensor& x) = 0;  // same shape, any strides
  // out[..., b, a] = x[..., a, b]: the last two axes exchanged in memory.
  virtual void transpose(const Tensor& out, const Tensor& x) = 0;

  // ---- products ----
  // out[n, m] = epilogue(x[n, k] * w[m, k]^T) for each product, in order; what x takes to prepare
  // is done once. x may have any row stride (overlapping windows). What a product's epilogue reads
  // may be written by an earlier one of the call: the gate of a gated unit.
  virtual void matmul(const Tensor& x, std::span<const Product> products) = 0;
  void matmul(const Tensor& x, std::initializer_list<Product> products) {
    matmul(x, std::span(products.begin(), products.size()));
  }
  void matmul(const Tensor& out, const Tensor& x, const Weight& w, const Epilogue& epilogue = {}) {
    matmul(x, {{out, w, epilogue}});
  }
  // out[n, k] = decoded rows `ids` of w; ids in range or Error(internal).
  virtual void gather(const Tensor& out, const Weight& w, std::span<const int32_t> ids) = 0;

  // ---- attention ----
  // out[n, heads, d] from q[n, heads, d], k and v [s, kv_heads, d]; heads a multiple of kv_heads
  // (query head j reads kv head j / (heads / kv_heads)); softmax(scale * q k^T + mask) v.
  virtual void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                         float scale, const AttentionMask& mask) = 0;
  // Writes rows of caches as they are, or rounded to the nearest f16 (values beyond its range to
  // the largest one).
  virtual void store(std::span<const KvWrite> writes) = 0;
  void store(const KvRows& out, const Tensor& x) {
    KvWrite write{out, x};
    store({&write, 1});
  }
  // Attention over caches, of several sequences at once (decoding steps of a server, prompts of
  // several lengths): the rows of q and out [n, heads, d] are those of the sequences one after
  // another. Each row gets the bytes that `attention` gives it over the cache's values in f32.
  // mask.query_offset is ignored in favour of the sequences'.
  virtual void cached_attention(const Tensor& out, const Tensor& q,
                                std::span<const AttentionSequence> sequences, float scale,
                                const AttentionMask& mask) = 0;
  // Relative positions as in Transformer-XL (Dai et al. 2019, arXiv:1901.02860): score(i, j) =
  // scale * ((q_i + u) k_j + (q_i + v_bias) p_(i-j)); p[2 s - 1, heads, d] holds positions s-1 down
  // to -(s-1) (row r is distance s-1-r); with a window only distances within it are read, and p may
  // hold just [left + right + 1] rows from `left` down to -right. u, v_bias [heads, d]; as many kv
  // heads as heads. Global keys as NeMo's local attention has them: scale * q_i k_g without biases
  // and position joins the softmax beside the window (so a global key inside the window counts
  // twice), and row g is softmax_j(scale * q_g k_j) v over all keys.
  virtual void relative_attention(const Tensor& out, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& p, const Tensor& u,
                                  const Tensor& v_bias, float scale, const AttentionMask& mask) = 0;
  // Rotates pairs (i, i + d/2) of x[n, heads, d] in place (the "neox" pairing): angle of row r is
  // positions[r] * inverse_frequency[i], cos and sin times `magnitude`.
  virtual void rope(const Tensor& x, std::span<const int32_t> positions,
                    std::span<const float> inverse_frequency, float magnitude = 1.0f) = 0;

  // ---- rows ----
  // Over the last axis, in place; an empty weight or bias is left out. Views with a head axis
  // serve: x[n, heads, d] with weight [d].
  virtual void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) = 0;
  virtual void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias, float eps) = 0;
  virtual void softmax(const Tensor& out, const Tensor& x) = 0;
  virtual void log_softmax(const Tensor& out, const Tensor& x) = 0;

  // ---- elementwise (in place) ----
  virtual void activate(const Tensor& out, const Tensor& x, Activation activation) = 0;
  virtual void add(const Tensor& out, const Tensor& a, const Tensor& b, float b_scale = 1.0f) = 0;
  virtual void multiply(const Tensor& out, const Tensor& a, const Tensor& b) = 0;
  virtual void scale(const Tensor& out, const Tensor& x, float factor) = 0;
  // b[cols] applies to every row of a.
  virtual void add_row(const Tensor& out, const Tensor& a, const Tensor& b) = 0;
  // out[n, c] = sqrt(x[n, 0:c]^2 + x[n, c:2c]^2): magnitude of a spectrum [re | im].
  virtual void magnitude(const Tensor& out, const Tensor& x) = 0;

  // ---- convolutions, time first: x[t, channels] ----
  // out[t', co] = act(bias + sum x[t * stride + tap - pad_left, ci] * w[co, ci, tap]); rows outside
  // x are zero. w is stored [co, ci * taps] as PyTorch lays out Conv1d. bias may be empty (in every
  // convolution).
  virtual void conv1d(const Tensor& out, const Tensor& x, const Weight& w, const Tensor& bias,
                      int taps, int stride, int pad_left, Activation activation) = 0;
  // Depthwise over time, w[c, taps]: out[t, c] = act(bias[c] + sum_tap x[t + tap - pad_left, c] *
  // w[c, tap]).
  virtual void depthwise_conv1d(const Tensor& out, const Tensor& x, const Tensor& w,
                                const Tensor& bias, int pad_left, Activation activation) = 0;
  // 3x3 (or any odd) over [h, w, channels], padding pad on each side, stride in both axes.
  // Full: w[co, ci * kh * kw] as PyTorch lays out Conv2d. Depthwise: w[c, kh, kw].
  virtual void conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                      int kernel, int stride, int pad, Activation activation) = 0;
  virtual void depthwise_conv2d(const Tensor& out, const Tensor& x, const Tensor& w,
                                const Tensor& bias, int kernel, int stride, int pad,
                                Activation activation) = 0;

  // ---- recurrent ----
  // One step of PyTorch's LSTMCell after the products: gates[n, 4 h] (i, f, g, o, biases included)
  // and c[n, h] give c (in place) and h[n, h].
  virtual void lstm_step(const Tensor& h, const Tensor& c, const Tensor& gates) = 0;

  // ---- choice ----
  // Index of the largest value of each row, the first of equals; NaN rows: Error(internal).
  virtual void argmax(std::span<int32_t> out, const Tensor& x) = 0;

  // Memory a backend keeps for panels and packed activations, in bytes.
  virtual size_t scratch_bytes() const = 0;
};

// What the CPU backend runs on and why, for people: processor, the instruction sets it has, the one
// chosen with the reason, threads. Error(device) as make_cpu_backend.
struct CpuReport {
  std::string processor;               // "Intel(R) Xeon(R) Processor"
  std::vector<std::string> available;  // "scalar", "avx2", ...
  std::string chosen, reason;
  int default_threads = 1;
};
CpuReport cpu_report();

// How products with quantized weights are computed. fast: exact weights by activations of 14 to 15
// bits, 3e-5 relative RMS from the f32 product (docs/performance.md). exact: decoded weights in
// f32, many times slower; for comparing a model stage by stage with its official code, where
// rounding must not hide a mistake. Products with f32, f16 and bf16 weights are f32 in both.
enum class Precision { fast, exact };

// The CPU backend. `threads` >= 1; 0 means default_threads(). The instruction set is the best one
// the machine runs, or what SPEECH_CPU names (scalar, avx2, avx512, amx); an unknown or missing one
// is Error(device). SPEECH_PRECISION=exact or fast overrides `precision`.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0, Precision precision = Precision::fast);

}  // namespace speech
