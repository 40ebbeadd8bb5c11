#include "compute/kv_cache.h"

#include <algorithm>

#include "base/error.h"

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
    : kv_heads_(kv_heads), head_dim_(head_dim), type_(type), keys_(layers), values_(layers) {}

KvCache KvCache::prefix(int64_t positions) const {
  if (positions < 0 || positions > positions_) {
    fail(Status::internal, "kv cache: cannot copy {} of {} positions", positions, positions_);
  }
  KvCache copy(layers(), kv_heads_, head_dim_, type_);
  copy.reserve(positions);
  size_t bytes = static_cast<size_t>(positions) * row_bytes();
  for (size_t l = 0; l < keys_.size(); ++l) {
    std::copy_n(keys_[l].begin(), bytes, copy.keys_[l].begin());
    std::copy_n(values_[l].begin(), bytes, copy.values_[l].begin());
  }
  copy.positions_ = positions;
  return copy;
}

size_t KvCache::row_bytes() const {
  return static_cast<size_t>(row_size()) *
         (type_ == KvType::f16 ? sizeof(uint16_t) : sizeof(float));
}

void KvCache::reserve(int64_t count) {
  if (keys_.empty()) return;
  if (static_cast<size_t>(positions_ + count) * row_bytes() <= keys_[0].size()) return;
  // A quarter more than needed: copies stay rare and little memory lies idle.
  constexpr int64_t kStep = 64;
  int64_t rows = positions_ + count + std::max<int64_t>(kStep, (positions_ + count) / 4);
  rows = (rows + kStep - 1) / kStep * kStep;
  size_t used = static_cast<size_t>(positions_) * row_bytes();
  size_t size = static_cast<size_t>(rows) * row_bytes();
  for (auto* side : {&keys_, &values_}) {
    for (Rows& layer : *side) {
      Rows grown;
      grown.reserve(size);
      grown.assign(layer.begin(), layer.begin() + static_cast<std::ptrdiff_t>(used));
      grown.resize(size);
      layer = std::move(grown);  // one layer at a time: the peak is one layer, not a second cache
    }
  }
}

KvRows KvCache::view(const Rows& rows, int64_t begin, int64_t end) const {
  if (static_cast<size_t>(end) * row_bytes() > rows.size()) {
    fail(Status::internal, "kv cache: {} positions asked, room for {}", end,
         rows.size() / std::max<size_t>(1, row_bytes()));
  }
  std::byte* data = const_cast<std::byte*>(rows.data()) + static_cast<size_t>(begin) * row_bytes();
  return {type_, data, end - begin, kv_heads_, head_dim_};
}

KvRows KvCache::key_rows(int l, int64_t count) const {
  return view(keys_[l], positions_, positions_ + count);
}
KvRows KvCache::value_rows(int l, int64_t count) const {
  return view(values_[l], positions_, positions_ + count);
}
KvRows KvCache::keys(int l, int64_t extra) const {
  return view(keys_[l], 0, positions_ + extra);
}
KvRows KvCache::values(int l, int64_t extra) const {
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
  for (auto& layer : keys_) total += layer.capacity();
  for (auto& layer : values_) total += layer.capacity();
  return total;
}

std::span<const std::byte> KvCache::raw_keys(int l) const {
  return std::span(keys_[l]).first(static_cast<size_t>(positions_) * row_bytes());
}
std::span<const std::byte> KvCache::raw_values(int l) const {
  return std::span(values_[l]).first(static_cast<size_t>(positions_) * row_bytes());
}

void KvCache::restore(int64_t count, std::span<const std::span<const std::byte>> keys,
                      std::span<const std::span<const std::byte>> values) {
  if (keys.size() != keys_.size() || values.size() != keys_.size()) {
    fail(Status::internal, "kv cache: {} layers restored into {}", keys.size(), keys_.size());
  }
  size_t size = static_cast<size_t>(count) * row_bytes();
  for (size_t l = 0; l < keys.size(); ++l) {
    if (keys[l].size() != size || values[l].size() != size) {
      fail(Status::internal, "kv cache: {} rows restored from {} bytes", count, keys[l].size());
    }
  }
  reserve(count);
  auto at = static_cast<std::ptrdiff_t>(static_cast<size_t>(positions_) * row_bytes());
  for (size_t l = 0; l < keys.size(); ++l) {
    std::copy(keys[l].begin(), keys[l].end(), keys_[l].begin() + at);
    std::copy(values[l].begin(), values[l].end(), values_[l].begin() + at);
  }
  positions_ += count;
}

}  // namespace speech
