// Every kernel of every instruction set that this machine runs, against the scalar reference.
#include "compute/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "compute/cpu/isa.h"
#include "compute/kv_cache.h"
#include "quant/half.h"

namespace speech::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const int64_t kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257, 1024};
const Activation kActivations[] = {Activation::none, Activation::relu,      Activation::silu,
                                   Activation::gelu, Activation::gelu_tanh, Activation::sigmoid,
                                   Activation::tanh};

std::vector<float> random_values(int64_t n, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// Distance from the exact value in units of its last place; denormals count in the least unit.
double ulps(float actual, double exact) {
  float rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(actual) ? 0 : 1e30;
  if (std::isinf(rounded)) {
    return actual == rounded || (std::abs(actual) == FLT_MAX) ? 0 : 1e30;
  }
  if (std::isnan(actual)) return 1e30;
  if (std::isinf(actual)) return std::abs(rounded) == FLT_MAX ? 0 : 1e30;
  int exponent;
  std::frexp(std::max<double>(std::abs(exact), FLT_MIN), &exponent);
  return std::abs(actual - exact) / std::ldexp(1.0, exponent - 24);
}

class KernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const Kernels& fast() const { return kernels(GetParam()); }
  const Kernels& reference() const { return kScalarKernels; }
};

// All signs and exponents, denormals, infinities and NaN among them.
std::vector<float> all_kinds() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    uint32_t b = static_cast<uint32_t>(bits);
    float v;
    std::memcpy(&v, &b, 4);
    values.push_back(v);
  }
  // Densely where the functions bend.
  std::mt19937 random(7);
  for (float width : {0.01f, 1.0f, 10.0f, 110.0f}) {
    std::uniform_real_distribution<float> uniform(-width, width);
    for (int i = 0; i < 200000; ++i) values.push_back(uniform(random));
  }
  for (float v : {0.0f, -0.0f, FLT_MIN, FLT_MAX, -FLT_MAX, 1e-45f, -1e-45f, kInf, -kInf, kNan}) {
    values.push_back(v);
  }
  return values;
}

TEST_P(KernelsTest, ElementaryFunctionsWithinTwoUlp) {
  std::vector<float> x = all_kinds(), y(x.size());
  int64_t n = static_cast<int64_t>(x.size());
  auto exact = [](double d, Activation activation) -> double {
    switch (activation) {
      case Activation::silu:
        return d / (1 + std::exp(-d));
      case Activation::gelu:
        return 0.5 * d * std::erfc(-d * M_SQRT1_2);
      case Activation::gelu_tanh:
        return d / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d)));
      case Activation::sigmoid:
        return 1 / (1 + std::exp(-d));
      case Activation::tanh:
        return std::tanh(d);
      case Activation::relu:
        return d < 0 ? 0 : d;
      case Activation::none:
        return d;
    }
    return d;
  };
  for (Activation activation : kActivations) {
    fast().activate(y.data(), x.data(), n, activation);
    double worst = 0;
    float at = 0;
    for (int64_t i = 0; i < n; ++i) {
      double e = ulps(y[i], exact(x[i], activation));
      if (e > worst) worst = e, at = x[i];
    }
    EXPECT_LE(worst, 2.0) << "activation " << static_cast<int>(activation) << " at " << at;
    RecordProperty("ulps_" + std::to_string(static_cast<int>(activation)), std::to_string(worst));
  }
  fast().exp(y.data(), x.data(), n);
  double worst = 0;
  float at = 0;
  for (int64_t i = 0; i < n; ++i) {
    double e = ulps(y[i], std::exp(static_cast<double>(x[i])));
    if (e > worst) worst = e, at = x[i];
  }
  EXPECT_LE(worst, 2.0) << "exp at " << at;
}

// The same values at another place of the row, at another address and in place: the same bytes.
TEST_P(KernelsTest, PlaceDoesNotMatter) {
  std::vector<float> x = random_values(300, 1, 3);
  x[5] = kInf, x[6] = -kInf, x[7] = kNan, x[8] = 1e-40f;
  for (Activation activation : kActivations) {
    std::vector<float> whole(x.size()), one(1);
    fast().activate(whole.data(), x.data(), static_cast<int64_t>(x.size()), activation);
    for (size_t i = 0; i < x.size(); ++i) {
      fast().activate(one.data(), x.data() + i, 1, activation);
      ASSERT_EQ(std::memcmp(&one[0], &whole[i], 4), 0) << i;
    }
    std::vector<float> in_place = x;
    fast().activate(in_place.data() + 3, in_place.data() + 3, 290, activation);
    EXPECT_EQ(std::memcmp(in_place.data() + 3, whole.data() + 3, 290 * 4), 0);
    EXPECT_EQ(in_place[293], x[293]);
  }
}

