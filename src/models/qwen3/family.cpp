#include "models/qwen3/family.h"

#include "formats/gguf.h"
#include "models/qwen3/convert.h"
#include "models/qwen3/model.h"

namespace speech::qwen3 {
namespace {

std::unique_ptr<Model> load(std::shared_ptr<const GgufFile> file, const LoadParams& params) {
  return load_gguf_model(std::move(file), params);
}

std::unique_ptr<Model> load_checkpoint(const std::string& path,
                                       std::shared_ptr<const TensorFile> source,
                                       const LoadParams& params) {
  return load_folder_model(path, std::move(source), params);
}

StorageClass storage(std::string_view tensor) {
  return tensor.find("norm") != std::string_view::npos ? StorageClass::full : StorageClass::matrix;
}

}  // namespace

const Family qwen3_family = {
    .architecture = "qwen3",
    .read_info = gguf_info,
    .load = load,
    .storage = storage,
    .recognizes = recognizes,
    .convert = convert,
    .read_checkpoint_info = folder_info,
    .load_checkpoint = load_checkpoint,
};

}  // namespace speech::qwen3
