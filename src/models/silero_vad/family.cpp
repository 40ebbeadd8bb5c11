#include "models/silero_vad/family.h"

#include <filesystem>

#include "formats/gguf.h"
#include "models/general_info.h"
#include "models/silero_vad/checkpoint.h"
#include "models/silero_vad/detector.h"

namespace speech {
namespace {

using namespace silero_vad;

ModelInfo read_info(const GgufFile& file) {
  ModelInfo info = read_general_info(file, Task::detection);
  info.options = option_specs(read_config(file));
  return info;
}

std::unique_ptr<Model> load(std::shared_ptr<const GgufFile> file, const LoadParams& params) {
  ModelInfo info = read_info(*file);
  return make_detector(read_weights(*file), std::move(info), params);
}

bool recognizes(const std::string&, const TensorFile& source) {
  return !checkpoint_rates(source).empty();
}

void convert(const std::string&, const TensorFile& source, const ConvertOptions& options,
             GgufWriter& writer, OutputFile& out) {
  write_gguf(read_checkpoint(source, options.rate), options.name, writer, out);
}

ModelInfo checkpoint_info(const Checkpoint& checkpoint, const TensorFile& source) {
  const Weights& weights = checkpoint.weights;
  ModelInfo info;
  info.architecture = info.name = info.basename = kName;
  info.size_label = size_label(weights);
  info.version = checkpoint.version;
  if (checkpoint.published) {
    info.organization = kOrganization;
    info.license = kLicense;
    info.source_repository = kRepository;
    info.source_url = checkpoint.source_url;
  }
  info.weight_type = "F32";
  info.layout = 1;
  info.task = Task::detection;
  info.sample_rate = static_cast<int>(weights.config.rate);
  info.options = option_specs(weights.config);
  info.weight_bytes = Network(weights).weight_bytes();
  std::error_code none;
  auto bytes = std::filesystem::file_size(source.path(), none);
  info.file_bytes = none ? 0 : bytes;
  return info;
}

ModelInfo read_checkpoint_info(const std::string&, const TensorFile& source) {
  return checkpoint_info(read_checkpoint(source), source);
}

std::unique_ptr<Model> load_checkpoint(const std::string&, std::shared_ptr<const TensorFile> source,
                                       const LoadParams& params) {
  source->check_contents();
  Checkpoint checkpoint = read_checkpoint(*source);
  ModelInfo info = checkpoint_info(checkpoint, *source);
  return make_detector(std::move(checkpoint.weights), std::move(info), params);
}

}  // namespace

const Family silero_vad_family = {
    .architecture = kName,
    .read_info = read_info,
    .load = load,
    .recognizes = recognizes,
    .convert = convert,
    .takes_rate = true,
    .read_checkpoint_info = read_checkpoint_info,
    .load_checkpoint = load_checkpoint,
};

}  // namespace speech
