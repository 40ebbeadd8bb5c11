#include "compute/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"

namespace speech {
namespace {

// Values and a tensor over them.
struct Values {
  std::vector<float> data;
  Tensor t;

  Values(std::initializer_list<int64_t> shape, uint32_t seed = 0) {
    int64_t size = 1;
    for (int64_t dim : shape) size *= dim;
    data.resize(size);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    if (seed) {
      for (float& v : data) v = normal(random);
    }
    t = TensorAccess::make(data.data(), shape);
  }
  float at(int64_t row, int64_t col) const { return data[row * t.cols() + col]; }
};

Weight weight_of(const Values& values) {
  Weight w;
  w.rows = values.t.dim(0);
  w.cols = values.t.size() / w.rows;
  w.data = reinterpret_cast<const std::byte*>(values.data.data());
  w.row_bytes = w.cols * 4;
  return w;
}

TEST(Backend, MatmulAppliesTheEpilogueInOrder) {
  auto backend = make_cpu_backend(2);
  int64_t n = 5, k = 33, m = 37;
  Values x({n, k}, 1), w({m, k}, 2), bias({m}, 3), gate({n, m}, 4), residual({n, m}, 5);
  Values out({n, m});
  backend->matmul(out.t, x.t, weight_of(w),
                  {bias.t, Activation::sigmoid, gate.t, 0.5f, residual.t});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      double sum = bias.data[j];
      for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(x.at(i, c)) * w.at(j, c);
      double expected = 1 / (1 + std::exp(-sum)) * gate.at(i, j) * 0.5 + residual.at(i, j);
      EXPECT_NEAR(out.at(i, j), expected, 1e-5);
    }
  }
}

TEST(Backend, Conv1dOverPaddedTime) {
  auto backend = make_cpu_backend(2);
  for (int stride : {1, 2}) {
    for (int taps : {1, 3, 5}) {
      int64_t t = 19, ci = 7, co = 9, pad = taps / 2;
      int64_t rows = (t + 2 * pad - taps) / stride + 1;
      Values x({t, ci}, 1), w({co, ci, taps}, 2), bias({co}, 3), out({rows, co});
      backend->conv1d(out.t, x.t, weight_of(w), bias.t, taps, stride, static_cast<int>(pad),
                      Activation::none);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < co; ++o) {
          double sum = bias.data[o];
          for (int tap = 0; tap < taps; ++tap) {
            int64_t at = r * stride + tap - pad;
            if (at < 0 || at >= t) continue;
            for (int64_t c = 0; c < ci; ++c) {
              sum += static_cast<double>(x.at(at, c)) * w.data[(o * ci + c) * taps + tap];
            }
          }
          EXPECT_NEAR(out.at(r, o), sum, 1e-4);
        }
      }
    }
  }
}

TEST(Backend, TransposeCopyReadWriteOfViews) {
  auto backend = make_cpu_backend(2);
  Values x({3, 37, 41}, 1), out({3, 41, 37});
  backend->transpose(out.t, x.t);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t a = 0; a < 37; ++a) {
      for (int64_t b = 0; b < 41; ++b) {
        ASSERT_EQ(out.data[(i * 41 + b) * 37 + a], x.data[(i * 37 + a) * 41 + b]);
      }
    }
  }
  Values swapped({37, 3, 41});
  backend->copy(swapped.t, x.t.swap_axes(0, 1));
  EXPECT_EQ(swapped.data[41], x.data[37 * 41]);
  std::vector<float> read(3 * 37 * 2);
  backend->read(x.t.slice(2, 5, 7), read);
  EXPECT_EQ(read[2], x.data[41 + 5]);
  backend->fill(x.t.slice(2, 5, 7), 2.0f);
  EXPECT_EQ(x.data[41 + 6], 2.0f);
  EXPECT_EQ(read[2] == x.data[41 + 7], false);
}