TEST_P(KernelsTest, ElementwiseOfOddSizes) {
  for (int64_t n : kSizes) {
    // One value before and after that must stay.
    std::vector<float> a = random_values(n + 2, 1), b = random_values(n + 2, 2), out(n + 2, 99.0f);
    std::vector<float> expected(n + 2, 99.0f);
    auto check = [&](double tolerance) {
      for (int64_t i = 0; i < n + 2; ++i) {
        ASSERT_NEAR(out[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << n << " " << i;
      }
    };
    fast().add(out.data() + 1, a.data() + 1, b.data() + 1, 0.3f, n);
    reference().add(expected.data() + 1, a.data() + 1, b.data() + 1, 0.3f, n);
    check(2e-7);
    fast().multiply(out.data() + 1, a.data() + 1, b.data() + 1, n);
    reference().multiply(expected.data() + 1, a.data() + 1, b.data() + 1, n);
    check(0);
    fast().scale(out.data() + 1, a.data() + 1, 1.7f, n);
    reference().scale(expected.data() + 1, a.data() + 1, 1.7f, n);
    check(0);
    fast().magnitude(out.data() + 1, a.data() + 1, b.data() + 1, n);
    reference().magnitude(expected.data() + 1, a.data() + 1, b.data() + 1, n);
    check(1e-7);
    for (Activation activation : kActivations) {
      std::vector<float> bias = random_values(n, 3), gate = random_values(n, 4);
      EpilogueRow row = {bias.data(), gate.data(), a.data() + 1, activation, 0.7f};
      fast().epilogue(out.data() + 1, b.data() + 1, row, n);
      reference().epilogue(expected.data() + 1, b.data() + 1, row, n);
      check(1e-6);
      row = {nullptr, nullptr, nullptr, activation, 1.0f};
      fast().epilogue(out.data() + 1, b.data() + 1, row, n);
      reference().epilogue(expected.data() + 1, b.data() + 1, row, n);
      check(1e-6);
    }
  }
}

TEST_P(KernelsTest, MagnitudeNeitherOverflowsNorVanishes) {
  std::vector<float> a = {3e30f, 3e-30f, 1e-44f, kInf, kNan, 0}, b = {4e30f, 4e-30f, 0, 1, 1, 0};
  std::vector<float> out(6);
  fast().magnitude(out.data(), a.data(), b.data(), 6);
  EXPECT_FLOAT_EQ(out[0], 5e30f);
  EXPECT_FLOAT_EQ(out[1], 5e-30f);
  EXPECT_EQ(out[2], 1e-44f);
  EXPECT_EQ(out[3], kInf);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 0);
}

TEST_P(KernelsTest, NormsOfOddSizes) {
  for (int64_t n : kSizes) {
    for (float offset : {0.0f, 1000.0f}) {
      std::vector<float> x = random_values(n + 1, 1, 4), w = random_values(n, 2);
      std::vector<float> b = random_values(n, 3), out(n + 2, 99.0f), expected(n + 2, 99.0f);
      for (float& v : x) v += offset;
      for (bool with : {true, false}) {
        const float *weight = with ? w.data() : nullptr, *bias = with ? b.data() : nullptr;
        fast().layer_norm(out.data() + 1, x.data() + 1, weight, bias, 1e-5f, n);
        reference().layer_norm(expected.data() + 1, x.data() + 1, weight, bias, 1e-5f, n);
        for (int64_t i = 0; i < n + 2; ++i) ASSERT_NEAR(out[i], expected[i], 3e-6) << n;
        fast().rms_norm(out.data() + 1, x.data() + 1, weight, 1e-6f, n);
        reference().rms_norm(expected.data() + 1, x.data() + 1, weight, 1e-6f, n);
        for (int64_t i = 0; i < n + 2; ++i) ASSERT_NEAR(out[i], expected[i], 3e-6) << n;
      }
    }
  }
}

TEST_P(KernelsTest, SoftmaxWithinTwoUlp) {
  for (int64_t n : kSizes) {
    for (float spread : {1.0f, 30.0f}) {
      std::vector<float> x = random_values(n + 1, static_cast<uint32_t>(n), spread), out(n + 2, 99);
      const float* in = x.data() + 1;
      double max = *std::max_element(in, in + n), sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::exp(in[i] - max);
      fast().softmax(out.data() + 1, in, n);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_LE(ulps(out[i + 1], std::exp(in[i] - max) / sum), 2.0) << n << " " << i;
      }
      fast().log_softmax(out.data() + 1, in, n);
      for (int64_t i = 0; i < n; ++i) {
        // Half a unit of the result, and the sum of the exponentials to f32 accuracy.
        double exact = in[i] - max - std::log(sum);
        ASSERT_NEAR(out[i + 1], exact, 1e-7 + 6e-8 * std::abs(exact)) << n << " " << i;
      }
      EXPECT_EQ(out[0], 99);
      EXPECT_EQ(out[n + 1], 99);
    }
  }
}

