#include "quant/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/safetensors.h"
#include "quant/blocks.h"
#include "test_data.h"

namespace speech {
namespace {

std::shared_ptr<const SafetensorsFile> reference(const std::string& name) {
  return SafetensorsFile::open(testing::data_path("quant/" + name));
}

const std::vector<std::string> kMatrices = {"gauss",   "laplace", "outliers",
                                            "shifted", "special", "real"};

// Stored bytes copied to an odd address, as a file may hold them.
class Unaligned {
 public:
  explicit Unaligned(std::span<const std::byte> bytes) : copy_(bytes.size() + 1) {
    std::copy(bytes.begin(), bytes.end(), copy_.begin() + 1);
  }
  explicit Unaligned(size_t size) : copy_(size + 1) {}
  std::byte* data() { return copy_.data() + 1; }
  std::span<const std::byte> bytes() const { return std::span(copy_).subspan(1); }

 private:
  std::vector<std::byte> copy_;
};

// Equal bits, so that signed zeros and NaN count too.
void expect_same_bits(std::span<const float> actual, std::span<const float> expected,
                      const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " value " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

std::vector<float> decode_rows(WeightType type, std::span<const std::byte> bytes, int64_t cols) {
  Unaligned stored(bytes);
  int64_t stride = row_bytes(type, cols);
  auto rows = static_cast<int64_t>(bytes.size()) / stride;
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    decode_row(type, stored.data() + r * stride, out.data() + r * cols, cols);
  }
  return out;
}

std::vector<std::byte> encode_rows(WeightType type, const std::vector<float>& values, int64_t cols,
                                   const float* importance) {
  int64_t stride = row_bytes(type, cols);
  auto rows = static_cast<int64_t>(values.size()) / cols;
  Unaligned stored(static_cast<size_t>(rows * stride));
  for (int64_t r = 0; r < rows; ++r) {
    encode_row(type, values.data() + r * cols, stored.data() + r * stride, cols, importance);
  }
  return {stored.bytes().begin(), stored.bytes().end()};
}

TEST(Codec, DecodesGgmlBlocksExactly) {
  auto golden = reference("blocks.safetensors");
  for (const auto& matrix : kMatrices) {
    for (auto type : {WeightType::f16, WeightType::q8_0, WeightType::q6_k, WeightType::q5_k,
                      WeightType::q4_k}) {
      std::string name = matrix + "." + std::string(facts(type).name);
      const auto& expected = golden->require(name + ".dequantized");
      auto actual = decode_rows(type, golden->require(name + ".bytes").bytes, expected.shape[1]);
      expect_same_bits(actual, to_f32(expected), name);
    }
  }
}

TEST(Codec, DecodesRandomBlocksExactly) {
  auto golden = reference("random_blocks.safetensors");
  for (auto type : {WeightType::q8_0, WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    std::string name(facts(type).label);
    auto actual = decode_rows(type, golden->require(name + ":bytes").bytes, facts(type).block);
    expect_same_bits(actual, to_f32(golden->require(name + ":float")), name);
  }
}

TEST(Codec, EncodesF16AndQ8AsGgml) {
  auto golden = reference("blocks.safetensors");
  for (const auto& matrix : kMatrices) {
    const auto& source = golden->require(matrix + ".f32");
    auto importance = to_f32(golden->require(matrix + ".importance"));
    for (std::string variant : {"f16", "q8_0", "q8_0.imatrix"}) {
      auto type = *weight_type_from_name(variant.substr(0, variant.find('.')));
      bool weighted = variant.find('.') != std::string::npos;
      auto actual = encode_rows(type, to_f32(source), source.shape[1],
                                weighted ? importance.data() : nullptr);
      auto expected = golden->require(matrix + "." + variant + ".bytes").bytes;
      ASSERT_EQ(actual.size(), expected.size());
      auto differs = std::mismatch(actual.begin(), actual.end(), expected.begin());
      EXPECT_EQ(differs.first - actual.begin(), static_cast<int64_t>(actual.size()))
          << matrix << "." << variant;
    }
  }
}

// Root of the (weighted) squared error over the (weighted) sum of squares of a matrix.
double relative_error(std::span<const float> decoded, std::span<const float> values, int64_t cols,
                      const float* importance) {
  double error = 0, power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    double w = importance ? importance[i % static_cast<size_t>(cols)] : 1;
    double e = static_cast<double>(decoded[i]) - values[i];
    error += w * e * e;
    power += w * values[i] * static_cast<double>(values[i]);
  }
  return std::sqrt(error / power);
}

TEST(Codec, KTypesReachGgmlsError) {
  auto golden = reference("blocks.safetensors");
  for (const auto& matrix : kMatrices) {
    const auto& source = golden->require(matrix + ".f32");
    auto values = to_f32(source);
    auto importance = to_f32(golden->require(matrix + ".importance"));
    int64_t cols = source.shape[1];
    for (auto type : {WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
      for (bool weighted : {false, true}) {
        const float* weights = weighted ? importance.data() : nullptr;
        std::string name =
            matrix + "." + std::string(facts(type).name) + (weighted ? ".imatrix" : "");
        auto ggml = relative_error(decode_rows(type, golden->require(name + ".bytes").bytes, cols),
                                   values, cols, weights);
        auto ours =
            relative_error(decode_rows(type, encode_rows(type, values, cols, weights), cols),
                           values, cols, weights);
        EXPECT_LE(ours, ggml) << name;
      }
    }
  }
}

TEST(Codec, KTypesReachGgmlsErrorOnRows) {
  auto golden = reference("random_blocks.safetensors");
  const auto& source = golden->require("encode:x");
  auto values = to_f32(source);
  int64_t cols = source.shape[1];
  for (auto type : {WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    std::string name(facts(type).label);
    auto ggml = decode_rows(type, golden->require("encode:" + name + ":bytes").bytes, cols);
    auto ours = decode_rows(type, encode_rows(type, values, cols, nullptr), cols);
    EXPECT_LE(relative_error(ours, values, cols, nullptr),
              relative_error(ggml, values, cols, nullptr))
        << name;
  }
}

// Columns that nothing depends on are still kept roughly, the others no worse for it.
TEST(Codec, UnimportantColumnsSurvive) {
  auto golden = reference("blocks.safetensors");
  auto values = to_f32(golden->require("gauss.f32"));
  std::vector<float> importance(512, 0.0f);
  for (size_t i = 0; i < 512; i += 4) importance[i] = 1;
  for (auto type : {WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    auto plain = decode_rows(type, encode_rows(type, values, 512, nullptr), 512);
    auto steered = decode_rows(type, encode_rows(type, values, 512, importance.data()), 512);
    EXPECT_LT(relative_error(steered, values, 512, importance.data()),
              relative_error(plain, values, 512, importance.data()));
    EXPECT_LT(relative_error(steered, values, 512, nullptr), 0.5);
  }
}

TEST(Codec, AffineEqualsMlx) {
  auto golden = reference("affine.safetensors");
  constexpr int kFiniteRows = 20;  // the rows before those that overflow or are not finite
  for (auto [source, type] :
       {std::pair("f32", WeightType::f32), std::pair("bf16", WeightType::bf16),
        std::pair("f16", WeightType::f16)}) {
    const auto& entry = golden->require(std::string("rows_") + source);
    int64_t rows = entry.shape[0], cols = entry.shape[1];
    std::vector<float> values(static_cast<size_t>(rows * cols));
    decode_row(type, entry.bytes.data(), values.data(), rows * cols);
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      for (int group : {32, 64, 128}) {
        AffineFormat format{bits, group, type};
        std::string name = fmt::format("{}:{}b_g{}:", source, bits, group);
        auto words = golden->require(name + "words").bytes,
             scales = golden->require(name + "scales").bytes,
             biases = golden->require(name + "biases").bytes;
        auto packed_row = static_cast<size_t>(affine_packed_bytes(format, cols));
        size_t scale_row = scales.size() / static_cast<size_t>(rows);
        ASSERT_EQ(words.size(), packed_row * static_cast<size_t>(rows));
        for (int64_t r = 0; r < rows; ++r) {
          Unaligned p(packed_row), s(scale_row), b(scale_row);
          const float* row = values.data() + r * cols;
          encode_affine_row(format, row, p.data(), s.data(), b.data(), cols);
          auto at = static_cast<size_t>(r);
          bool finite = std::all_of(row, row + cols, [](float f) { return std::isfinite(f); });
          if (r >= kFiniteRows || !finite) continue;
          auto same = [&](Unaligned& got, std::span<const std::byte> all, size_t stride) {
            return std::memcmp(got.data(), all.data() + at * stride, stride) == 0;
          };
          EXPECT_TRUE(same(p, words, packed_row)) << name << "words row " << r;
          EXPECT_TRUE(same(s, scales, scale_row)) << name << "scales row " << r;
          EXPECT_TRUE(same(b, biases, scale_row)) << name << "biases row " << r;
          std::vector<float> back(static_cast<size_t>(cols));
          decode_affine_row(format, p.data(), s.data(), b.data(), back.data(), cols);
          for (int64_t i = 0; i < cols; ++i) {
            int code = 0;
            for (int bit = 0; bit < bits; ++bit) {
              int64_t place = i * bits + bit;
              code |= static_cast<int>(p.data()[place / 8] >> (place % 8) & std::byte{1}) << bit;
            }
            float scale, bias;
            decode_row(type, s.data() + i / group * row_bytes(type, 1), &scale, 1);
            decode_row(type, b.data() + i / group * row_bytes(type, 1), &bias, 1);
            ASSERT_EQ(back[static_cast<size_t>(i)], scale * static_cast<float>(code) + bias);
          }
        }
      }
    }
  }
}

TEST(Half, EveryF16ComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto h = static_cast<uint16_t>(bits);
    float f = f16_to_f32(h);
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(f), fraction != 0);
      EXPECT_EQ(f32_to_f16(f), fraction ? h | 0x200 : h);
      continue;
    }
    double expected =
        exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    EXPECT_EQ(f, static_cast<float>(h & 0x8000 ? -expected : expected));
    EXPECT_EQ(f32_to_f16(f), h);
    // Halfway to the next value goes to the even one, a little more or less to the nearer one.
    if (h < 0x7bff) {
      float next = f16_to_f32(static_cast<uint16_t>(h + 1));
      float middle = f + (next - f) / 2;
      EXPECT_EQ(f32_to_f16(middle), h % 2 ? h + 1 : h);
      EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), h);
      EXPECT_EQ(f32_to_f16(std::nextafter(middle, 1e30f)), h + 1);
    }
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e38f), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Half, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto b = static_cast<uint16_t>(bits);
    float f = bf16_to_f32(b);
    if (std::isnan(f)) {
      EXPECT_EQ(f32_to_bf16(f), b | 0x40);
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(f), bits << 16);
    EXPECT_EQ(f32_to_bf16(f), b);
    if (std::isinf(f)) continue;
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(bits << 16 | 0x8000)), b % 2 ? b + 1 : b);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(bits << 16 | 0x7fff)), b);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(bits << 16 | 0x8001)), b + 1);
  }
  // A NaN whose payload lies in the dropped bits stays NaN.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0xff800001u)))));
}

