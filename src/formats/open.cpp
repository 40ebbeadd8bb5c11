#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/nemo_file.h"
#include "formats/npy_file.h"
#include "formats/onnx_file.h"
#include "formats/safetensors.h"
#include "formats/tensor_file.h"
#include "formats/torch_file.h"

namespace speech {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// A u64 length followed by a JSON object.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() >= 9 && bytes[8] == std::byte{'{'} && bytes[7] == std::byte{0};
}

// ONNX has no magic: the first field is ir_version, a small number.
bool looks_like_onnx(std::span<const std::byte> bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{8} && bytes[1] < std::byte{64};
}

}  // namespace

std::shared_ptr<const TensorFile> parse_tensor_file(std::shared_ptr<const MappedFile> file) {
  auto bytes = file->bytes();
  const std::string& path = file->path();
  if (begins_with(bytes, "GGUF")) return GgufFile::parse(file);
  if (begins_with(bytes, "PK")) return TorchFile::parse(file);
  if (begins_with(bytes, "\x93NUMPY")) return NpyFile::parse(file);
  if (NemoFile::is_archive(bytes)) return NemoFile::parse(file);
  if (looks_like_safetensors(bytes)) return SafetensorsFile::parse(file);
  if (looks_like_onnx(bytes)) return OnnxFile::parse(file);
  if (begins_with(bytes, "\x80\x02\x8a\x0a")) {
    fail(Status::model_file,
         "{} is in PyTorch's format before 1.6; load it there and save it again", path);
  }
  if (bytes.empty()) fail(Status::model_file, "{} is empty", path);
  if (path.ends_with(".safetensors")) return SafetensorsFile::parse(file);  // says what is wrong
  fail(Status::model_file,
       "{} is none of the files that can be read: GGUF, safetensors, PyTorch archive, .nemo, .npy, "
       "ONNX",
       path);
}

std::shared_ptr<const TensorFile> open_tensor_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return SafetensorsFile::open(path);
  // An index stands for the folder that it is in.
  if (path.ends_with(SafetensorsFile::kIndexName)) {
    const auto folder = std::filesystem::path(path).parent_path();
    return SafetensorsFile::open(folder.empty() ? "." : folder.string());
  }
  return parse_tensor_file(MappedFile::open(path));
}

}  // namespace speech
