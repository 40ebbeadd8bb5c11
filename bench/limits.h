// What the benchmarks compare themselves with, measured once per number of threads.
#pragma once

#include <chrono>
#include <map>

#include "compute/cpu/peak.h"
#include "compute/limits.h"

namespace speech::bench {

using cpu::keep;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline const MachineLimits& limits(int threads) {
  static std::map<int, MachineLimits> known;
  auto [it, fresh] = known.try_emplace(threads);
  if (fresh) it->second = measure_limits(threads);
  return it->second;
}

}  // namespace speech::bench
