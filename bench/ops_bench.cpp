// Every operation but the matrix product, at the sizes of the families. Each line shows GFLOPS and
// the share of the multiply-add peak, or GB/s (bytes that must move at least once) and the share of
// the read bandwidth; values in cache can exceed the latter. Rates are those of the fastest
// iteration, as the limits are those of the fastest trial, so that both sides of a ratio are free
// of interruptions; the Time column is the mean and shows how disturbed the run was.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "bench/limits.h"
#include "compute/backend.h"

namespace speech::bench {
namespace {

Tensor random_tensor(Workspace& ws, Backend& backend, std::initializer_list<int64_t> shape) {
  Tensor t = ws.tensor(shape);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(4096);
  for (float& v : values) v = normal(random);
  std::vector<float> all(t.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = values[i % values.size()];
  backend.write(t, all);
  return t;
}

// The pool of a backend is warm, the memory touched.
struct Bench {
  explicit Bench(int threads) : backend(make_cpu_backend(threads)) {}
  Tensor random(std::initializer_list<int64_t> shape) {
    return random_tensor(workspace, *backend, shape);
  }
  std::unique_ptr<Backend> backend;
  Workspace workspace;
};

// Runs the benchmark; seconds of the fastest iteration.
template <typename Body>
double fastest(benchmark::State& state, const Body& body) {
  double best = 1e30;
  for (auto _ : state) {
    double start = seconds_now();
    body();
    best = std::min(best, seconds_now() - start);
  }
  return best;
}

void report(benchmark::State& state, int threads, double seconds, double flops, double bytes) {
  if (flops > 0) {
    state.counters["best_GFLOPS"] = flops / seconds * 1e-9;
    state.counters["of_peak"] = flops / seconds / limits(threads).flops;
  }
  if (bytes > 0) {
    state.counters["best_GB/s"] = bytes / seconds * 1e-9;
    state.counters["of_read"] = bytes / seconds / limits(threads).read_bytes;
  }
}

int threads_of(const benchmark::State& state) {
  return static_cast<int>(state.range(0));
}

// Args: threads, positions, heads, kv heads, head size.
void full_attention(benchmark::State& state, bool causal) {
  Bench b(threads_of(state));
  int64_t n = state.range(1), heads = state.range(2), kv = state.range(3), d = state.range(4);
  Tensor q = b.random({n, heads, d}), k = b.random({n, kv, d}), v = b.random({n, kv, d});
  Tensor out = b.random({n, heads, d});
  AttentionMask mask;
  mask.causal = causal;
  double seconds =
      fastest(state, [&] { b.backend->attention(out, q, k, v, 1 / std::sqrt(float(d)), mask); });
  double pairs = causal ? n * (n + 1) / 2.0 : 1.0 * n * n;
  report(state, b.backend->threads(), seconds, 4 * pairs * heads * d, 0);
}
void BM_AttentionFull(benchmark::State& state) {
  full_attention(state, false);
}
void BM_AttentionCausal(benchmark::State& state) {
  full_attention(state, true);
}
#define ATTENTION_SIZES                                       \
  ArgsProduct({{1, 2}, {375, 2048}, {8}, {8}, {64, 80, 128}}) \
      ->UseRealTime()                                         \
      ->Unit(benchmark::kMillisecond)                         \
      ->MinTime(0.2)
BENCHMARK(BM_AttentionFull)->ATTENTION_SIZES;
BENCHMARK(BM_AttentionCausal)->ATTENTION_SIZES;

// One query per sequence against a long cache. Args: threads, sequences, keys, f16 or f32 (1, 0).
void BM_AttentionDecode(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t sequences = state.range(1), keys = state.range(2), heads = 16, kv = 8, d = 128;
  Tensor q = b.random({sequences, heads, d}), out = b.random({sequences, heads, d});
  KvType type = state.range(3) ? KvType::f16 : KvType::f32;
  std::vector<KvCache> caches;
  std::vector<AttentionSequence> batch;
  for (int64_t i = 0; i < sequences; ++i) {
    caches.emplace_back(1, kv, d, type);
    caches.back().reserve(keys);
    b.backend->store(caches.back().key_rows(0, keys), b.random({keys, kv, d}));
    b.backend->store(caches.back().value_rows(0, keys), b.random({keys, kv, d}));
    batch.push_back({1, caches.back().keys(0, keys), caches.back().values(0, keys), keys - 1});
  }
  AttentionMask mask;
  mask.causal = true;
  double seconds =
      fastest(state, [&] { b.backend->cached_attention(out, q, batch, 0.088f, mask); });
  double bytes = 2.0 * sequences * keys * kv * d * static_cast<double>(kv_value_bytes(type));
  report(state, b.backend->threads(), seconds, 0, bytes);
}
BENCHMARK(BM_AttentionDecode)
    ->ArgsProduct({{1, 2}, {1, 8}, {512, 8192}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.2);

// Args: threads, positions, window (0: full). Counts three products of the score's size.
void BM_RelativeAttention(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t n = state.range(1), window = state.range(2), heads = 8, d = 128;
  Tensor q = b.random({n, heads, d}), k = b.random({n, heads, d}), v = b.random({n, heads, d});
  Tensor p = b.random({window ? 2 * window + 1 : 2 * n - 1, heads, d});
  Tensor u = b.random({heads, d}), bias = b.random({heads, d}), out = b.random({n, heads, d});
  AttentionMask mask;
  double pairs = 1.0 * n * n;
  if (window) {
    mask.window_left = mask.window_right = window;
    mask.global_keys = 1;
    pairs = 1.0 * n * (2 * window + 1) - 1.0 * window * (window + 1);
  }
  double seconds = fastest(
      state, [&] { b.backend->relative_attention(out, q, k, v, p, u, bias, 0.088f, mask); });
  report(state, b.backend->threads(), seconds, 6 * pairs * heads * d, 0);
}
BENCHMARK(BM_RelativeAttention)
    ->ArgsProduct({{1, 2}, {375, 2048}, {0, 128}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.2);

// ---- elementwise and rows; args: threads, rows; 1024 columns. 375 rows are in cache ----

template <typename Operation>
void rows_benchmark(benchmark::State& state, double arrays, const Operation& operation) {
  Bench b(threads_of(state));
  int64_t n = state.range(1);
  Tensor x = b.random({n, 1024}), y = b.random({n, 1024}), out = b.random({n, 1024});
  Tensor row = b.random({1024});
  double seconds = fastest(state, [&] { operation(*b.backend, out, x, y, row); });
  report(state, b.backend->threads(), seconds, 0, arrays * 4 * 1024 * n);
}
#define ROWS(name, arrays, call)                                                             \
  void BM_##name(benchmark::State& state) {                                                  \
    rows_benchmark(state, arrays,                                                            \
                   [](Backend& backend, const Tensor& out, const Tensor& x, const Tensor& y, \
                      const Tensor& row) {                                                   \
                     (void)y, (void)row;                                                     \
                     backend.call;                                                           \
                   });                                                                       \
  }                                                                                          \
  BENCHMARK(BM_##name)                                                                       \
      ->ArgsProduct({{1, 2}, {375, 65536}})                                                  \
      ->UseRealTime()                                                                        \
      ->Unit(benchmark::kMicrosecond)                                                        \
      ->MinTime(0.1)

ROWS(Copy, 2, copy(out, x));
ROWS(Add, 3, add(out, x, y));
ROWS(Silu, 2, activate(out, x, Activation::silu));
ROWS(Sigmoid, 2, activate(out, x, Activation::sigmoid));
ROWS(Tanh, 2, activate(out, x, Activation::tanh));
ROWS(Gelu, 2, activate(out, x, Activation::gelu));
ROWS(GeluTanh, 2, activate(out, x, Activation::gelu_tanh));
ROWS(LayerNorm, 2, layer_norm(out, x, row, row, 1e-5f));
ROWS(RmsNorm, 2, rms_norm(out, x, row, 1e-6f));
ROWS(Softmax, 2, softmax(out, x));
ROWS(LogSoftmax, 2, log_softmax(out, x));

void BM_Rope(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t n = state.range(1);
  Tensor x = b.random({n, 16, 128});
  std::vector<int32_t> positions(n);
  std::vector<float> frequency(64);
  for (int64_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(i);
  for (int i = 0; i < 64; ++i) frequency[i] = std::pow(1e6f, -i / 64.0f);
  double seconds = fastest(state, [&] { b.backend->rope(x, positions, frequency); });
  report(state, b.backend->threads(), seconds, 0, 2.0 * x.size() * 4);
}
BENCHMARK(BM_Rope)->ArgsProduct({{1, 2}, {375, 32768}})->UseRealTime()->MinTime(0.1);

void BM_LstmStep(benchmark::State& state) {
  Bench b(1);
  Tensor gates = b.random({1, 2560}), c = b.random({1, 640}), h = b.random({1, 640});
  double seconds = fastest(state, [&] { b.backend->lstm_step(h, c, gates); });
  report(state, 1, seconds, 0, 4.0 * 7 * 640);
}
BENCHMARK(BM_LstmStep)->MinTime(0.1);

// ---- convolutions ----

void BM_DepthwiseConv1d(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t n = state.range(1), c = 1024, taps = 9;
  Tensor x = b.random({n, c}), w = b.random({c, taps}), bias = b.random({c}),
         out = b.random({n, c});
  double seconds =
      fastest(state, [&] { b.backend->depthwise_conv1d(out, x, w, bias, 4, Activation::silu); });
  report(state, b.backend->threads(), seconds, 2.0 * n * c * taps, 8.0 * n * c);
}
BENCHMARK(BM_DepthwiseConv1d)->ArgsProduct({{1, 2}, {375, 16384}})->UseRealTime()->MinTime(0.1);

// The subsampling's first convolution: one channel of mel to 256, stride 2.
void BM_Conv2d(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t n = 3000, mel = 80, c = 256;
  Tensor x = b.random({n, mel, 1}), w = b.random({c, 9}), bias = b.random({c});
  Tensor out = b.random({n / 2, mel / 2, c});
  double seconds =
      fastest(state, [&] { b.backend->conv2d(out, x, w, bias, 3, 2, 1, Activation::relu); });
  report(state, b.backend->threads(), seconds, 2.0 * out.size() * 9, 4.0 * (out.size() + x.size()));
}
BENCHMARK(BM_Conv2d)->Args({1})->Args({2})->UseRealTime()->MinTime(0.1);

void BM_DepthwiseConv2d(benchmark::State& state) {
  Bench b(threads_of(state));
  int64_t n = 1500, mel = 40, c = 256;
  Tensor x = b.random({n, mel, c}), w = b.random({c, 9}), bias = b.random({c});
  Tensor out = b.random({n / 2, mel / 2, c});
  double seconds = fastest(
      state, [&] { b.backend->depthwise_conv2d(out, x, w, bias, 3, 2, 1, Activation::none); });
  report(state, b.backend->threads(), seconds, 2.0 * out.size() * 9, 4.0 * (out.size() + x.size()));
}
BENCHMARK(BM_DepthwiseConv2d)->Args({1})->Args({2})->UseRealTime()->MinTime(0.1);

}  // namespace
}  // namespace speech::bench
