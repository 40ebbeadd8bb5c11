#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace speech {
namespace {

TEST(ThreadPool, RunsEveryTileOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t tiles : {0, 1, 2, 3, 100, 1001}) {
      std::vector<std::atomic<int>> count(tiles);
      pool.run(tiles, [&](int64_t tile, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++count[tile];
      });
      for (auto& c : count) ASSERT_EQ(c, 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsWithPauses) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    pool.run(5, [&](int64_t tile, int) { sum += tile; });
    // Long enough that workers fall asleep now and then.
    if (loop % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(sum, 3000 * 10);
}

TEST(ThreadPool, CarriesTheException) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.run(100,
                          [](int64_t tile, int) {
                            if (tile == 17) throw std::runtime_error("tile 17");
                          }),
                 std::runtime_error);
    int64_t last = -1;
    pool.run(1, [&](int64_t tile, int) { last = tile; });
    EXPECT_EQ(last, 0);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 200; ++loop) pool.run(7, [&](int64_t, int) { ++sum; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 200 * 7);
}

TEST(ThreadPool, RefusesAbsurdCounts) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(100000), Error);
}

TEST(ThreadPool, DefaultIsAtLeastOne) {
  EXPECT_GE(default_threads(), 1);
}

}  // namespace
}  // namespace speech
