// Reads the reference tensors of tests/data/quant.
#pragma once

#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "test_data.h"

namespace speech::testing {

class Golden {
 public:
  struct Entry {
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;

    std::vector<float> floats() const {
      std::vector<float> values(bytes.size() / 4);
      std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    }
  };

  explicit Golden(const std::string& name) : file_(MappedFile::open(data_path(name))) {
    uint64_t size;
    std::memcpy(&size, file_->bytes().data(), 8);
    auto text = reinterpret_cast<const char*>(file_->bytes().data()) + 8;
    header_ = nlohmann::json::parse(text, text + size);
    data_ = file_->bytes().subspan(8 + size);
  }

  Entry at(const std::string& name) const {
    const auto& e = header_.at(name);
    size_t begin = e["data_offsets"][0], end = e["data_offsets"][1];
    return {e["shape"].get<std::vector<int64_t>>(), data_.subspan(begin, end - begin)};
  }
  bool has(const std::string& name) const { return header_.contains(name); }

 private:
  std::shared_ptr<const MappedFile> file_;
  nlohmann::json header_;
  std::span<const std::byte> data_;
};

}  // namespace speech::testing
