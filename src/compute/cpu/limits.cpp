#include "compute/limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "base/threads.h"
#include "compute/cpu/isa.h"
#include "compute/cpu/peak.h"

namespace speech {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double measure_flops(ThreadPool& pool, cpu::Isa isa) {
  constexpr int64_t kCount = 400'000;  // short, many times: the best one was not interrupted
  double best = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<double> flops(static_cast<size_t>(pool.threads()));
    double start = seconds_now();
    pool.run(pool.threads(), [&](int64_t tile, int) {
      flops[static_cast<size_t>(tile)] = cpu::multiply_adds(isa, kCount);
    });
    double time = seconds_now() - start, total = 0;
    for (double f : flops) total += f;
    best = std::max(best, total / time);
  }
  return best;
}

// Sums a tile as `kStreams` streams side by side; the best number of them is the machine's figure.
template <int kStreams>
void read_tile(const std::byte* tile, int64_t bytes) {
  const auto* p = reinterpret_cast<const uint64_t*>(tile);
  int64_t length = bytes / 8 / kStreams;
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < length; i += 8) {
    for (int s = 0; s < kStreams; ++s) {
      for (int j = 0; j < 8; ++j) sum[j] += p[s * length + i + j];
    }
  }
  cpu::keep(sum);
}

double measure_read(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30, kTile = int64_t{1} << 20;
  // As the workspace and the caches have it.
  auto release = [](std::byte* p) { free_large(p, kBytes); };
  std::unique_ptr<std::byte, decltype(release)> memory(
      allocate_large(kBytes, "a measurement of the read bandwidth"));
  pool.run(kBytes / kTile, [&](int64_t tile, int) {
    std::fill_n(reinterpret_cast<uint64_t*>(memory.get() + tile * kTile), kTile / 8,
                static_cast<uint64_t>(tile));
  });
  double best = 0;
  for (int trial = 0; trial < 10; ++trial) {
    auto read = trial % 2 == 0 ? read_tile<1> : read_tile<4>;
    double start = seconds_now();
    pool.run(kBytes / kTile, [&](int64_t tile, int) { read(memory.get() + tile * kTile, kTile); });
    best = std::max(best, kBytes / (seconds_now() - start));
  }
  return best;
}

}  // namespace

MachineLimits measure_limits(int threads) {
  ThreadPool pool(threads);
  return {measure_flops(pool, cpu::choose_isa().isa), measure_read(pool)};
}

}  // namespace speech
