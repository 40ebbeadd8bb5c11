// The matrix product: out[n, m] = x[n, k] w[m, k]^T for each weight type. Lines with few rows go
// round through copies of the matrix, 256 MB in all, as a model's weights do: "of_read" is then the
// share of the memory's read bandwidth. Rates are those of the fastest iteration (see
// ops_bench.cpp). OpenBLAS's f32 product stands beside ours; it has to be told what an unknown
// processor is (OPENBLAS_CORETYPE=SKYLAKEX), or it takes kernels of the year 2004.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/threads.h"
#include "bench/limits.h"
#include "compute/backend.h"
#include "compute/cpu/decode.h"
#include "compute/cpu/isa.h"
#include "quant/codec.h"

#ifdef SPEECH_WITH_OPENBLAS
#include <cblas.h>
#endif

namespace speech::bench {
namespace {

struct Type {
  std::string name;
  WeightType type;
  AffineFormat affine = {};
};

std::vector<Type> types() {
  std::vector<Type> list;
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16, WeightType::q8_0,
                          WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    list.push_back({std::string(facts(type).name), type});
  }
  for (auto [bits, group] : {std::pair{4, 32}, {4, 64}, {8, 32}, {8, 64}, {3, 64}, {6, 64}}) {
    list.push_back({"int" + std::to_string(bits) + "_g" + std::to_string(group),
                    WeightType::affine,
                    {bits, group, WeightType::bf16}});
  }
  return list;
}

// Seconds of processor time of this thread: on a machine that has other work to do, one thread's
// rates are measured with this clock, the limits beside them too.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One thread's multiply-add peak, now.
double peak_of_one_thread() {
  cpu::Isa isa = cpu::choose_isa().isa;
  double best = 0;
  for (int trial = 0; trial < 10; ++trial) {
    double start = thread_seconds();
    double flops = cpu::multiply_adds(isa, 20000);
    best = std::max(best, flops / (thread_seconds() - start));
  }
  return best;
}

// Memory in huge pages where there are any, as that of the measured limits.
class Memory {
 public:
  void resize(size_t bytes) {
    constexpr size_t kPage = size_t{2} << 20;
    size_ = bytes;
    bytes = (bytes + kPage) / kPage * kPage;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
    if (!data_) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
  }
  std::byte* data() const {
    return data_.get();
  }
  size_t size() const {
    return size_;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// One thread's read bandwidth over the bytes given, which are far more than any cache holds.
double read_of_one_thread(const Memory& bytes) {
  double best = 0;
  for (int trial = 0; trial < 3; ++trial) {
    double start = thread_seconds();
    uint64_t sum[8] = {};
    for (size_t i = 0; i + 64 <= bytes.size(); i += 64) {
      uint64_t line[8];
      std::memcpy(line, bytes.data() + i, 64);
      for (int j = 0; j < 8; ++j) sum[j] += line[j];
    }
    keep(sum);
    best = std::max(best, static_cast<double>(bytes.size()) / (thread_seconds() - start));
  }
  return best;
}

// Copies of one matrix, of which the first rows are random and the others repeat them.
struct Matrices {
  Memory data, scales, biases;
  std::vector<Weight> w;

  Matrices(const Type& type, int64_t rows, int64_t cols, int64_t total_bytes) {
    bool affine = type.type == WeightType::affine;
    int64_t row = affine ? affine_packed_bytes(type.affine, cols) : row_bytes(type.type, cols);
    int64_t scale_row = affine ? cols / type.affine.group * 2 : 0;
    int64_t copies = std::max<int64_t>(1, total_bytes / ((row + 2 * scale_row) * rows));
    data.resize(copies * rows * row);
    scales.resize(copies * rows * scale_row);
    biases.resize(copies * rows * scale_row);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<float> values(cols);
    for (int64_t r = 0; r < copies * rows; ++r) {
      std::byte *to = data.data() + r * row, *s = scales.data() + r * scale_row,
                *b = biases.data() + r * scale_row;
      if (r >= 32) {
        std::memcpy(to, to - 32 * row, row);
        if (affine) std::memcpy(s, s - 32 * scale_row, scale_row);
        if (affine) std::memcpy(b, b - 32 * scale_row, scale_row);
        continue;
      }
      for (float& v : values) v = normal(random);
      if (affine) {
        encode_affine_row(type.affine, values.data(), to, s, b, cols);
      } else {
        encode_row(type.type, values.data(), to, cols);
      }
    }
    for (int64_t copy = 0; copy < copies; ++copy) {
      Weight weight;
      weight.type = type.type;
      weight.rows = rows;
      weight.cols = cols;
      weight.affine = type.affine;
      weight.row_bytes = row;
      weight.data = data.data() + copy * rows * row;
      weight.scales = scales.data() + copy * rows * scale_row;
      weight.biases = biases.data() + copy * rows * scale_row;
      w.push_back(weight);
    }
  }
};

std::vector<float> normal_values(int64_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Args: threads, n, m, k.
void product(benchmark::State& state, const Type& type) {
  int threads = static_cast<int>(state.range(0));
  int64_t n = state.range(1), m = state.range(2), k = state.range(3);
  auto backend = make_cpu_backend(threads);
  Matrices matrices(type, m, k, n <= 16 ? int64_t{256} << 20 : 0);
  std::vector<float> x = normal_values(n * k), out(n * m);
  Tensor x_tensor = TensorAccess::make(x.data(), {n, k});
  Tensor out_tensor = TensorAccess::make(out.data(), {n, m});
  bool one = threads == 1;
  auto clock = one ? thread_seconds : seconds_now;
  double peak = one ? peak_of_one_thread() : limits(threads).flops;
  double best = 1e30;
  size_t copy = 0;
  for (auto _ : state) {
    double start = clock();
    backend->matmul(out_tensor, x_tensor, matrices.w[copy++ % matrices.w.size()]);
    best = std::min(best, clock() - start);
  }
  if (one) peak = std::max(peak, peak_of_one_thread());
  double flops = 2.0 * n * m * k, bytes = static_cast<double>(matrices.w[0].bytes());
  state.counters["best_GFLOPS"] = flops / best * 1e-9;
  state.counters["of_peak"] = flops / best / peak;
  state.counters["best_GB/s"] = bytes / best * 1e-9;
  if (n <= 16) {
    double read = one ? read_of_one_thread(matrices.data) : limits(threads).read_bytes;
    state.counters["of_read"] = bytes / best / read;
  }
}

// Not a speed: "error" is the relative RMS error of the product against f64 sums over the decoded
// weights, "type_error" that of the weight type itself, against the weights before encoding.
void error(benchmark::State& state, const Type& type) {
  int64_t n = 16, m = 32, k = 1024;
  auto backend = make_cpu_backend(1);
  Matrices matrices(type, m, k, 0);
  std::vector<float> x = normal_values(n * k), out(n * m);
  for (auto _ : state) {
    backend->matmul(TensorAccess::make(out.data(), {n, m}), TensorAccess::make(x.data(), {n, k}),
                    matrices.w[0]);
  }
  std::mt19937 random(1);  // the values that Matrices encodes
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(k), decoded(k);
  double squares = 0, difference = 0, type_difference = 0;
  for (int64_t j = 0; j < m; ++j) {
    for (float& v : values) v = normal(random);
    cpu::decode_weight_row(matrices.w[0], j, decoded.data());
    for (int64_t i = 0; i < n; ++i) {
      double before = 0, after = 0;
      for (int64_t c = 0; c < k; ++c) {
        before += static_cast<double>(values[c]) * x[i * k + c];
        after += static_cast<double>(decoded[c]) * x[i * k + c];
      }
      squares += after * after;
      difference += (out[i * m + j] - after) * (out[i * m + j] - after);
      type_difference += (before - after) * (before - after);
    }
  }
  state.counters["error"] = std::sqrt(difference / squares);
  state.counters["type_error"] = std::sqrt(type_difference / squares);
}

#ifdef SPEECH_WITH_OPENBLAS
void openblas(benchmark::State& state) {
  int threads = static_cast<int>(state.range(0)), n = static_cast<int>(state.range(1)),
      m = static_cast<int>(state.range(2)), k = static_cast<int>(state.range(3));
  openblas_set_num_threads(threads);
  std::vector<float> x = normal_values(int64_t{n} * k), w = normal_values(int64_t{m} * k),
                     out(int64_t{n} * m);
  bool one = threads == 1;
  auto clock = one ? thread_seconds : seconds_now;
  double peak = one ? peak_of_one_thread() : limits(threads).flops;
  double best = 1e30;
  for (auto _ : state) {
    double start = clock();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, m, k, 1, x.data(), k, w.data(), k, 0,
                out.data(), m);
    best = std::min(best, clock() - start);
  }
  if (one) peak = std::max(peak, peak_of_one_thread());
  double flops = 2.0 * n * m * k;
  state.SetLabel(openblas_get_corename());
  state.counters["best_GFLOPS"] = flops / best * 1e-9;
  state.counters["of_peak"] = flops / best / peak;
}
#endif

void arguments(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "n", "m", "k"})->Unit(benchmark::kMicrosecond)->MinTime(0.15);
  for (int threads = 1; threads <= default_threads(); threads *= 2) {
    for (auto [m, k] : {std::pair{4096, 1024}, {1024, 4096}}) {
      for (int n : {1, 4, 16, 64, 375}) b->Args({threads, n, m, k});
    }
  }
}

[[maybe_unused]] const bool registered = [] {
  for (const Type& type : types()) {
    arguments(benchmark::RegisterBenchmark(("matmul/" + type.name).c_str(),
                                           [type](benchmark::State& s) { product(s, type); }));
    benchmark::RegisterBenchmark(("matmul_error/" + type.name).c_str(), [type](
                                                                            benchmark::State& s) {
      error(s, type);
    })->Iterations(1);
  }
#ifdef SPEECH_WITH_OPENBLAS
  arguments(benchmark::RegisterBenchmark("openblas/f32", openblas));
#endif
  return true;
}();

}  // namespace
}  // namespace speech::bench