TEST_P(KernelsTest, SoftmaxAndArgmaxOfSpecialValues) {
  for (int64_t n : {1, 5, 16, 40}) {
    for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
      std::vector<float> x = random_values(n, 3), out(n);
      x[at] = kNan;
      fast().softmax(out.data(), x.data(), n);
      for (float v : out) EXPECT_TRUE(std::isnan(v));
      fast().log_softmax(out.data(), x.data(), n);
      for (float v : out) EXPECT_TRUE(std::isnan(v));
      EXPECT_EQ(fast().argmax(x.data(), n), -1);
      x[at] = -kInf;
      if (n > 1) {
        fast().softmax(out.data(), x.data(), n);
        EXPECT_EQ(out[at], 0);
        fast().log_softmax(out.data(), x.data(), n);
        EXPECT_EQ(out[at], -kInf);
        EXPECT_NE(fast().argmax(x.data(), n), at);
      }
      x[at] = kInf;
      EXPECT_EQ(fast().argmax(x.data(), n), at);
      x[at] = 100;
      x[n - 1] = 100;
      EXPECT_EQ(fast().argmax(x.data(), n), at);
    }
    std::vector<float> none(n, -kInf);
    EXPECT_EQ(fast().argmax(none.data(), n), 0);
  }
}

TEST_P(KernelsTest, RopeAndLstm) {
  for (int64_t n : kSizes) {
    std::vector<float> x = random_values(2 * n + 1, 1), cos = random_values(n, 2);
    std::vector<float> sin = random_values(n, 3), y = x;
    fast().rope(x.data() + 1, cos.data(), sin.data(), n);
    reference().rope(y.data() + 1, cos.data(), sin.data(), n);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 2e-6);

    std::vector<float> gates = random_values(4 * n, 4, 3), c = random_values(n, 5), c2 = c, h(n);
    std::vector<float> h2(n);
    fast().lstm_step(h.data(), c.data(), gates.data(), n);
    reference().lstm_step(h2.data(), c2.data(), gates.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(h[i], h2[i], 1e-6);
      ASSERT_NEAR(c[i], c2[i], 2e-6);
    }
  }
}

// ---- attention ----

struct AttentionCase {
  int64_t queries, keys, heads, kv_heads, d;
  int64_t offset = 0, left = kUnlimited, right = kUnlimited, global = 0;
  bool relative = false;
};

struct AttentionData {
  std::vector<float> q, k, v, p, u, bias;
  AttentionArgs args = {};

  explicit AttentionData(const AttentionCase& c, int64_t pad = 3) {
    // Rows further apart than they are long, off every alignment.
    int64_t q_row = c.heads * c.d + pad, k_row = c.kv_heads * c.d + pad;
    q = random_values(c.queries * q_row + 1, 1);
    k = random_values(c.keys * k_row + 1, 2);
    v = random_values(c.keys * k_row + 1, 3);
    args.q = q.data() + 1, args.k = k.data() + 1, args.v = v.data() + 1;
    args.q_row = q_row, args.q_head = c.d;
    args.k_row = args.v_row = k_row, args.k_head = args.v_head = c.d;
    args.out_row = c.heads * c.d, args.out_head = c.d;
    args.queries = c.queries, args.keys = c.keys, args.heads = c.heads, args.kv_heads = c.kv_heads;
    args.d = c.d, args.scale = 1 / std::sqrt(static_cast<float>(c.d));
    args.query_offset = c.offset, args.left = c.left, args.right = c.right, args.global = c.global;
    if (c.relative) {
      bool windowed = c.left != kUnlimited;
      int64_t rows = windowed ? c.left + c.right + 1 : 2 * c.keys - 1;
      p = random_values(rows * c.heads * c.d, 4);
      u = random_values(c.heads * c.d, 5);
      bias = random_values(c.heads * c.d, 6);
      args.p = p.data(), args.u = u.data(), args.v_bias = bias.data();
      args.p_row = c.heads * c.d, args.p_head = args.u_head = args.v_bias_head = c.d;
      args.p_first = windowed ? c.left : c.keys - 1;
      args.p_last = rows - 1;
    }
  }

