#include "compute/workspace.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"

namespace speech {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kFirstBlock = size_t{1} << 20;
constexpr char kWhat[] = "activations";

}  // namespace

Workspace::~Workspace() {
  shrink();
}

Tensor Workspace::tensor(std::initializer_list<int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(size, dim, &size) || size > (int64_t{1} << 58)) {
      fail(Status::out_of_memory, "a tensor with an axis of {} values does not fit in memory", dim);
    }
  }
  return TensorAccess::make(reinterpret_cast<float*>(bytes(size * sizeof(float))), shape);
}

std::byte* Workspace::bytes(size_t size) {
  if (size > (size_t{1} << 60)) fail(Status::out_of_memory, "no memory for {} bytes", size);
  size = std::max(kAlign, (size + kAlign - 1) / kAlign * kAlign);
  while (current_ < blocks_.size() && blocks_[current_].size - blocks_[current_].used < size) {
    // Nothing above the current block is in use: an unused one that is too small is replaced.
    if (current_ + 1 < blocks_.size() && blocks_[current_ + 1].size < size) {
      free_large(blocks_[current_ + 1].data, blocks_[current_ + 1].size);
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(current_) + 1);
      continue;
    }
    ++current_;
  }
  if (current_ == blocks_.size()) {
    size_t total = 0;
    for (const Block& block : blocks_) total += block.size;
    size_t block_size = std::max({size, kFirstBlock, total / 2});
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({allocate_large(block_size, kWhat), block_size, 0});
  }
  Block& block = blocks_[current_];
  std::byte* data = block.data + block.used;
  block.used += size;
  high_water_ = std::max(high_water_, in_use());
  return data;
}

void Workspace::reserve(size_t size) {
  const size_t before = high_water_;
  {
    Scope scope(*this);
    bytes(size);
  }
  high_water_ = before;  // nothing has been used yet
}

size_t Workspace::in_use() const {
  size_t used = 0;
  for (const Block& block : blocks_) used += block.used;
  return used;
}

void Workspace::reset() {
  size_t total = 0;
  for (Block& block : blocks_) {
    total += block.size;
    block.used = 0;
  }
  current_ = 0;
  if (blocks_.size() > 1) {
    shrink();
    size_t size = std::min(total, std::max(high_water_, kFirstBlock));
    blocks_.push_back({allocate_large(size, kWhat), size, 0});
  }
}

void Workspace::shrink() {
  for (Block& block : blocks_) free_large(block.data, block.size);
  blocks_.clear();
  current_ = 0;
}

Workspace::Scope::Scope(Workspace& workspace)
    : workspace_(workspace),
      block_(workspace.current_),
      used_(workspace.current_ < workspace.blocks_.size()
                ? workspace.blocks_[workspace.current_].used
                : 0) {}

Workspace::Scope::~Scope() {
  for (size_t i = block_; i < workspace_.blocks_.size(); ++i) {
    workspace_.blocks_[i].used = i == block_ ? used_ : 0;
  }
  workspace_.current_ = block_;
}

}  // namespace speech
