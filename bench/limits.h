// The limits of the machine, measured in the process whose figures are compared with them: f32
// multiply-adds per second from registers with the instruction set in use, and bytes read per
// second from memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/threads.h"
#include "compute/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace speech::bench {

struct Limits {
  double flops = 0;       // 2 per multiply-add, per second, all threads
  double read_bytes = 0;  // per second, all threads, far out of cache
};

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keeps a value without storing it.
template <typename T>
inline void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

// Each loop runs 12 chains of multiply-adds `count` times, all in registers (an array whose address
// escaped would be stored at every step: only the total is kept), and returns the flops of one
// round.
inline double fma_loop_scalar(int64_t count) {
  float a[12], x = 1.0000001f, total = 0;
  for (float& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = a[j] * x + x;
#if defined(__x86_64__)
      asm volatile("" : "+x"(a[j]));
#endif
    }
  }
  for (float v : a) total += v;
  keep(total);
  return 24;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) inline double fma_loop_avx2(int64_t count) {
  __m256 a[12], x = _mm256_set1_ps(1.0000001f);
  for (auto& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = _mm256_fmadd_ps(a[j], x, x);
      asm volatile("" : "+x"(a[j]));
    }
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) a[0] = _mm256_add_ps(a[0], a[j]);
  float total = _mm256_cvtss_f32(a[0]);
  keep(total);
  return 12 * 16;
}

__attribute__((target("avx512f"))) inline double fma_loop_avx512(int64_t count) {
  __m512 a[12], x = _mm512_set1_ps(1.0000001f);
  for (auto& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = _mm512_fmadd_ps(a[j], x, x);
      asm volatile("" : "+v"(a[j]));
    }
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) a[0] = _mm512_add_ps(a[0], a[j]);
  float total = _mm512_cvtss_f32(a[0]);
  keep(total);
  return 12 * 32;
}
#endif

inline double measure_flops(ThreadPool& pool, cpu::Isa isa) {
  auto loop = fma_loop_scalar;
#if defined(__x86_64__)
  if (isa == cpu::Isa::avx2) loop = fma_loop_avx2;
  if (isa >= cpu::Isa::avx512) loop = fma_loop_avx512;
#endif
  (void)isa;
  constexpr int64_t kCount = 400'000;  // short, many times: the best one was not interrupted
  double best = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<double> flops(pool.threads());
    double start = seconds_now();
    pool.run(pool.threads(), [&](int64_t tile, int) { flops[tile] = loop(kCount) * kCount; });
    double time = seconds_now() - start, total = 0;
    for (double f : flops) total += f;
    best = std::max(best, total / time);
  }
  return best;
}

// Sums 1 MiB as `kStreams` streams side by side; the best number of them is the machine's figure.
template <int kStreams>
inline void read_tile(const char* tile, int64_t bytes) {
  const auto* p = reinterpret_cast<const uint64_t*>(tile);
  int64_t length = bytes / 8 / kStreams;
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < length; i += 8) {
    for (int s = 0; s < kStreams; ++s) {
      for (int j = 0; j < 8; ++j) sum[j] += p[s * length + i + j];
    }
  }
  keep(sum);
}

inline double measure_read(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30, kTile = int64_t{1} << 20;
  auto* memory = static_cast<char*>(std::aligned_alloc(2 * kTile, kBytes));
#ifdef MADV_HUGEPAGE
  madvise(memory, kBytes, MADV_HUGEPAGE);  // as the workspace asks for
#endif
  pool.run(kBytes / kTile, [&](int64_t tile, int) {
    std::fill_n(reinterpret_cast<uint64_t*>(memory + tile * kTile), kTile / 8, tile);
  });
  double best = 0;
  for (int trial = 0; trial < 10; ++trial) {
    double start = seconds_now();
    pool.run(kBytes / kTile, [&](int64_t tile, int) {
      if (trial % 2 == 0) {
        read_tile<1>(memory + tile * kTile, kTile);
      } else {
        read_tile<4>(memory + tile * kTile, kTile);
      }
    });
    best = std::max(best, kBytes / (seconds_now() - start));
  }
  std::free(memory);
  return best;
}

// Measured at the first call for a number of threads; SPEECH_CPU as for the backend.
inline const Limits& limits(int threads) {
  static std::map<int, Limits> known;
  auto [it, fresh] = known.try_emplace(threads);
  if (fresh) {
    ThreadPool pool(threads);
    it->second = {measure_flops(pool, cpu::choose_isa().isa), measure_read(pool)};
  }
  return it->second;
}

}  // namespace speech::bench