  std::vector<float> run(const Kernels& table, int64_t tile = 0) {
    std::vector<float> out(args.queries * args.out_row, 99.0f);
    args.out = out.data();
    std::vector<float> scratch(table.attention_scratch(args) / 4 + 16);
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) &
                                            ~uintptr_t{63});
    if (tile == 0) tile = table.attention_tile(args);
    for (int64_t head = 0; head < args.kv_heads; ++head) {
      for (int64_t row = 0; row < args.queries; row += tile) {
        table.attention(args, head, row, std::min(args.queries, row + tile), aligned);
      }
    }
    return out;
  }
};

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (int64_t n : {1, 3, 7, 31, 33, 130, 257}) {
    for (int64_t d : {1, 7, 8, 33, 64, 80, 128}) {
      if (n > 33 && d != 64 && d != 80) continue;  // long ones at two sizes
      cases.push_back({n, n, 2, 2, d});
      cases.push_back({n, n, 4, 2, d, 0, kUnlimited, 0});                    // causal
      cases.push_back({n, n + 70, 4, 1, d, 70, kUnlimited, 0});              // with a cache
      cases.push_back({n, n, 2, 1, d, 0, 16, 16});                           // local
      cases.push_back({n, n, 1, 1, d, 0, 5, 9, std::min<int64_t>(n, 2)});    // local and global
      cases.push_back({n, n, 2, 2, d, 0, kUnlimited, kUnlimited, 0, true});  // relative
      cases.push_back({n, n, 2, 2, d, 0, 12, 12, 0, true});                  // relative, local
    }
  }
  for (int64_t queries : {1, 2, 5}) {
    cases.push_back({queries, 1000, 16, 8, 128, 1000 - queries, kUnlimited, 0});
    cases.push_back({queries, 1000, 12, 1, 96, 1000 - queries, 200, 0});
  }
  cases.push_back({1, 300, 9, 3, 40, 299, kUnlimited, 0});  // an odd number of heads per kv head
  cases.push_back({50, 51, 100, 1, 16});                    // more heads per kv head than lanes
  // A global row is left to plain attention: queries start behind it.
  cases.push_back({250, 300, 2, 2, 64, 1, 128, 128, 1, true});
  cases.push_back({250, 300, 2, 2, 64, 3, 20, 20, 3, true});
  return cases;
}

TEST_P(KernelsTest, AttentionEqualsTheReference) {
  for (const AttentionCase& c : attention_cases()) {
    AttentionData data(c);
    std::vector<float> expected = data.run(reference()), out = data.run(fast());
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      worst = std::max<double>(worst, std::abs(out[i] - expected[i]));
    }
    ASSERT_LE(worst, 5e-6) << c.queries << " queries, " << c.keys << " keys, d " << c.d
                           << ", heads " << c.heads << "/" << c.kv_heads << " left " << c.left
                           << " right " << c.right << " global " << c.global << " relative "
                           << c.relative;
  }
}

// Tiles of any size, a single query among them: the same bytes.
TEST_P(KernelsTest, AttentionDoesNotDependOnTheTile) {
  for (const AttentionCase& c : attention_cases()) {
    if (c.queries > 140) continue;
    AttentionData data(c);
    std::vector<float> out = data.run(fast()), one = data.run(fast(), 1),
                       five = data.run(fast(), 5);
    ASSERT_EQ(std::memcmp(out.data(), one.data(), out.size() * 4), 0)
        << c.queries << " queries, " << c.keys << " keys, d " << c.d << " global " << c.global
        << " left " << c.left << " relative " << c.relative;
    ASSERT_EQ(std::memcmp(out.data(), five.data(), out.size() * 4), 0);
  }
}

// The keys and values of an AttentionData in the blocks of a cache, behind `pad` bytes of each.
template <typename T>
struct Blocks {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> addresses;
  size_t pad = 64, side;

