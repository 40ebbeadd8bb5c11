// Encoding and decoding of weight types on one thread, in weights per second.
#include <benchmark/benchmark.h>

#include <random>

#include "quant/codec.h"

namespace speech {
namespace {

constexpr int64_t kCols = 1024, kRows = 16;

std::vector<float> gauss() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(kRows * kCols);
  for (float& v : values) v = normal(random);
  return values;
}

void encode(benchmark::State& state, WeightType type) {
  auto values = gauss();
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  for (auto _ : state) {
    encode_row(type, values.data(), bytes.data(), kRows * kCols);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kCols);
}

void decode(benchmark::State& state, WeightType type) {
  auto values = gauss();
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  encode_row(type, values.data(), bytes.data(), kRows * kCols);
  for (auto _ : state) {
    decode_row(type, bytes.data(), values.data(), kRows * kCols);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kCols);
}

BENCHMARK_CAPTURE(encode, f16, WeightType::f16);
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
