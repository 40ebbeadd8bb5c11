#include "compute/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace speech {

KvCache::KvCache(int layers, int64_t kv_heads, int64_t head_dim)
    : kv_heads_(kv_heads), head_dim_(head_dim), keys_(layers), values_(layers) {}

KvCache KvCache::prefix(int64_t positions) const {
  if (positions < 0 || positions > positions_) {
    fail(Status::internal, "kv cache: cannot copy {} of {} positions", positions, positions_);
  }
  KvCache copy(layers(), kv_heads_, head_dim_);
  copy.reserve(positions);
  for (size_t l = 0; l < keys_.size(); ++l) {
    std::copy_n(keys_[l].begin(), positions * row_size(), copy.keys_[l].begin());
    std::copy_n(values_[l].begin(), positions * row_size(), copy.values_[l].begin());
  }
  copy.positions_ = positions;
  return copy;
}

void KvCache::reserve(int64_t count) {
  if (keys_.empty()) return;
  auto needed = static_cast<size_t>((positions_ + count) * row_size());
  if (needed <= keys_[0].size()) return;
  // A quarter more than needed: copies stay rare and little memory lies idle.
  constexpr int64_t kStep = 64;
  int64_t rows = positions_ + count + std::max<int64_t>(kStep, (positions_ + count) / 4);
  rows = (rows + kStep - 1) / kStep * kStep;
  for (auto* side : {&keys_, &values_}) {
    for (auto& layer : *side) {
      std::vector<float> grown;
      grown.reserve(static_cast<size_t>(rows * row_size()));
      grown.assign(layer.begin(), layer.begin() + positions_ * row_size());
      grown.resize(static_cast<size_t>(rows * row_size()));
      layer = std::move(grown);  // one layer at a time: the peak is one layer, not a second cache
    }
  }
}

Tensor KvCache::view(const std::vector<float>& rows, int64_t begin, int64_t end) const {
  if (end * row_size() > static_cast<int64_t>(rows.size())) {
    fail(Status::internal, "kv cache: {} positions asked, room for {}", end,
         rows.size() / std::max<size_t>(1, row_size()));
  }
  return TensorAccess::make(const_cast<float*>(rows.data()) + begin * row_size(),
                            {end - begin, kv_heads_, head_dim_});
}

Tensor KvCache::key_rows(int l, int64_t count) const {
  return view(keys_[l], positions_, positions_ + count);
}
Tensor KvCache::value_rows(int l, int64_t count) const {
  return view(values_[l], positions_, positions_ + count);
}
Tensor KvCache::keys(int l, int64_t extra) const {
  return view(keys_[l], 0, positions_ + extra);
}
Tensor KvCache::values(int l, int64_t extra) const {
  return view(values_[l], 0, positions_ + extra);
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
  size_t total = 0;
  for (auto& layer : keys_) total += layer.capacity() * sizeof(float);
  for (auto& layer : values_) total += layer.capacity() * sizeof(float);
  return total;
}

std::span<const float> KvCache::raw_keys(int l) const {
  return {keys_[l].data(), static_cast<size_t>(positions_ * row_size())};
}
std::span<const float> KvCache::raw_values(int l) const {
  return {values_[l].data(), static_cast<size_t>(positions_ * row_size())};
}

void KvCache::restore(std::span<const std::vector<float>> keys,
                      std::span<const std::vector<float>> values) {
  if (keys.size() != keys_.size() || values.size() != keys_.size()) {
    fail(Status::internal, "kv cache: {} layers restored into {}", keys.size(), keys_.size());
  }
  size_t size = keys.empty() ? 0 : keys[0].size();
  for (size_t l = 0; l < keys.size(); ++l) {
    if (keys[l].size() != size || values[l].size() != size || size % row_size() != 0) {
      fail(Status::internal, "kv cache: layers of unequal size restored");
    }
  }
  auto count = static_cast<int64_t>(size) / row_size();
  reserve(count);
  for (size_t l = 0; l < keys.size(); ++l) {
    std::copy(keys[l].begin(), keys[l].end(), keys_[l].begin() + positions_ * row_size());
    std::copy(values[l].begin(), values[l].end(), values_[l].begin() + positions_ * row_size());
  }
  positions_ += count;
}

}  // namespace speech
