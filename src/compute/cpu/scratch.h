// Memory that the CPU backend keeps between operations: one buffer per thread, one shared.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"

namespace speech::cpu {

// Contents are undefined at the start of an operation. Reserve before a parallel loop starts;
// inside it only thread() and shared() are called.
class Scratch {
 public:
  explicit Scratch(int threads) : threads_(threads) {}

  void reserve_threads(size_t bytes) {
    for (Buffer& buffer : threads_) buffer.reserve(bytes);
  }
  void reserve_shared(size_t bytes) { shared_.reserve(bytes); }

  // 64-byte aligned.
  std::byte* thread(int thread) const { return threads_[thread].data.get(); }
  std::byte* shared() const { return shared_.data.get(); }
  template <typename T>
  T* thread_as(int index) const {
    return reinterpret_cast<T*>(thread(index));
  }
  template <typename T>
  T* shared_as() const {
    return reinterpret_cast<T*>(shared());
  }

  size_t bytes() const {
    size_t total = shared_.size;
    for (const Buffer& buffer : threads_) total += buffer.size;
    return total;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Buffer {
    std::unique_ptr<std::byte, Free> data;
    size_t size = 0;

    void reserve(size_t bytes) {
      if (bytes <= size) return;
      bytes = (bytes + 4095) / 4096 * 4096;
      data.reset();
      size = 0;
      data.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
      if (!data) fail(Status::out_of_memory, "no memory for {} bytes of scratch", bytes);
      size = bytes;
    }
  };

  std::vector<Buffer> threads_;
  Buffer shared_;
};

}  // namespace speech::cpu
