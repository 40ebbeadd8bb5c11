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
