// Keys and values of the positions a sequence has seen, for every layer of a decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace speech {

enum class KvType { f32, f16 };
const char* kv_type_name(KvType type);  // "f32", "f16"
// Error(invalid_argument) for any other name.
KvType kv_type(std::string_view name);

// Rows of keys or values, [rows, heads, d] side by side: floats, or f16 as bits. Only a Backend
// reads or writes them.
struct KvRows {
  KvType type = KvType::f32;
  std::byte* data = nullptr;
  int64_t rows = 0, heads = 0, d = 0;
};

// Memory grows with the sequence, in steps, never up front. Rows are positions: key(l) and value(l)
// are [positions, kv_heads, head_dim], keys after norm and rotation. Large, so never copied by
// accident: it moves, and prefix() copies.
class KvCache {
 public:
  KvCache(int layers, int64_t kv_heads, int64_t head_dim, KvType type = KvType::f32);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // A cache of its own with the first `positions` of this one.
  KvCache prefix(int64_t positions) const;

  KvType type() const { return type_; }
  int64_t positions() const { return positions_; }
  int layers() const { return static_cast<int>(keys_.size()); }
  int64_t row_size() const { return kv_heads_ * head_dim_; }  // values
  size_t row_bytes() const;

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
  size_t bytes() const;

  // For prompt caches on disk: the rows of one layer as they lie in memory.
  std::span<const std::byte> raw_keys(int l) const;
  std::span<const std::byte> raw_values(int l) const;
  // Appends `count` rows read back from such a cache, a span a layer.
  void restore(int64_t count, std::span<const std::span<const std::byte>> keys,
               std::span<const std::span<const std::byte>> values);

 private:
  using Rows = std::vector<std::byte>;  // sized to the capacity

  KvRows view(const Rows& rows, int64_t begin, int64_t end) const;

  int64_t kv_heads_, head_dim_, positions_ = 0;
  KvType type_;
  std::vector<Rows> keys_, values_;
};

}  // namespace speech