// Whatever the weights are, an encoder ends and its blocks decode to finite values.
TEST(Codec, AnyInputGivesFiniteBlocks) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float huge = std::numeric_limits<float>::max();
  for (float odd : {inf, -inf, nan, huge, -huge, 1e-45f, 0.0f}) {
    for (float rest : {0.0f, 1.0f, -1e30f, 1e-38f}) {
      std::vector<float> row(512, rest), decoded(512), importance(512, odd);
      for (size_t i = 0; i < row.size(); i += 7) row[i] = odd;
      for (auto type : {WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
        for (bool weighted : {false, true}) {
          std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, 512)));
          encode_row(type, row.data(), bytes.data(), 512, weighted ? importance.data() : nullptr);
          decode_row(type, bytes.data(), decoded.data(), 512);
          for (float f : decoded) EXPECT_TRUE(std::isfinite(f));
        }
      }
      std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(WeightType::q8_0, 512)));
      encode_row(WeightType::q8_0, row.data(), bytes.data(), 512);
    }
  }
}

TEST(Codec, LargestValueStaysFinite) {
  for (auto type : {WeightType::f16, WeightType::bf16, WeightType::q8_0, WeightType::q6_k,
                    WeightType::q5_k, WeightType::q4_k}) {
    float most = largest_value(type);
    std::vector<float> row(256, most), decoded(256);
    row[3] = -most;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, 256)));
    encode_row(type, row.data(), bytes.data(), 256);
    decode_row(type, bytes.data(), decoded.data(), 256);
    for (size_t i = 0; i < 256; ++i) {
      EXPECT_LE(std::fabs(decoded[i] - row[i]), most / 8) << facts(type).name << " " << i;
    }
  }
}

