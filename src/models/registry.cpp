#include "models/registry.h"

#include <vector>

#include "base/blaming.h"
#include "base/error.h"
#include "formats/gguf.h"
#include "models/fastconformer/family.h"
#include "models/qwen3/family.h"
#include "models/silero_vad/family.h"

namespace speech {
namespace {

std::string known_architectures() {
  std::string out;
  for (const Family& family : families()) {
    out += (out.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return out;
}

const Family& family_of(const GgufFile& file) {
  std::string architecture = file.get_string("general.architecture");
  if (const Family* family = find_family(architecture)) return *family;
  fail(Status::model_file, "{}: general.architecture is \"{}\", which is none of {}", file.path(),
       architecture, known_architectures());
}

// The family that runs a source that is no GGUF file.
const Family& family_of(const std::string& path, const TensorFile& source) {
  const Family* converter = nullptr;
  for (const Family& family : families()) {
    if (!family.recognizes || !family.recognizes(path, source)) continue;
    if (family.load_checkpoint && family.read_checkpoint_info) return family;
    converter = &family;
  }
  if (converter) {
    fail(Status::model_file,
         "{} is a {} checkpoint; make a model file of it first: speech convert {} OUT.gguf", path,
         converter->architecture, path);
  }
  fail(Status::model_file, "{} is a {} file, but no model of {}", path, source.format(),
       known_architectures());
}

}  // namespace

std::span<const Family> families() {
  // One line per family; alphabetical.
  static const std::vector<Family> list = {
      fastconformer_family,
      qwen3::qwen3_family,
      silero_vad_family,
  };
  return list;
}

const Family* find_family(std::string_view architecture) {
  for (const Family& family : families()) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

namespace {

ModelInfo read_info_of(const std::string& path) {
  auto source = open_tensor_file(path);
  if (const auto* gguf = dynamic_cast<const GgufFile*>(source.get())) {
    return family_of(*gguf).read_info(*gguf);
  }
  return family_of(path, *source).read_checkpoint_info(path, *source);
}

std::unique_ptr<Model> load(const std::string& path, const LoadParams& params) {
  auto source = open_tensor_file(path);
  std::unique_ptr<Model> model;
  if (auto gguf = std::dynamic_pointer_cast<const GgufFile>(source)) {
    const Family& family = family_of(*gguf);
    model = family.load(std::move(gguf), params);
  } else {
    const Family& family = family_of(path, *source);
    model = family.load_checkpoint(path, std::move(source), params);
  }
  bool changed = params.quantize_bits != 0 || !params.adapter.empty();
  if (changed && model->info().task != Task::language) {
    fail_option(Status::unsupported, params.adapter.empty() ? "quantize" : "lora",
                "{} is no language model: its weights are used as they are stored", path);
  }
  return model;
}

}  // namespace

ModelInfo read_model_info(const std::string& path) {
  return blaming("model_path", [&] { return read_info_of(path); });
}

std::unique_ptr<Model> load_model(const std::string& path, const LoadParams& params) {
  if (!params.adapter.empty()) return load(path, params);  // either may be at fault
  return blaming("model_path", [&] { return load(path, params); });
}

}  // namespace speech
