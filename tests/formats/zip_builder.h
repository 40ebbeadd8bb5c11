// Makes zip archives for tests and fuzz targets.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>

#include "formats/format_testing.h"

namespace speech::testing {

// A zip archive of stored or given bytes, so that broken ones can be made.
class ZipBuilder {
 public:
  ZipBuilder& add(const std::string& name, const std::string& contents) {
    auto crc = crc32(0, reinterpret_cast<const Bytef*>(contents.data()), contents.size());
    return add(name, contents, 0, contents.size(), static_cast<uint32_t>(crc));
  }
  ZipBuilder& add(const std::string& name, const std::string& packed, uint16_t method,
                  uint64_t size, uint32_t crc) {
    uint64_t offset = body_.size();
    std::string common = bytes_of<uint16_t>(20) + bytes_of<uint16_t>(0) + bytes_of(method) +
                         bytes_of<uint32_t>(0) + bytes_of(crc) + bytes_of<uint32_t>(packed.size()) +
                         bytes_of<uint32_t>(size) + bytes_of<uint16_t>(name.size()) +
                         bytes_of<uint16_t>(0);
    body_ += "PK\x03\x04" + common + name + packed;
    directory_ += "PK\x01\x02" + bytes_of<uint16_t>(20) + common + bytes_of<uint16_t>(0) +
                  std::string(8, '\0') + bytes_of<uint32_t>(offset) + name;
    ++count_;
    return *this;
  }
  std::string build() const {
    return body_ + directory_ + "PK\x05\x06" + bytes_of<uint32_t>(0) + bytes_of(count_) +
           bytes_of(count_) + bytes_of<uint32_t>(directory_.size()) +
           bytes_of<uint32_t>(body_.size()) + bytes_of<uint16_t>(0);
  }

 private:
  std::string body_, directory_;
  uint16_t count_ = 0;
};

}  // namespace speech::testing
