// Encoding and decoding of the weight types on one thread, in weights per second, and the relative
// error of what is encoded.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>

#include "quant/codec.h"

namespace speech {
namespace {

constexpr int64_t kCols = 1024, kRows = 64;

// What matrices of networks look like, more or less: normal, or with heavier tails.
std::vector<float> matrix(bool laplace) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::exponential_distribution<float> exponential(50);
  std::vector<float> values(kRows * kCols);
  for (float& v : values) {
    v = laplace ? (random() & 1 ? exponential(random) : -exponential(random)) : normal(random);
  }
  return values;
}

// Root of the squared error over the sum of squares.
double relative_error(WeightType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  std::vector<float> decoded(values.size());
  encode_row(type, values.data(), bytes.data(), kRows * kCols);
  decode_row(type, bytes.data(), decoded.data(), kRows * kCols);
  double error = 0, power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    double e = static_cast<double>(decoded[i]) - values[i];
    error += e * e;
    power += static_cast<double>(values[i]) * values[i];
  }
  return std::sqrt(error / power);
}

void encode(benchmark::State& state, WeightType type) {
  auto values = matrix(false);
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  for (auto _ : state) {
    encode_row(type, values.data(), bytes.data(), kRows * kCols);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kCols);
  state.counters["bits"] = 8.0 * static_cast<double>(bytes.size()) / (kRows * kCols);
  state.counters["error_normal"] = relative_error(type, values);
  state.counters["error_laplace"] = relative_error(type, matrix(true));
}

void decode(benchmark::State& state, WeightType type) {
  auto values = matrix(false);
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  encode_row(type, values.data(), bytes.data(), kRows * kCols);
  for (auto _ : state) {
    decode_row(type, bytes.data(), values.data(), kRows * kCols);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kCols);
}

BENCHMARK_CAPTURE(encode, f16, WeightType::f16);
BENCHMARK_CAPTURE(encode, bf16, WeightType::bf16);
BENCHMARK_CAPTURE(encode, q8_0, WeightType::q8_0);
BENCHMARK_CAPTURE(encode, q6_k, WeightType::q6_k);
BENCHMARK_CAPTURE(encode, q5_k, WeightType::q5_k);
BENCHMARK_CAPTURE(encode, q4_k, WeightType::q4_k);
BENCHMARK_CAPTURE(decode, f16, WeightType::f16);
BENCHMARK_CAPTURE(decode, q8_0, WeightType::q8_0);
BENCHMARK_CAPTURE(decode, q6_k, WeightType::q6_k);
BENCHMARK_CAPTURE(decode, q5_k, WeightType::q5_k);
BENCHMARK_CAPTURE(decode, q4_k, WeightType::q4_k);

}  // namespace
}  // namespace speech
