#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace speech {
namespace {

// "0-3,8" as the kernel writes CPU lists.
std::set<int> parse_cpu_list(const std::string& text) {
  std::set<int> cpus;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = std::min(text.find(',', at), text.size());
    int first = 0, last = 0;
    int fields = std::sscanf(text.substr(at, end - at).c_str(), "%d-%d", &first, &last);
    if (fields < 1) break;
    if (fields == 1) last = first;
    for (int cpu = first; cpu <= last && cpu - first < 65536; ++cpu) cpus.insert(cpu);
    at = end + 1;
  }
  return cpus;
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// CPUs that the cgroup's quota allows, rounded up; 0 when there is none.
int cgroup_cpus() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 0;
  double cpus = std::strtod(quota.c_str(), nullptr) / period;
  return cpus > 0 ? std::max(1, static_cast<int>(cpus + 0.999)) : 0;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a thread looks for the next loop before it sleeps: longer than the gaps between the
// operations of a forward pass, short against anything a person notices.
constexpr auto kSpin = std::chrono::microseconds(100);

}  // namespace

int default_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::max(1u, std::thread::hardware_concurrency());
  }
  // Intel machines with two kinds of cores list the fast ones here.
  std::set<int> performance = parse_cpu_list(first_line("/sys/devices/cpu_core/cpus"));
  std::set<std::string> cores;  // by their list of hardware threads
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (!performance.empty() && !performance.count(cpu)) continue;
    std::string siblings = first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                      "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  int count = static_cast<int>(cores.size());
  if (count == 0) count = CPU_COUNT(&allowed);
  if (int quota = cgroup_cpus()) count = std::min(count, quota);
  return std::max(1, count);
}

// The gate holds [loop number | closed bit | threads inside]. A worker enters the open loop by
// raising the count, so the caller waits only for workers that are inside: one that still sleeps
// when the work is done does not hold it up.
struct ThreadPool::Impl {
  static constexpr uint64_t kInside = 0x7fff, kClosed = 0x8000, kLoop = 0x10000;

  std::mutex callers;  // one loop at a time
  alignas(64) std::atomic<uint64_t> gate{kClosed};
  std::atomic<uint32_t> wakeups{0};  // what sleeping workers wait on
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int64_t> next{0};
  int64_t tiles = 0;
  void* body = nullptr;
  TileFunction function = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void take_tiles(int thread) {
    try {
      for (;;) {
        int64_t tile = next.fetch_add(1, std::memory_order_relaxed);
        if (tile >= tiles) return;
        function(body, tile, thread);
      }
    } catch (...) {
      next.store(tiles, std::memory_order_relaxed);
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  // Enters the open loop if there is one this thread has not been in.
  bool enter(uint64_t& last) {
    uint64_t seen = gate.load(std::memory_order_acquire);
    while (!(seen & kClosed) && seen / kLoop != last) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
        last = seen / kLoop;
        return true;
      }
    }
    return false;
  }

  void work(int thread) {
    uint64_t last = 0;
    while (!stop.load(std::memory_order_acquire)) {
      // Read before looking at the gate: a loop opened afterwards changes it.
      uint32_t ticket = wakeups.load(std::memory_order_acquire);
      auto until = std::chrono::steady_clock::now() + kSpin;
      bool inside = false;
      for (int i = 1; !(inside = enter(last)) && !stop.load(std::memory_order_acquire); ++i) {
        pause_cpu();
        if (i % 32 == 0 && std::chrono::steady_clock::now() > until) break;
      }
      if (inside) {
        take_tiles(thread);
        gate.fetch_sub(1, std::memory_order_acq_rel);
      } else if (!stop.load(std::memory_order_acquire)) {
        wakeups.wait(ticket, std::memory_order_acquire);
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads < 1 || threads > kMostThreads) {
    fail_option(Status::out_of_range, "threads", "{} threads: expected 1 to {}", threads,
                kMostThreads);
  }
  try {
    for (int thread = 1; thread < threads; ++thread) {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->work(thread); });
    }
  } catch (const std::system_error& e) {
    impl_->stop = true;
    impl_->wakeups.fetch_add(1);
    impl_->wakeups.notify_all();
    for (std::thread& worker : impl_->workers) worker.join();
    fail(Status::internal, "cannot start {} threads: {}", threads, e.what());
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->wakeups.fetch_add(1, std::memory_order_release);
  impl_->wakeups.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void ThreadPool::run_tiles(int64_t tiles, void* body, TileFunction function) {
  if (tiles <= 0) return;
  Impl& pool = *impl_;
  if (tiles == 1 || pool.workers.empty()) {
    for (int64_t tile = 0; tile < tiles; ++tile) function(body, tile, 0);
    return;
  }
  std::lock_guard lock(pool.callers);
  pool.tiles = tiles;
  pool.body = body;
  pool.function = function;
  pool.error = nullptr;
  pool.next.store(0, std::memory_order_relaxed);
  uint64_t loop = pool.gate.load(std::memory_order_relaxed) / Impl::kLoop + 1;
  pool.gate.store(loop * Impl::kLoop, std::memory_order_release);
  pool.wakeups.fetch_add(1, std::memory_order_acq_rel);
  pool.wakeups.notify_all();

  pool.take_tiles(0);
  pool.gate.fetch_or(Impl::kClosed, std::memory_order_acq_rel);
  for (int i = 1; pool.gate.load(std::memory_order_acquire) & Impl::kInside; ++i) {
    pause_cpu();
    if (i % 256 == 0) std::this_thread::yield();
  }
  if (pool.error) std::rethrow_exception(std::exchange(pool.error, nullptr));
}

}  // namespace speech
