// Keys and values of the positions a sequence has seen, for every layer of a decoder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/tensor.h"

namespace speech {

// Memory grows with the sequence, in steps, never up front. Rows are positions: key(l) and value(l)
// are [positions, kv_heads, head_dim] f32, keys after norm and rotation. Large, so never copied by
// accident: it moves, and prefix() copies.
class KvCache {
 public:
  KvCache(int layers, int64_t kv_heads, int64_t head_dim);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // A cache of its own with the first `positions` of this one.
  KvCache prefix(int64_t positions) const;

  int64_t positions() const { return positions_; }
  int layers() const { return static_cast<int>(keys_.size()); }
  int64_t row_size() const { return kv_heads_ * head_dim_; }

  // Makes room for `count` more positions; their rows are undefined until written through
  // append_*().
  void reserve(int64_t count);
  // The rows of the `count` positions after positions() in layer `l`, to be written by a backend.
  // reserve() must have been called.
  Tensor key_rows(int l, int64_t count) const;
  Tensor value_rows(int l, int64_t count) const;
  // All rows up to positions() + `extra`.
  Tensor keys(int l, int64_t extra = 0) const;
  Tensor values(int l, int64_t extra = 0) const;
  // Counts the rows written in every layer.
  void advance(int64_t count);
  // Forgets the positions from `positions` on.
  void truncate(int64_t positions);
  size_t bytes() const;

  // For prompt caches on disk: the raw values of the first `positions` rows of one layer.
  std::span<const float> raw_keys(int l) const;
  std::span<const float> raw_values(int l) const;
  // Appends rows read back from such a cache: one span a layer, each a whole number of rows.
  void restore(std::span<const std::vector<float>> keys,
               std::span<const std::vector<float>> values);

 private:
  Tensor view(const std::vector<float>& rows, int64_t begin, int64_t end) const;

  int64_t kv_heads_, head_dim_, positions_ = 0;
  std::vector<std::vector<float>> keys_, values_;  // sized to the capacity
};

}  // namespace speech
