#include "compute/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compute/cpu/decode.h"
#include "compute/cpu/isa.h"
#include "quant/codec.h"

namespace speech::cpu {
namespace {

struct Format {
  std::string name;
  WeightType type;
  AffineFormat affine = {};

  int block() const { return type == WeightType::affine ? affine.group : facts(type).block; }
  bool exact_floats() const { return type <= WeightType::bf16; }
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16, WeightType::q8_0,
                          WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    formats.push_back({std::string(facts(type).name), type});
  }
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      WeightType scales = group == 32   ? WeightType::f32
                          : group == 64 ? WeightType::f16
                                        : WeightType::bf16;
      formats.push_back(
          {"affine " + std::to_string(bits) + " bits, groups of " + std::to_string(group),
           WeightType::affine,
           {bits, group, scales}});
    }
  }
  return formats;
}

// A weight matrix at an odd address.
struct Matrix {
  std::vector<std::byte> data, scales, biases;
  Weight w;

  Matrix(const Format& format, int64_t rows, int64_t cols) {
    bool affine = format.type == WeightType::affine;
    w.type = format.type;
    w.rows = rows;
    w.cols = cols;
    w.affine = format.affine;
    w.row_bytes = affine ? affine_packed_bytes(format.affine, cols) : row_bytes(format.type, cols);
    data.resize(rows * w.row_bytes + 1);
    w.data = data.data() + 1;
    if (affine) {
      scale_row_ =
          cols / format.affine.group * (format.affine.scale_type == WeightType::f32 ? 4 : 2);
      scales.resize(rows * scale_row_ + 1);
      biases.resize(rows * scale_row_ + 1);
      w.scales = scales.data() + 1;
      w.biases = biases.data() + 1;
    }
  }
  Matrix(const Format& format, int64_t rows, int64_t cols, uint32_t seed)
      : Matrix(format, rows, cols) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> row(cols);
    for (int64_t r = 0; r < rows; ++r) {
      float mean = normal(random);
      for (float& v : row) v = 0.05f * (normal(random) + mean);
      if (format.type == WeightType::affine) {
        encode_affine_row(format.affine, row.data(), data.data() + 1 + r * w.row_bytes,
                          scales.data() + 1 + r * scale_row_, biases.data() + 1 + r * scale_row_,
                          cols);
      } else {
        encode_row(format.type, row.data(), data.data() + 1 + r * w.row_bytes, cols);
      }
    }
  }

 private:
  int64_t scale_row_ = 0;
};

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

struct Machine {
  ThreadPool pool;
  Scratch scratch;
  Isa isa;
  Machine(Isa isa_, int threads) : pool(threads), scratch(threads), isa(isa_) {}

  std::vector<float> product(const Matrix& m, const float* x, int64_t x_stride, int64_t n) {
    std::vector<float> out(n * m.w.rows, -7.0f);
    MatmulArgs args;
    args.isa = isa;
    args.out = out.data();
    args.out_stride = m.w.rows;
    args.x = x;
    args.x_stride = x_stride;
    args.n = n;
    args.w = m.w;
    matmul({&args, 1}, pool, scratch);
    return out;
  }
};

// The largest error that rounding can make. Activations are rounded to steps of at most
// 1 / 16383 of the largest value among 128 neighbours (q6_k; half that step elsewhere), so each
// product is off by half a step times the weight. In f32, each of the at most `sums` additions per
// output rounds a partial sum, whose size is at most `parts`, the sum of the magnitudes added:
// |w x| for the types without bias; with one, |scale q x| + |bias x|, at most 3 times the largest
// weight of the row each.
double tolerance(const Format& format, const float* w, const float* x, int64_t cols) {
  double largest = 0, products = 0, magnitudes = 0, steps = 0;
  for (int64_t c = 0; c < cols; ++c) {
    largest = std::max(largest, std::abs(static_cast<double>(w[c])));
    products += std::abs(static_cast<double>(w[c]) * x[c]);
    magnitudes += std::abs(static_cast<double>(x[c]));
  }
  if (format.exact_floats()) return products * cols * 0x1p-24;
  for (int64_t block = 0; block < cols; block += 128) {
    double top = 0, weights = 0;
    for (int64_t c = block; c < std::min(cols, block + 128); ++c) {
      top = std::max(top, std::abs(static_cast<double>(x[c])));
      weights += std::abs(static_cast<double>(w[c]));
    }
    double x_max = format.type == WeightType::q6_k ? 16383 : 32639;
    steps += weights * top / x_max / 2;
  }
  bool biased = format.type != WeightType::q8_0 && format.type != WeightType::q6_k;
  double parts = biased ? 3 * largest * magnitudes : products;
  double sums = static_cast<double>(cols) / 32 * (biased ? 2 : 1) + 4;
  return steps * 1.01 + parts * sums * 0x1p-24;
}

