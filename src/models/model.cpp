#include "models/model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const OptionValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

// Bounds of an integer option are printed as integers.
Json bound(double value, OptionType type) {
  return type == OptionType::integer ? Json(static_cast<int64_t>(value)) : Json(value);
}

const char* type_name(OptionType type) {
  constexpr const char* names[] = {"string", "integer", "number", "boolean"};
  return names[static_cast<int>(type)];
}

Json option_json(const OptionSpec& spec) {
  const OptionWord* word = find_option(spec.id);
  Json out;
  out["name"] = word->name;
  out["type"] = type_name(word->type);
  out["required"] = spec.required;
  out["steers"] = spec.steers;
  if (spec.default_value) out["default"] = to_json(*spec.default_value);
  if (spec.minimum) {
    out[spec.minimum_exclusive ? "exclusive_minimum" : "minimum"] =
        bound(*spec.minimum, word->type);
  }
  if (spec.maximum) out["maximum"] = bound(*spec.maximum, word->type);
  if (!spec.choices.empty()) out["choices"] = spec.choices;
  return out;
}

}  // namespace

const char* task_name(Task task) {
  switch (task) {
    case Task::synthesis:
      return "synthesis";
    case Task::recognition:
      return "recognition";
    case Task::detection:
      return "detection";
    case Task::language:
      return "language";
  }
  return "unknown";
}

const OptionSpec* ModelInfo::find_option(int id) const {
  for (const auto& spec : options) {
    if (spec.id == id) return &spec;
  }
  return nullptr;
}

std::string model_info_json(const ModelInfo& info, const std::string& device, int threads) {
  Json out;
  auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) out[key] = value;
  };
  out["name"] = info.name;
  text("organization", info.organization);
  text("basename", info.basename);
  text("size_label", info.size_label);
  text("finetune", info.finetune);
  text("version", info.version);
  text("license", info.license);
  if (!info.source_repository.empty()) {
    out["source"]["repository"] = info.source_repository;
    if (!info.source_revision.empty()) out["source"]["revision"] = info.source_revision;
  }
  out["weight_type"] = info.weight_type;
  out["architecture"] = info.architecture;
  if (info.layout > 0) out["layout"] = info.layout;
  out["task"] = task_name(info.task);
  if (info.sample_rate > 0) out["sample_rate"] = info.sample_rate;
  out["languages"] = info.languages;
  out["options"] = Json::array();
  for (const auto& spec : info.options) out["options"].push_back(option_json(spec));
  out["file_bytes"] = info.file_bytes;
  out["weight_bytes"] = info.weight_bytes;
  if (!device.empty()) {
    out["device"] = device;
    out["threads"] = threads;
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Control::check() const {
  if (cancel && cancel->load(std::memory_order_relaxed)) {
    fail(Status::cancelled, "the request was cancelled");
  }
}

void Control::report(double done) const {
  check();
  if (progress && progress(done)) {
    fail(Status::cancelled, "the request was stopped by its progress callback");
  }
}

}  // namespace speech
