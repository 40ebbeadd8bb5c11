// Model information.
#include <algorithm>
#include <cmath>
#include <limits>

#include "api/handles.h"
#include "models/registry.h"

using namespace speech;
using namespace speech::api;

speech_model_info::speech_model_info(ModelInfo model_info, std::string device_name,
                                     int thread_count)
    : info(std::move(model_info)),
      device(std::move(device_name)),
      threads(thread_count),
      json(model_info_json(info, device, threads)) {}

namespace {

const OptionSpec* spec_of(const speech_model_info* info, speech_option option) {
  return info ? info->info.find_option(option) : nullptr;
}

template <typename T>
const T* default_of(const speech_model_info* info, speech_option option) {
  const OptionSpec* spec = spec_of(info, option);
  return spec && spec->default_value ? std::get_if<T>(&*spec->default_value) : nullptr;
}

}  // namespace

speech_status speech_model_info_open(const char* path, speech_model_info** info) {
  return guarded([&] {
    std::string name = required_text(path, "model_path");
    required(info, "info") = new speech_model_info(read_model_info(name));
  });
}

void speech_model_info_free(speech_model_info* info) {
  delete info;
}

#define SPEECH_TEXT_GETTER(field)                                        \
  const char* speech_model_info_##field(const speech_model_info* info) { \
    return info ? info->info.field.c_str() : nullptr;                    \
  }
SPEECH_TEXT_GETTER(name)
SPEECH_TEXT_GETTER(organization)
SPEECH_TEXT_GETTER(basename)
SPEECH_TEXT_GETTER(size_label)
SPEECH_TEXT_GETTER(finetune)
SPEECH_TEXT_GETTER(version)
SPEECH_TEXT_GETTER(license)
SPEECH_TEXT_GETTER(weight_type)
SPEECH_TEXT_GETTER(architecture)
#undef SPEECH_TEXT_GETTER

void speech_model_info_source(const speech_model_info* info, const char** repository,
                              const char** revision) {
  if (repository) *repository = info ? info->info.source_repository.c_str() : nullptr;
  if (revision) *revision = info ? info->info.source_revision.c_str() : nullptr;
}

int speech_model_info_layout(const speech_model_info* info) {
  return info ? info->info.layout : 0;
}

speech_task speech_model_info_task(const speech_model_info* info) {
  return info ? static_cast<speech_task>(info->info.task) : SPEECH_TASK_SYNTHESIS;
}

int speech_model_info_sample_rate(const speech_model_info* info) {
  return info ? info->info.sample_rate : 0;
}

size_t speech_model_info_language_count(const speech_model_info* info) {
  return info ? info->info.languages.size() : 0;
}

const char* speech_model_info_language(const speech_model_info* info, size_t index) {
  return index < speech_model_info_language_count(info) ? info->info.languages[index].c_str()
                                                        : nullptr;
}

size_t speech_model_info_option_count(const speech_model_info* info) {
  return info ? info->info.options.size() : 0;
}

speech_option speech_model_info_option(const speech_model_info* info, size_t index) {
  return index < speech_model_info_option_count(info) ? info->info.options[index].id : -1;
}

int speech_model_info_takes(const speech_model_info* info, speech_option option) {
  return spec_of(info, option) != nullptr;
}

int speech_model_info_option_required(const speech_model_info* info, speech_option option) {
  const OptionSpec* spec = spec_of(info, option);
  return spec && spec->required;
}

int speech_model_info_option_steers(const speech_model_info* info, speech_option option) {
  const OptionSpec* spec = spec_of(info, option);
  return spec && spec->steers;
}

int speech_model_info_option_has_default(const speech_model_info* info, speech_option option) {
  const OptionSpec* spec = spec_of(info, option);
  return spec && spec->default_value.has_value();
}

const char* speech_model_info_option_default_string(const speech_model_info* info,
                                                    speech_option option) {
  const auto* value = default_of<std::string>(info, option);
  return value ? value->c_str() : nullptr;
}

int64_t speech_model_info_option_default_int(const speech_model_info* info, speech_option option) {
  const auto* value = default_of<int64_t>(info, option);
  return value ? *value : 0;
}

double speech_model_info_option_default_float(const speech_model_info* info, speech_option option) {
  const auto* value = default_of<double>(info, option);
  return value ? *value : 0;
}

int speech_model_info_option_default_bool(const speech_model_info* info, speech_option option) {
  const auto* value = default_of<bool>(info, option);
  return value && *value;
}

int speech_model_info_option_range(const speech_model_info* info, speech_option option,
                                   double* minimum, double* maximum, int* minimum_exclusive) {
  const OptionSpec* spec = spec_of(info, option);
  if (!spec || (!spec->minimum && !spec->maximum)) return 0;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (minimum) *minimum = spec->minimum.value_or(-infinity);
  if (maximum) *maximum = spec->maximum.value_or(infinity);
  if (minimum_exclusive) *minimum_exclusive = spec->minimum_exclusive;
  return 1;
}

size_t speech_model_info_option_choice_count(const speech_model_info* info, speech_option option) {
  const OptionSpec* spec = spec_of(info, option);
  return spec ? spec->choices.size() : 0;
}

const char* speech_model_info_option_choice(const speech_model_info* info, speech_option option,
                                            size_t index) {
  const OptionSpec* spec = spec_of(info, option);
  return spec && index < spec->choices.size() ? spec->choices[index].c_str() : nullptr;
}

uint64_t speech_model_info_file_bytes(const speech_model_info* info) {
  return info ? info->info.file_bytes : 0;
}

uint64_t speech_model_info_weight_bytes(const speech_model_info* info) {
  return info ? info->info.weight_bytes : 0;
}

const char* speech_model_info_device(const speech_model_info* info) {
  return info && !info->device.empty() ? info->device.c_str() : nullptr;
}

int speech_model_info_threads(const speech_model_info* info) {
  return info ? info->threads : 0;
}

const char* speech_model_info_json(const speech_model_info* info) {
  return info ? info->json.c_str() : nullptr;
}
