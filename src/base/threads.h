// A pool of threads for parallel loops over fixed tiles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace speech {

// Number of physical performance cores (at least 1): the default of --threads.
int default_threads();

// Runs loops on `threads` threads, the caller among them. What a tile computes may depend on its
// index only, never on which thread runs it or how many there are: that keeps results the same at
// any thread count. One loop at a time; loops do not nest.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; 1 runs everything on the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(tile, thread) once for each tile in [0, tiles); thread in [0, threads()) names
  // scratch memory. Tiles are taken in order by whichever thread is free. The first exception a
  // tile throws is rethrown here after the loop has ended.
  void run(int64_t tiles, const std::function<void(int64_t tile, int thread)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace speech