  template <typename Convert>
  Blocks(const AttentionArgs& args, const Convert& convert) {
    int64_t values = kKvBlock * args.kv_heads * args.d;
    side = values * sizeof(T);
    for (int64_t first = 0; first < args.keys; first += kKvBlock) {
      // What lies behind the last position is of no account, as long as it is numbers.
      memory.emplace_back(pad + 2 * side, std::byte{0x3c});
      auto* k = reinterpret_cast<T*>(memory.back().data() + pad);
      T* v = k + values;
      for (int64_t i = 0; i < std::min(kKvBlock, args.keys - first); ++i) {
        for (int64_t head = 0; head < args.kv_heads; ++head) {
          for (int64_t c = 0; c < args.d; ++c) {
            k[(head * args.d + c) * kKvBlock + i] =
                convert(args.k[(first + i) * args.k_row + head * args.k_head + c]);
            v[(head * kKvBlock + i) * args.d + c] =
                convert(args.v[(first + i) * args.v_row + head * args.v_head + c]);
          }
        }
      }
    }
    for (auto& block : memory) addresses.push_back(block.data());
  }

  void use(AttentionArgs& args) const {
    args.k_blocks = args.v_blocks = addresses.data();
    args.k_offset = pad;
    args.v_offset = pad + side;
    args.half = sizeof(T) == 2;
  }
};

// A cache gives the bytes that its values give as tensors, in tiles and query by query (another
// arrangement inside), in f32 and in f16.
TEST_P(KernelsTest, AttentionOverACacheEqualsAttentionOverItsValues) {
  for (const AttentionCase& c : attention_cases()) {
    if (c.relative) continue;
    AttentionData data(c);
    auto compare = [&](const auto& blocks, const char* type) {
      data.args.k_blocks = data.args.v_blocks = nullptr;
      std::vector<float> expected = data.run(fast());
      blocks.use(data.args);
      for (int64_t tile : {0, 1, 3}) {
        std::vector<float> out = data.run(fast(), tile);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0)
            << type << ", " << c.queries << " queries, " << c.keys << " keys, d " << c.d
            << " global " << c.global << " tile " << tile;
      }
      data.args.k_blocks = data.args.v_blocks = nullptr;
    };
    compare(Blocks<float>(data.args, [](float v) { return v; }), "f32");
    for (auto* values : {&data.k, &data.v}) {
      for (float& v : *values) v = f16_to_f32(f32_to_f16(v));
    }
    compare(Blocks<uint16_t>(data.args, f32_to_f16), "f16");
  }
}

TEST_P(KernelsTest, HalvesAreTheNearestOnes) {
  std::vector<float> x = random_values(1000, 1, 3);
  for (float v : {0.0f, -0.0f, 1e-8f, 3e-8f, 6e-8f, 5.96e-8f, 6.1e-5f, 1.00048828125f, 65504.0f,
                  65519.0f, 65520.0f, 1e30f, -1e30f, kInf, -kInf}) {
    x.push_back(v);
  }
  x.push_back(kNan);
  for (size_t n : {x.size(), size_t{1}, size_t{7}, size_t{33}}) {
    std::vector<uint16_t> out(n), expected(n);
    fast().to_half(out.data(), x.data() + x.size() - n, static_cast<int64_t>(n));
    reference().to_half(expected.data(), x.data() + x.size() - n, static_cast<int64_t>(n));
    ASSERT_EQ(out, expected);
    for (size_t i = 0; i < n; ++i) {
      float value = x[x.size() - n + i], half = f16_to_f32(out[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(half));
      } else if (std::abs(value) > 65504) {
        ASSERT_EQ(half, std::copysign(65504.0f, value));
      } else {
        ASSERT_LE(std::abs(half - value), std::max(std::abs(value) * 0x1p-11f, 0x1p-25f)) << value;
      }
    }
  }
}

TEST_P(KernelsTest, AttentionPassesNonFiniteValuesOn) {
  for (int64_t queries : {1, 40}) {
    AttentionData data({queries, 100, 2, 1, 64});
    data.k[1 + 50 * data.args.k_row + 3] = kNan;
    std::vector<float> out = data.run(fast());
    for (float v : out) ASSERT_TRUE(std::isnan(v));
    AttentionData large({queries, 100, 2, 1, 64});
    large.v[1 + 20 * large.args.v_row] = kInf;
    out = large.run(fast());
    EXPECT_EQ(out[0], kInf);
    EXPECT_TRUE(std::isfinite(out[1]));
  }
}

// ---- convolutions ----

struct ConvCase {
  int64_t h, w, in_channels, out_channels, kernel_h, kernel_w, stride, pad;
};