TEST(Backend, GatherChecksItsIds) {
  auto backend = make_cpu_backend(1);
  Values w({10, 6}, 1), out({2, 6});
  std::vector<int32_t> ids = {9, 3};
  backend->gather(out.t, weight_of(w), ids);
  EXPECT_EQ(out.at(0, 5), w.at(9, 5));
  EXPECT_EQ(out.at(1, 0), w.at(3, 0));
  ids[1] = 10;
  EXPECT_THROW(backend->gather(out.t, weight_of(w), ids), Error);
  ids[1] = -1;
  EXPECT_THROW(backend->gather(out.t, weight_of(w), ids), Error);
}

TEST(Backend, ArgmaxTakesTheFirstAndRefusesNaN) {
  auto backend = make_cpu_backend(1);
  Values x({2, 40});
  x.data[17] = x.data[33] = 2;
  x.data[40 + 39] = 1;
  std::vector<int32_t> best(2);
  backend->argmax(best, x.t);
  EXPECT_EQ(best, (std::vector<int32_t>{17, 39}));
  x.data[50] = NAN;
  EXPECT_THROW(backend->argmax(best, x.t), Error);
}

TEST(Backend, ShapeErrorsNameOperationAndShapes) {
  auto backend = make_cpu_backend(1);
  Values a({2, 3}), b({3, 2}), w({4, 5});
  try {
    backend->matmul(a.t, b.t, weight_of(w));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::internal);
    EXPECT_NE(std::string(e.what()).find("matmul"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("[3, 2]"), std::string::npos);
  }
  EXPECT_THROW(backend->add(a.t, a.t, b.t), Error);
  EXPECT_THROW(backend->softmax(a.t, b.t), Error);
  EXPECT_THROW(backend->copy(a.t, Tensor()), Error);
  EXPECT_THROW(backend->layer_norm(a.t, a.t, w.t[0], {}, 1e-5f), Error);
  Values q({2, 4, 8}), k({0, 4, 8}), k3({5, 3, 8});
  EXPECT_THROW(backend->attention(q.t, q.t, k.t, k.t, 1, {}), Error);
  EXPECT_THROW(backend->attention(q.t, q.t, k3.t, k3.t, 1, {}), Error);
}

