// safetensors: reader (a file, or a folder of one or more of them) and writer.
// Format: huggingface/safetensors, README. A file is a u64 length, that many bytes of JSON, data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"

namespace speech {

class SafetensorsFile : public TensorFile {
 public:
  static constexpr std::string_view kIndexName = "model.safetensors.index.json";

  // A file; or a folder: the shards that its model.safetensors.index.json names, all of which must
  // be there, else its model*.safetensors files. Adapters (adapter*.safetensors) are not weights.
  // Errors: io, model_file. Data must fill the file without overlaps or gaps, at any alignment.
  static std::shared_ptr<const SafetensorsFile> open(const std::string& path);
  static std::shared_ptr<const SafetensorsFile> parse(std::shared_ptr<const MappedFile> file);

  // True for a folder that open() would find weights in.
  static bool is_model_folder(const std::string& path);

  std::string_view format() const override { return "safetensors"; }

  // __metadata__ in file order; of a folder, that of its first file.
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  void read(std::shared_ptr<const MappedFile> file);
  void read_folder(const std::string& folder);

  std::vector<std::pair<std::string, std::string>> metadata_;
};

// Writes a safetensors file as a stream: declare everything, begin(), the tensors' bytes in the
// order they were declared, finish(). Data begins at a multiple of 8; tensors follow one another
// without gaps, as the format asks. Misuse is Error(internal).
class SafetensorsWriter {
 public:
  void add_metadata(std::string_view key, std::string_view value);
  // Every type of DType but ggml's blocks.
  void add_tensor(std::string_view name, DType type, std::span<const int64_t> shape);

  // Writes the header.
  void begin(OutputFile& out);
  // The next bytes, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  // Error(internal) unless exactly the declared bytes were written. The file is not committed.
  void finish();

 private:
  struct Tensor {
    std::string name;
    DType type;
    std::vector<int64_t> shape;
    uint64_t begin, end;
  };

  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<Tensor> tensors_;
  OutputFile* out_ = nullptr;
  uint64_t header_size_ = 0;
};

}  // namespace speech
