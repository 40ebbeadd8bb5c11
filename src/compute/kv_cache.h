// Keys and values of the positions a sequence has seen, for every layer of a decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace speech {

enum class KvType { f32, f16 };
const char* kv_type_name(KvType type);  // "f32", "f16"
// Error(invalid_argument) for any other name.
KvType kv_type(std::string_view name);
inline size_t kv_value_bytes(KvType type) {
  return type == KvType::f16 ? sizeof(uint16_t) : sizeof(float);
}

// Positions of a block of a cache.
constexpr int64_t kKvBlock = 64;

enum class KvSide { keys, values };

// Keys or values of one layer at positions [first, first + rows): floats, or f16 as bits. Block b
// holds positions from b * kKvBlock on; a head's keys lie in it as [d][kKvBlock], so that a query
// meets kKvBlock keys side by side, its values as [kKvBlock][d]. Only a Backend reads or writes
// them. Valid until the cache grows.
struct KvRows {
  KvType type = KvType::f32;
  KvSide side = KvSide::keys;
  std::byte* const* blocks = nullptr;
  size_t offset = 0;  // bytes from the start of a block to head 0
  int64_t first = 0, rows = 0, heads = 0, d = 0;
};

// Memory grows with the sequence, block by block, never up front, and is never moved: a block holds
// kKvBlock positions of every layer. Caches with a common beginning share its blocks (as in
// PagedAttention, Kwon et al. 2023, arXiv:2309.06180); one is copied when it is written to. Keys
// are those after norm and rotation.
class KvCache {
 public:
  KvCache(int layers, int64_t kv_heads, int64_t head_dim, KvType type = KvType::f32);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // A cache of the first `positions` of this one, which shares their blocks.
  KvCache prefix(int64_t positions) const;

  KvType type() const { return type_; }
  int64_t positions() const { return positions_; }
  int layers() const { return layers_; }

  // Makes room for `count` more positions; their rows are undefined until written through
  // key_rows() and value_rows().
  void reserve(int64_t count);
  // The rows of the `count` positions after positions() in layer `l`, to be written by a backend.
  // reserve() must have been called.
  KvRows key_rows(int l, int64_t count) const;
  KvRows value_rows(int l, int64_t count) const;
  // All rows up to positions() + `extra`.
  KvRows keys(int l, int64_t extra = 0) const;
  KvRows values(int l, int64_t extra = 0) const;
  // Counts the rows written in every layer.
  void advance(int64_t count);
  // Forgets the positions from `positions` on.
  void truncate(int64_t positions);
  // Memory of its blocks, shared ones included.
  size_t bytes() const;

  // For prompt caches on disk: the blocks that hold positions, as they lie in memory. What a block
  // holds behind positions() is not defined.
  size_t block_bytes() const { return block_bytes_; }
  static int64_t blocks_of(int64_t positions) { return (positions + kKvBlock - 1) / kKvBlock; }
  std::span<const std::byte> block(int64_t index) const;
  // The first `positions` read back from such blocks, in the place of what the cache held.
  void restore(int64_t positions, std::span<const std::byte> blocks);

 private:
  using Block = std::shared_ptr<std::byte>;

  Block new_block() const;
  void hold(size_t index, Block block);  // appends or replaces
  KvRows view(int l, KvSide side, int64_t first, int64_t rows) const;

  int layers_;
  int64_t kv_heads_, head_dim_, positions_ = 0;
  KvType type_;
  size_t side_bytes_, block_bytes_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> addresses_;  // of blocks_, for views
};

}  // namespace speech
