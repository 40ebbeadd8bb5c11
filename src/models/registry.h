// The families this library knows. A family is added by a folder under src/models, whose family.h
// declares `extern const Family NAME_family;`, and one line in registry.cpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/tensor_file.h"
#include "models/model.h"
#include "quant/weight_type.h"

namespace speech {

class GgufFile;
class GgufWriter;
class OutputFile;

// How a family's layout stores one tensor in the quantized files.
enum class StorageClass {
  matrix,  // the file's type; Q8_0 where rows do not fill K blocks, F16 where not even 32
           // (product 6.5)
  half,    // F16 in every quantized file
  full,    // F32 in every file
};

// What a person may say about a conversion; a family says which of it concerns its checkpoints.
struct ConvertOptions {
  std::string name;          // general.name; empty: from the source's metadata or its file name
  bool extra_heads = false;  // keep heads that the published layout leaves out (docs/decisions)
  int rate = 0;              // Hz: which model of a source that holds several; 0: the first
};

struct Family {
  std::string_view architecture;  // general.architecture
  // Reads and checks all metadata and tensor shapes; no weights. Error(model_file).
  ModelInfo (*read_info)(const GgufFile& file);
  std::unique_ptr<Model> (*load)(std::shared_ptr<const GgufFile> file, const LoadParams& params);
  // Storage class of a tensor of this layout. A family that exists in F32 only has none.
  StorageClass (*storage)(std::string_view tensor_name) = nullptr;
  // Converters: whether an official checkpoint is of this family, and writing it as F32 GGUF: all
  // keys and tensors are declared, then writer.begin(out), then the data. The caller calls
  // writer.finish() and commits.
  bool (*recognizes)(const std::string& source_path, const TensorFile& source) = nullptr;
  void (*convert)(const std::string& source_path, const TensorFile& source,
                  const ConvertOptions& options, GgufWriter& writer, OutputFile& out) = nullptr;
  bool takes_extra_heads = false, takes_rate = false;  // of ConvertOptions
  // A family that also runs an official checkpoint as it is (a Hugging Face folder): the same two
  // for a source that recognizes() says yes to.
  ModelInfo (*read_checkpoint_info)(const std::string& path, const TensorFile& source) = nullptr;
  std::unique_ptr<Model> (*load_checkpoint)(const std::string& path,
                                            std::shared_ptr<const TensorFile> source,
                                            const LoadParams& params) = nullptr;
  // The first release of the published program that reads Q8_0 in this layout (product 6.3).
  std::string_view requires_for_q8_0 = "0.7.0";
};

std::span<const Family> families();
const Family* find_family(std::string_view architecture);

// Opens a model of any family: a GGUF file, or a checkpoint that a family runs as it is.
// Error(model_file), Error(io), of "model_path" unless an adapter may be at fault.
ModelInfo read_model_info(const std::string& path);
std::unique_ptr<Model> load_model(const std::string& path, const LoadParams& params);

}  // namespace speech
