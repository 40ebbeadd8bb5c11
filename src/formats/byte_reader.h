// A bounds-checked cursor over the bytes of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace speech {

// Reads little-endian numbers and runs of bytes in order. Reading past the end is an
// Error(model_file) that names the file, what was read and where.
class ByteReader {
 public:
  // `file` names the file in messages and must outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view file)
      : bytes_(bytes), file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }
  std::string_view file() const { return file_; }
  // The bytes from `begin` (a former position) up to here.
  std::span<const std::byte> since(uint64_t begin) const {
    return bytes_.subspan(begin, position_ - begin);
  }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      fail(Status::model_file, "{}: {} at byte {} takes {} bytes, but {} are left", file_, what,
           position_, count, remaining());
    }
    auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <typename T>
  T read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view text(uint64_t count, std::string_view what) {
    auto taken = take(count, what);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  uint64_t position_ = 0;
};

// A little-endian number at any alignment; the caller has checked that it is there.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace speech