TEST(WeightTypes, NamesAndNumbers) {
  EXPECT_EQ(weight_type_from_name("Q4_K"), WeightType::q4_k);
  EXPECT_EQ(weight_type_from_name("f16"), WeightType::f16);
  EXPECT_FALSE(weight_type_from_name("q4_0").has_value());
  EXPECT_EQ(weight_type_from_ggml(14), WeightType::q6_k);
  EXPECT_FALSE(weight_type_from_ggml(2).has_value());
  EXPECT_EQ(row_bytes(WeightType::q5_k, 512), 352);
  EXPECT_THROW(row_bytes(WeightType::q5_k, 640), Error);
  EXPECT_THROW(facts(WeightType::affine), Error);
  EXPECT_THROW(row_bytes(WeightType::f32, INT64_MAX), Error);
}

TEST(KScales, TakesEveryPair) {
  KScales packed;
  for (int v = 0; v < 64; ++v) {
    uint8_t scales[8], minima[8];
    for (int g = 0; g < 8; ++g) {
      scales[g] = static_cast<uint8_t>((v + 7 * g) % 64);
      minima[g] = static_cast<uint8_t>((63 - v + 11 * g) % 64);
    }
    packed.set(scales, minima);
    for (int g = 0; g < 8; ++g) {
      EXPECT_EQ(packed.scale(g), scales[g]);
      EXPECT_EQ(packed.minimum(g), minima[g]);
    }
  }
}

}  // namespace
}  // namespace speech
