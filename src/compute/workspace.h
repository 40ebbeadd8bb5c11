// Workspace: the memory of activations during one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "compute/tensor.h"

namespace speech {

// A bump allocator: tensors are handed out one after another and given back all at once, by a Scope
// or by reset(). Memory is kept for the next call; high_water() tells how much a call needed.
// Values of a new tensor are undefined. Not thread-safe: one per running request.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  // A contiguous tensor, 64-byte aligned. Throws Error(out_of_memory).
  Tensor tensor(std::initializer_list<int64_t> shape);
  // Raw bytes for a backend's own use, 64-byte aligned.
  std::byte* bytes(size_t size);

  // Sees to it that tensors of `size` bytes in all, each rounded up to a multiple of 64, find room
  // in one block. Without it blocks grow as they are needed, each by half of what was there: memory
  // that a call which knows its size beforehand does not need.
  void reserve(size_t size);

  // Tensors made after a Scope's construction die with it:
  //   for (layer...) { Workspace::Scope scope(ws); ... }
  class Scope {
   public:
    explicit Scope(Workspace& workspace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_, used_;
  };

  void reset();           // gives everything back; merges the blocks into one
  void shrink();          // reset() and return the memory to the system
  size_t in_use() const;  // bytes handed out now
  size_t high_water() const { return high_water_; }

 private:
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
  size_t high_water_ = 0;
};

}  // namespace speech
