// What the fuzz targets of model files share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "formats/describe.h"
#include "formats/tensor_file.h"

namespace speech::fuzz {

// Reads the small tensors of a file and describes it, as every command may.
inline void use(const TensorFile& file) {
  int64_t budget = 1 << 16;
  for (const TensorEntry& tensor : file.tensors()) {
    int64_t count = tensor.elements();
    if (count > budget) continue;
    budget -= count;
    try {
      to_f32(tensor);
      to_i64(tensor);
    } catch (const Error& error) {
      if (error.status() == Status::internal) throw;
    }
  }
  describe_json(file, true).dump();
  describe_text(file, true);
}

// Parses the input; an Error that blames the file is what broken ones should give.
template <typename File>
int parse(const uint8_t* data, size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  try {
    use(*File::parse(MappedFile::from_memory(bytes, "input")));
  } catch (const Error& error) {
    if (error.status() != Status::model_file) throw;
  }
  return 0;
}

}  // namespace speech::fuzz