TEST_P(KernelsTest, ConvolutionsOfOddSizes) {
  std::vector<ConvCase> cases;
  for (int64_t c : {1, 3, 16, 31, 64, 100, 200}) {
    cases.push_back({1, 40, c, c, 1, 9, 1, 4});
    cases.push_back({1, 29, c, c, 1, 5, 1, 2});
    cases.push_back({1, 3, c, c, 1, 9, 1, 4});
    cases.push_back({1, 25, c, c, 1, 4, 1, 3});
    cases.push_back({33, 17, c, c, 3, 3, 2, 1});
    cases.push_back({7, 31, c, c, 3, 3, 1, 1});
    cases.push_back({9, 9, c, c, 5, 5, 3, 2});
    cases.push_back({31, 20, 1, c, 3, 3, 2, 1});
    cases.push_back({13, 11, 5, c, 3, 3, 1, 0});
    cases.push_back({2, 2, 3, c, 3, 3, 1, 1});
  }
  for (const ConvCase& c : cases) {
    int64_t pad_top = c.h == 1 ? 0 : c.pad;
    ConvArgs args = {};
    args.h = c.h, args.w_in = c.w;
    args.out_h = (c.h + 2 * pad_top - c.kernel_h) / c.stride + 1;
    args.out_w = (c.w + 2 * c.pad - c.kernel_w) / c.stride + 1;
    args.kernel_h = c.kernel_h, args.kernel_w = c.kernel_w;
    args.stride_h = args.stride_w = c.stride;
    args.pad_top = pad_top, args.pad_left = c.pad;
    for (bool depthwise : {false, true}) {
      if (depthwise && c.in_channels != c.out_channels) continue;
      if (!depthwise && c.in_channels > 40) continue;
      args.in_channels = c.in_channels, args.out_channels = c.out_channels;
      args.x_col = c.in_channels + 1, args.x_row = c.w * args.x_col + 5;
      args.out_col = c.out_channels + 1, args.out_row = args.out_w * args.out_col + 2;
      std::vector<float> x = random_values(c.h * args.x_row + 1, 1);
      std::vector<float> w =
          random_values(c.out_channels * c.in_channels * c.kernel_h * c.kernel_w + 1, 2);
      std::vector<float> bias = random_values(c.out_channels, 3);
      args.x = x.data() + 1, args.w = w.data() + 1;
      int64_t terms = c.kernel_h * c.kernel_w * (depthwise ? 1 : c.in_channels);
      for (Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
        args.activation = activation;
        args.bias = activation == Activation::relu ? nullptr : bias.data();
        std::vector<float> results[2];
        for (bool use_fast : {false, true}) {
          const Kernels& table = use_fast ? fast() : reference();
          std::vector<float>& out = results[use_fast];
          out.assign(args.out_h * args.out_row, 99.0f);
          args.out = out.data();
          args.filter_channels = depthwise ? 1 : c.in_channels;
          std::vector<float> packed(table.packed_bytes(args) / 4 + 16);
          args.packed = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(packed.data()) + 63) &
                                                 ~uintptr_t{63});
          table.pack_filters(args, 0, c.out_channels);
          auto kernel = depthwise ? table.depthwise : table.conv2d;
          // Cut at odd places, as tiles would, and between blocks of channels.
          int64_t c_cut = std::min(c.out_channels, table.conv_channels);
          for (auto [c0, c1] : {std::pair{int64_t{0}, c_cut}, std::pair{c_cut, c.out_channels}}) {
            if (c0 == c1) continue;
            int64_t y = args.out_h / 2, x_cut = args.out_w / 3;
            kernel(args, c0, c1, 0, y, 0, args.out_w);
            kernel(args, c0, c1, y, args.out_h, 0, x_cut);
            kernel(args, c0, c1, y, args.out_h, x_cut, args.out_w);
          }
        }
        for (size_t i = 0; i < results[0].size(); ++i) {
          // Each of the additions rounds a partial sum.
          double tolerance = 6e-8 * static_cast<double>(terms + 4) * (1 + std::abs(results[0][i]));
          ASSERT_NEAR(results[1][i], results[0][i], tolerance)
              << "depthwise " << depthwise << " c " << c.in_channels << " -> " << c.out_channels
              << " kernel " << c.kernel_h << "x" << c.kernel_w << " at " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KernelsTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& info) { return isa_name(info.param); });

}  // namespace
}  // namespace speech::cpu
