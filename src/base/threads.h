// A pool of threads for parallel loops over fixed tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace speech {

// Number of physical performance cores this process may use (at least 1; CPU affinity and cgroup
// quotas count): the default of --threads.
int default_threads();

// Above what any machine has.
inline constexpr int kMostThreads = 1024;

// Runs loops on `threads` threads, the caller among them. What a tile computes may depend on its
// index only, never on which thread runs it or how many there are: that keeps results the same at
// any thread count. Loops do not nest; callers on different threads take turns.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; 1 runs everything on the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(int64_t tile, int thread) once for each tile in [0, tiles); thread in [0, threads())
  // names scratch memory. Tiles are taken in order by whichever thread is free. After a tile throws
  // no further tiles start; the first exception is rethrown here once the running ones have ended.
  template <typename Body>
  void run(int64_t tiles, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_tiles(tiles, const_cast<void*>(static_cast<const void*>(&body)),
              [](void* b, int64_t tile, int thread) { (*static_cast<Plain*>(b))(tile, thread); });
  }

 private:
  using TileFunction = void (*)(void* body, int64_t tile, int thread);
  void run_tiles(int64_t tiles, void* body, TileFunction function);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace speech