void expect_close(const Format& format, const Matrix& m, const std::vector<float>& x,
                  int64_t x_stride, const std::vector<float>& out, int64_t n) {
  std::vector<float> w(m.w.cols);
  for (int64_t j = 0; j < m.w.rows; ++j) {
    decode_weight_row(m.w, j, w.data());
    for (int64_t i = 0; i < n; ++i) {
      const float* row = x.data() + i * x_stride;
      double sum = 0;
      for (int64_t c = 0; c < m.w.cols; ++c) sum += static_cast<double>(w[c]) * row[c];
      ASSERT_NEAR(out[i * m.w.rows + j], sum, tolerance(format, w.data(), row, m.w.cols))
          << format.name << " n " << n << " m " << m.w.rows << " k " << m.w.cols << " at " << i
          << ", " << j;
    }
  }
}

TEST(Matmul, EveryTypeAndOddSize) {
  for (Isa isa : runnable_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Machine machine(isa, 2);
    for (const Format& format : all_formats()) {
      uint32_t seed = 1;
      for (int64_t n : {1, 2, 5, 13, 31}) {
        for (int64_t m : {1, 33, 70}) {
          // One block, a few, a unit and a bit.
          int64_t blocks = format.exact_floats()   ? 1 + seed * 37 % 300
                           : format.block() == 256 ? 1 + seed % 3
                                                   : 1 + seed % 11;
          int64_t k = blocks * format.block();
          Matrix matrix(format, m, k, seed);
          int64_t stride = seed % 2 ? k : k / 2 + 1;  // overlapping rows
          std::vector<float> x = normal_values(n * k, ++seed);
          expect_close(format, matrix, x, stride, machine.product(matrix, x.data(), stride, n), n);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Matmul, ManyRowsTakeSeveralChunks) {
  for (Isa isa : runnable_isas()) {
    Machine machine(isa, 2);
    for (WeightType type : {WeightType::f16, WeightType::q8_0, WeightType::q4_k}) {
      Format format{std::string(facts(type).name), type};
      Matrix matrix(format, 5, 256, 3);
      std::vector<float> x = normal_values(801 * 256, 4);
      expect_close(format, matrix, x, 256, machine.product(matrix, x.data(), 256, 801), 801);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Matmul, SameBytesForAnyThreadsAndCompany) {
  for (Isa isa : runnable_isas()) {
    Machine one(isa, 1), two(isa, 2), three(isa, 3);
    for (const Format& format : all_formats()) {
      int64_t n = 87, m = 133, k = format.block() == 256 ? 768 : 640;
      Matrix matrix(format, m, k, 5);
      std::vector<float> x = normal_values(n * k, 6);
      std::vector<float> expected = one.product(matrix, x.data(), k, n);
      EXPECT_EQ(expected, two.product(matrix, x.data(), k, n)) << format.name;
      EXPECT_EQ(expected, three.product(matrix, x.data(), k, n)) << format.name;
      // Few rows, a tile of each size, and rows that have been in tiles of another kind.
      std::vector<std::pair<int64_t, int64_t>> parts = {{0, 1},  {1, 2},   {3, 3},   {6, 4},
                                                        {10, 5}, {15, 8},  {23, 14}, {36, 1},
                                                        {3, 33}, {11, 70}, {86, 1}};
      for (auto [first, count] : parts) {
        std::vector<float> some = two.product(matrix, x.data() + first * k, k, count);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), expected.begin() + first * m))
            << isa_name(isa) << " " << format.name << ": " << count << " rows from " << first;
      }
    }
  }
}

// Products of matrices make the sums of dot products, only faster.
void expect_same_bytes(Isa dots, Isa matrices) {
  if (!machine_runs(matrices)) GTEST_SKIP() << "no " << isa_name(matrices) << " here";
  Machine one(dots, 2), other(matrices, 2);
  for (const Format& format : all_formats()) {
    int64_t n = 83, m = 45, k = format.block() == 256 ? 512 : 896;
    Matrix matrix(format, m, k, 16);
    std::vector<float> x = normal_values(n * k, 17);
    EXPECT_EQ(one.product(matrix, x.data(), k, n), other.product(matrix, x.data(), k, n))
        << format.name;
  }
}
TEST(Matmul, AmxGivesTheBytesOfAvx512) {
  expect_same_bytes(Isa::avx512, Isa::amx);
}
TEST(Matmul, I8mmGivesTheBytesOfDotprod) {
  expect_same_bytes(Isa::dotprod, Isa::i8mm);
}

void put_f16(std::byte* p, float value) {
  encode_row(WeightType::f16, &value, p, 1);
}

// The largest codes and scales that the stored types can hold, with activations that are all at
// their largest: int32 sums come within a hair of the limit and must not wrap.
TEST(Matmul, LargestCodesTimesLargestActivations) {
  int64_t k = 512, m = 3;
  for (Isa isa : runnable_isas()) {
    Machine machine(isa, 1);
    for (const Format& format : all_formats()) {
      if (format.exact_floats()) continue;
      Matrix matrix(format, m, k);
      std::byte* p = matrix.data.data() + 1;
      std::byte* end = p + m * matrix.w.row_bytes;
      switch (format.type) {
        case WeightType::q8_0:
          for (; p < end; p += 34) {
            put_f16(p, 1);
            std::memset(p + 2, 0x80, 32);
          }
          break;
        case WeightType::q6_k:  // (0 - 32) * -128
          for (; p < end; p += 210) {
            std::memset(p, 0, 192);
            std::memset(p + 192, 0x80, 16);
            put_f16(p + 208, 1);
          }
          break;
        case WeightType::q5_k:
        case WeightType::q4_k: {
          int64_t size = format.type == WeightType::q4_k ? 144 : 176;
          for (; p < end; p += size) {
            std::memset(p, 0xff, size);
            put_f16(p, 1);
            put_f16(p + 2, 0.25f);
          }
          break;
        }
        default:
          std::memset(p, 0xff, end - p);
          for (std::vector<std::byte>* values : {&matrix.scales, &matrix.biases}) {
            int64_t size = format.affine.scale_type == WeightType::f32 ? 4 : 2;
            for (size_t at = 1; at < values->size(); at += size) {
              float value = values == &matrix.scales ? 1.0f : -2.0f;
              encode_row(format.affine.scale_type, &value, values->data() + at, 1);
            }
          }
      }
      std::vector<float> x(8 * k, 3.0f);
      for (int64_t r = 1; r < 8; r += 2) std::fill_n(x.begin() + r * k, k, -3.0f);
      for (int64_t n : {2, 8}) {  // without and with a panel
        expect_close(format, matrix, x, k, machine.product(matrix, x.data(), k, n), n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Matmul, NanAndInfinityStayInTheirRow) {
  float nan = std::numeric_limits<float>::quiet_NaN(), inf = HUGE_VALF;
  for (Isa isa : runnable_isas()) {
    Machine machine(isa, 2);
    for (const Format& format : all_formats()) {
      int64_t n = 6, m = 35, k = 256;
      Matrix matrix(format, m, k, 7);
      std::vector<float> x = normal_values(n * k, 8);
      std::vector<float> clean = machine.product(matrix, x.data(), k, n);
      x[1 * k + 130] = nan;
      x[3 * k + 7] = inf;
      x[4 * k + 7] = inf;
      x[4 * k + 255] = -inf;
      std::vector<float> out = machine.product(matrix, x.data(), k, n), w(k);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          float got = out[i * m + j];
          decode_weight_row(matrix.w, j, w.data());
          if (i == 1) {
            EXPECT_TRUE(std::isnan(got)) << format.name;
          } else if (i == 3) {
            float expected = w[7] == 0 ? nan : w[7] > 0 ? inf : -inf;
            EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected) << format.name;
          } else if (i == 4) {
            float expected = w[7] * inf + w[255] * -inf;
            EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected) << format.name;
          } else {
            EXPECT_EQ(got, clean[i * m + j]) << format.name;
          }
        }
      }
    }
  }
}

TEST(Matmul, TinyAndHugeActivations) {
  for (Isa isa : runnable_isas()) {
    Machine machine(isa, 1);
    for (const Format& format : all_formats()) {
      int64_t m = 5, k = 256;
      Matrix matrix(format, m, k, 9);
      for (float size : {0.0f, 1e-42f, 1e-35f, 1e-25f, 1e30f}) {
        std::vector<float> x = normal_values(k, 10), w(k);
        for (float& v : x) v *= size;
        std::vector<float> out = machine.product(matrix, x.data(), k, 1);
        for (int64_t j = 0; j < m; ++j) {
          decode_weight_row(matrix.w, j, w.data());
          double sum = 0;
          for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(w[c]) * x[c];
          // Below 1e-30 steps are those of 1e-30.
          EXPECT_NEAR(out[j], sum, tolerance(format, w.data(), x.data(), k) + 1e-32)
              << format.name << " " << size;
        }
      }
    }
  }
}

// Matrices of several types and sizes with one x in one call, the last gated by the one before it:
// the bytes of separate calls.
TEST(Matmul, SeveralProductsOfOneXAreThoseOfSeparateCalls) {
  const int64_t k = 512;
  const Format q4_k{"q4_k", WeightType::q4_k}, q8_0{"q8_0", WeightType::q8_0},
      f16{"f16", WeightType::f16};
  std::vector<Matrix> matrices;
  matrices.emplace_back(q4_k, 150, k, 21);
  matrices.emplace_back(q4_k, 33, k, 22);
  matrices.emplace_back(q8_0, 70, k, 23);
  matrices.emplace_back(f16, 40, k, 24);
  matrices.emplace_back(f16, 1, k, 25);
  matrices.emplace_back(q4_k, 97, k, 26);
  matrices.emplace_back(q4_k, 97, k, 27);
  for (Isa isa : runnable_isas()) {
    for (int64_t n : {1, 3, 20, 100, 400}) {
      std::vector<float> x = normal_values(n * k, 28);
      if (n == 20) x[5 * k + 7] = std::numeric_limits<float>::infinity();
      Machine machine(isa, 2);
      std::vector<std::vector<float>> outs;
      std::vector<MatmulArgs> all;
      for (const Matrix& m : matrices) {
        outs.emplace_back(n * m.w.rows, -7.0f);
        MatmulArgs args;
        args.isa = isa;
        args.x = x.data();
        args.x_stride = k;
        args.n = n;
        args.w = m.w;
        args.out = outs.back().data();
        args.out_stride = m.w.rows;
        all.push_back(args);
      }
      all.back().multiply = outs[outs.size() - 2].data();
      all.back().multiply_stride = matrices.back().w.rows;
      matmul(all, machine.pool, machine.scratch);
      std::vector<float> gate;
      for (size_t i = 0; i < matrices.size(); ++i) {
        std::vector<float> alone = machine.product(matrices[i], x.data(), k, n);
        if (i + 1 == matrices.size()) {
          for (size_t j = 0; j < alone.size(); ++j) alone[j] *= gate[j];
        }
        EXPECT_EQ(std::memcmp(outs[i].data(), alone.data(), sizeof(float) * alone.size()), 0)
            << isa_name(isa) << " n=" << n << " matrix " << i;
        gate = std::move(alone);
      }
    }
  }
}

TEST(Matmul, EpilogueOnEveryInstructionSet) {
  for (Isa isa : runnable_isas()) {
    Machine machine(isa, 2);
    int64_t n = 9, m = 45, k = 96;
    Matrix matrix({"q8_0", WeightType::q8_0}, m, k, 11);
    std::vector<float> x = normal_values(n * k, 12), bias = normal_values(m, 13),
                       gate = normal_values(n * (m + 2), 14), out = normal_values(n * (m + 3), 15);
    std::vector<float> residual = out, plain = machine.product(matrix, x.data(), k, n);
    MatmulArgs args;
    args.isa = isa;
    args.out = out.data();
    args.out_stride = m + 3;
    args.x = x.data();
    args.x_stride = k;
    args.n = n;
    args.w = matrix.w;
    args.bias = bias.data();
    args.activation = Activation::silu;
    args.multiply = gate.data();
    args.multiply_stride = m + 2;
    args.scale = 0.5f;
    args.add = out.data();  // in place
    args.add_stride = m + 3;
    matmul({&args, 1}, machine.pool, machine.scratch);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        double y = static_cast<double>(plain[i * m + j]) + bias[j];
        y = y / (1 + std::exp(-y)) * gate[i * (m + 2) + j] * 0.5 + residual[i * (m + 3) + j];
        EXPECT_NEAR(out[i * (m + 3) + j], y, 1e-5 * (1 + std::abs(y)));
      }
      for (int64_t j = m; j < m + 3; ++j) {
        EXPECT_EQ(out[i * (m + 3) + j], residual[i * (m + 3) + j]);  // nothing behind a row
      }
    }
  }
}

}  // namespace
}  // namespace speech::cpu
