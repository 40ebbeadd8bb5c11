#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/tensor_file.h"

namespace speech {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// A u64 length followed by a JSON object.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() >= 9 && bytes[8] == std::byte{'{'} && bytes[7] == std::byte{0};
}

}  // namespace

std::shared_ptr<const TensorFile> open_tensor_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return SafetensorsFile::open(path);
  auto file = MappedFile::open(path);
  auto bytes = file->bytes();
  if (begins_with(bytes, "GGUF")) return GgufFile::parse(file);
  if (looks_like_safetensors(bytes)) return SafetensorsFile::parse(file);
  fail(Status::model_file, "{} is none of the files that can be read: GGUF, safetensors", path);
}

}  // namespace speech