// Everything that is cut into tiles, on 1, 2 and 3 threads of every instruction set: the same
// bytes.
TEST(Backend, ThreadsDoNotChangeTheBytes) {
  const char* before = std::getenv("SPEECH_CPU");
  std::string saved = before ? before : "";
  for (const std::string& isa : cpu_report().available) {
    ::setenv("SPEECH_CPU", isa.c_str(), 1);
    std::vector<std::vector<float>> results[3];
    for (int threads : {1, 2, 3}) {
      auto backend = make_cpu_backend(threads);
      auto keep = [&](const Values& v) { results[threads - 1].push_back(v.data); };
      int64_t n = 137, heads = 4, d = 40, c = 100;
      Values q({n, heads, d}, 1), k({n, heads, d}, 2), v({n, heads, d}, 3),
          p({2 * n - 1, heads, d}, 4);
      Values u({heads, d}, 5), bias({heads, d}, 6), out({n, heads, d});
      AttentionMask causal;
      causal.causal = true;
      backend->attention(out.t, q.t, k.t, v.t, 0.2f, causal);
      keep(out);
      backend->relative_attention(out.t, q.t, k.t, v.t, p.t, u.t, bias.t, 0.2f, {});
      keep(out);
      AttentionMask local;
      local.window_left = local.window_right = n - 1;
      local.global_keys = 1;
      backend->relative_attention(out.t, q.t, k.t, v.t, p.t, u.t, bias.t, 0.2f, local);
      keep(out);
      Values x({2 * n, c}, 7), y({2 * n, c}), row({c}, 8), w({c, 9}, 9), full({60, c}, 10);
      backend->layer_norm(y.t, x.t, row.t, row.t, 1e-5f);
      keep(y);
      backend->rms_norm(y.t, x.t, row.t, 1e-6f);
      keep(y);
      backend->softmax(y.t, x.t);
      keep(y);
      backend->log_softmax(y.t, x.t);
      keep(y);
      backend->activate(y.t, x.t, Activation::gelu);
      keep(y);
      backend->depthwise_conv1d(y.t, x.t, w.t, row.t, 4, Activation::silu);
      keep(y);
      Values image({2 * n, 25, 4}, 11), filter({c, 36}, 12), conv({n, 13, c});
      backend->conv2d(conv.t, image.t, filter.t, row.t, 3, 2, 1, Activation::relu);
      keep(conv);
      Values product({2 * n, 60});
      backend->matmul(product.t, x.t, weight_of(full), {{}, Activation::silu, {}, 1.0f, {}});
      keep(product);
      Values turned({n, heads, d}, 13);
      std::vector<int32_t> positions(n);
      std::vector<float> frequency(d / 2);
      for (int64_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(3 * i);
      for (int64_t i = 0; i < d / 2; ++i) frequency[i] = std::pow(1e4f, -2.0f * i / d);
      backend->rope(turned.t, positions, frequency);
      keep(turned);
    }
    for (int other : {1, 2}) {
      ASSERT_EQ(results[0].size(), results[other].size());
      for (size_t i = 0; i < results[0].size(); ++i) {
        ASSERT_EQ(std::memcmp(results[0][i].data(), results[other][i].data(),
                              results[0][i].size() * sizeof(float)),
                  0)
            << isa << ", " << other + 1 << " threads, result " << i;
      }
    }
  }
  ::setenv("SPEECH_CPU", saved.c_str(), 1);
}

// A batch gives each sequence the bytes it gets alone, whatever stands beside it.
TEST(Backend, CachedAttentionOfABatchEqualsSingleCalls) {
  auto backend = make_cpu_backend(2);
  int64_t heads = 6, kv = 2, d = 48;
  struct Sequence {
    int64_t rows, keys;
  };
  std::vector<Sequence> sizes = {{1, 90}, {70, 70}, {3, 200}, {1, 1}};
  Values q({75, heads, d}, 1), out({75, heads, d}), alone({75, heads, d});
  std::vector<KvCache> caches;
  std::vector<AttentionSequence> batch;
  AttentionMask mask;
  mask.causal = true;
  int64_t row = 0;
  for (auto [rows, keys] : sizes) {
    caches.emplace_back(1, kv, d);
    KvCache& cache = caches.back();
    cache.reserve(keys);
    backend->store(cache.key_rows(0, keys), Values({keys, kv, d}, 2).t);
    backend->store(cache.value_rows(0, keys), Values({keys, kv, d}, 3).t);
    batch.push_back({rows, cache.keys(0, keys), cache.values(0, keys), keys - rows});
    backend->cached_attention(alone.t.slice(0, row, row + rows), q.t.slice(0, row, row + rows),
                              {&batch.back(), 1}, 0.15f, mask);
    row += rows;
  }
  backend->cached_attention(out.t, q.t, batch, 0.15f, mask);
  EXPECT_EQ(std::memcmp(out.data.data(), alone.data.data(), out.data.size() * sizeof(float)), 0);
  batch.pop_back();
  EXPECT_THROW(backend->cached_attention(out.t, q.t, batch, 0.15f, mask), Error);
}

TEST(Backend, AnUnknownInstructionSetIsRefused) {
  const char* before = std::getenv("SPEECH_CPU");
  std::string saved = before ? before : "";
  ::setenv("SPEECH_CPU", "pentium", 1);
  EXPECT_THROW(make_cpu_backend(1), Error);
  ::setenv("SPEECH_CPU", "scalar", 1);
  EXPECT_NE(make_cpu_backend(1)->description().find("scalar"), std::string::npos);
  ::setenv("SPEECH_CPU", saved.c_str(), 1);  // empty: the best
  EXPECT_FALSE(cpu_report().reason.empty());
}

}  // namespace
}  // namespace speech
