// The configuration of an adapter and its safetensors file, separated by a NUL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "formats/safetensors.h"
#include "models/qwen3/adapter.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t cut = std::min(text.find('\0'), size);
  auto bytes = std::as_bytes(std::span(data, size)).subspan(std::min(cut + 1, size));
  try {
    auto file = speech::SafetensorsFile::parse(speech::MappedFile::from_memory(bytes, "input"));
    speech::qwen3::Adapter adapter(text.substr(0, cut), *file);
  } catch (const speech::Error& error) {
    if (error.status() != speech::Status::model_file &&
        error.status() != speech::Status::unsupported) {
      throw;
    }
  }
  return 0;
}
