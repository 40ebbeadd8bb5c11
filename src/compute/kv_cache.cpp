#include "compute/kv_cache.h"

#include <cstring>

#include "base/error.h"
#include "base/memory.h"

namespace speech {

const char* kv_type_name(KvType type) {
  return type == KvType::f16 ? "f16" : "f32";
}

KvType kv_type(std::string_view name) {
  for (KvType type : {KvType::f32, KvType::f16}) {
    if (name == kv_type_name(type)) return type;
  }
  fail_option(Status::invalid_argument, "kv_cache", "\"{}\"; expected f32 or f16", name);
}

KvCache::KvCache(int layers, int64_t kv_heads, int64_t head_dim, KvType type)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      type_(type),
      side_bytes_(static_cast<size_t>(kKvBlock * kv_heads * head_dim) * kv_value_bytes(type)),
      block_bytes_(2 * static_cast<size_t>(layers) * side_bytes_) {}

KvCache::Block KvCache::new_block() const {
  // Kernels multiply whole blocks and drop what lies behind the last position: zeros at first.
  std::byte* memory = allocate_large(block_bytes_, "a cache of keys and values");
  return Block(memory, [size = block_bytes_](std::byte* p) { free_large(p, size); });
}

void KvCache::hold(size_t index, Block block) {
  if (index == blocks_.size()) {
    blocks_.emplace_back();
    addresses_.push_back(nullptr);
  }
  addresses_[index] = block.get();
  blocks_[index] = std::move(block);
}

KvCache KvCache::prefix(int64_t positions) const {
  if (positions < 0 || positions > positions_) {
    fail(Status::internal, "kv cache: cannot copy {} of {} positions", positions, positions_);
  }
  KvCache copy(layers_, kv_heads_, head_dim_, type_);
  for (int64_t b = 0; b < blocks_of(positions); ++b) {
    copy.hold(static_cast<size_t>(b), blocks_[static_cast<size_t>(b)]);
  }
  copy.positions_ = positions;
  return copy;
}

void KvCache::reserve(int64_t count) {
  for (int64_t b = positions_ / kKvBlock; b < blocks_of(positions_ + count); ++b) {
    auto index = static_cast<size_t>(b);
    bool there = index < blocks_.size();
    if (there && blocks_[index].use_count() == 1) continue;
    Block own = new_block();
    if (there && b * kKvBlock < positions_) {
      std::memcpy(own.get(), addresses_[index], block_bytes_);
    }
    hold(index, std::move(own));
  }
}

KvRows KvCache::view(int l, KvSide side, int64_t first, int64_t rows) const {
  if (blocks_of(first + rows) > static_cast<int64_t>(blocks_.size())) {
    fail(Status::internal, "kv cache: {} positions asked, room for {}", first + rows,
         static_cast<int64_t>(blocks_.size()) * kKvBlock);
  }
  size_t offset = (2 * static_cast<size_t>(l) + (side == KvSide::values ? 1 : 0)) * side_bytes_;
  return {type_, side, addresses_.data(), offset, first, rows, kv_heads_, head_dim_};
}

KvRows KvCache::key_rows(int l, int64_t count) const {
  return view(l, KvSide::keys, positions_, count);
}
KvRows KvCache::value_rows(int l, int64_t count) const {
  return view(l, KvSide::values, positions_, count);
}
KvRows KvCache::keys(int l, int64_t extra) const {
  return view(l, KvSide::keys, 0, positions_ + extra);
}
KvRows KvCache::values(int l, int64_t extra) const {
  return view(l, KvSide::values, 0, positions_ + extra);
}

void KvCache::advance(int64_t count) {
  positions_ += count;
}

void KvCache::truncate(int64_t positions) {
  if (positions < 0 || positions > positions_) {
    fail(Status::internal, "kv cache: cannot truncate {} positions to {}", positions_, positions);
  }
  positions_ = positions;
}

size_t KvCache::bytes() const {
  return blocks_.size() * block_bytes_;
}

std::span<const std::byte> KvCache::block(int64_t index) const {
  return {addresses_[static_cast<size_t>(index)], block_bytes_};
}

void KvCache::restore(int64_t positions, std::span<const std::byte> blocks) {
  if (positions < 0 || blocks.size() != static_cast<size_t>(blocks_of(positions)) * block_bytes_) {
    fail(Status::internal, "kv cache: {} positions restored from {} bytes", positions,
         blocks.size());
  }
  positions_ = 0;
  reserve(positions);
  for (int64_t b = 0; b < blocks_of(positions); ++b) {
    auto index = static_cast<size_t>(b);
    std::memcpy(addresses_[index], blocks.data() + index * block_bytes_, block_bytes_);
  }
  positions_ = positions;
}

}  // namespace speech
