#include "models/general_info.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"

namespace speech {
namespace {

// The weight type that general.file_type stands for.
std::optional<WeightType> weight_type_from_file_type(uint32_t number) {
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16, WeightType::q8_0,
                          WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    if (facts(type).gguf_file_type == static_cast<int>(number)) return type;
  }
  return std::nullopt;
}

}  // namespace

uint32_t check_layout(const GgufFile& file, uint32_t newest) {
  if (!file.has("speech.layout")) {
    fail(Status::model_file,
         "{}: speech.layout is missing: the file was written before layouts had numbers; convert "
         "the checkpoint again",
         file.path());
  }
  const uint32_t layout = file.get_u32("speech.layout");
  if (layout < 1 || layout > newest) {
    fail(Status::model_file, "{}: speech.layout is {}, this program reads {}; it requires {}",
         file.path(), layout, newest == 1 ? "1" : fmt::format("1 to {}", newest),
         file.has("speech.requires") ? file.get_string("speech.requires") : "a later release");
  }
  return layout;
}

ModelInfo read_general_info(const GgufFile& file, Task task) {
  ModelInfo info;
  const auto optional = [&](const char* key) {
    return file.has(key) ? file.get_string(key) : std::string();
  };
  // A detector has no languages, and is written without an origin where its weights are unknown.
  const bool detector = task == Task::detection;
  const auto origin = [&](const char* key) {
    return detector ? optional(key) : file.get_string(key);
  };
  info.architecture = file.get_string("general.architecture");
  info.name = file.get_string("general.name");
  info.organization = origin("general.organization");
  info.basename = file.get_string("general.basename");
  info.size_label = file.get_string("general.size_label");
  info.finetune = optional("general.finetune");
  info.version = optional("general.version");
  info.license = origin("general.license");
  info.source_repository = origin("general.source.repo_url");
  info.source_url = origin("general.source.url");
  const std::string tree = info.source_repository + "/tree/";
  if (info.source_url.starts_with(tree)) info.source_revision = info.source_url.substr(tree.size());
  if (!detector) info.languages = file.get_strings("general.languages");
  info.layout = static_cast<int>(check_layout(file, UINT32_MAX));  // a family knows its newest
  file.get_string("speech.requires");
  info.task = task;
  if (const std::string found = file.get_string("speech.task"); found != task_name(task)) {
    fail(Status::model_file, "{}: speech.task is \"{}\", expected \"{}\"", file.path(), found,
         task_name(task));
  }
  info.sample_rate = static_cast<int>(file.get_u32("speech.sample_rate"));

  std::map<DType, uint64_t> bytes;
  for (const TensorEntry& t : file.tensors()) {
    bytes[t.type] += t.bytes.size();
    info.weight_bytes += t.bytes.size();
  }
  const uint32_t file_type = file.get_u32("general.file_type");
  const auto type = weight_type_from_file_type(file_type);
  if (!type) {
    fail(Status::model_file, "{}: general.file_type is {}, which this program does not know",
         file.path(), file_type);
  }
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != bytes.end() && dtype_name(most->first) != facts(*type).label) {
    fail(Status::model_file, "{}: general.file_type is {} ({}), but {} holds most bytes",
         file.path(), file_type, facts(*type).label, dtype_name(most->first));
  }
  info.weight_type = facts(*type).label;

  std::error_code ignored;
  const auto size = std::filesystem::file_size(file.path(), ignored);
  info.file_bytes = ignored ? 0 : size;
  return info;
}

}  // namespace speech
