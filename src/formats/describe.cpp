#include "formats/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/nemo_file.h"
#include "formats/onnx_file.h"
#include "formats/safetensors.h"
#include "formats/torch_file.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownItems = 8;
constexpr size_t kShownText = 200;

// Quoted and escaped; invalid UTF-8 replaced.
std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json clean(std::string_view text) {
  return Json::parse(json_text(text));
}

// Without a look at the other keys, which ordered_json would take one by one.
void append(Json& object, std::string_view key, Json value) {
  object.get_ref<Json::object_t&>().emplace_back(clean(key).get<std::string>(), std::move(value));
}

Json to_json(const GgufValue& value) {
  switch (value.type) {
    case GgufType::string:
      return clean(value.as_string());
    case GgufType::boolean:
      return value.as_bool();
    case GgufType::u64:
      return value.as_u64();
    case GgufType::f32:
    case GgufType::f64:
      return value.as_float();
    case GgufType::array: {
      Json list = Json::array();
      for (const GgufValue& element : value.elements()) list.push_back(to_json(element));
      return list;
    }
    default:
      return value.as_integer();
  }
}

// A list of pairs of texts.
template <typename Pairs>
Json texts(const Pairs& pairs) {
  Json object = Json::object();
  for (const auto& [key, value] : pairs) append(object, key, clean(value));
  return object;
}

Json identity(const TensorFile& file) {
  Json object = Json::object();
  if (auto gguf = dynamic_cast<const GgufFile*>(&file)) {
    for (const auto& pair : gguf->metadata()) {
      if (pair.key.starts_with("general.")) append(object, pair.key, to_json(pair.value));
    }
  } else if (auto nemo = dynamic_cast<const NemoFile*>(&file)) {
    for (const auto& member : nemo->members()) append(object, member.name, member.bytes.size());
  } else if (auto safetensors = dynamic_cast<const SafetensorsFile*>(&file)) {
    return texts(safetensors->metadata());
  } else if (auto onnx = dynamic_cast<const OnnxFile*>(&file)) {
    return texts(onnx->metadata());
  }
  return object;
}

Json all_metadata(const TensorFile& file) {
  Json object = Json::object();
  if (auto gguf = dynamic_cast<const GgufFile*>(&file)) {
    for (const auto& pair : gguf->metadata()) append(object, pair.key, to_json(pair.value));
  } else if (auto nemo = dynamic_cast<const NemoFile*>(&file)) {
    append(object, "model_config.yaml", clean(nemo->config()));
  } else if (auto torch = dynamic_cast<const TorchFile*>(&file)) {
    Json values = torch->metadata();
    if (!values.is_null())
      return Json::parse(values.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    return identity(file);
  }
  return object;
}

uint64_t parameters(const TensorFile& file) {
  uint64_t sum = 0;
  for (const TensorEntry& tensor : file.tensors()) sum += static_cast<uint64_t>(tensor.elements());
  return sum;
}

uint64_t tensor_bytes(const TensorFile& file) {
  uint64_t sum = 0;
  for (const TensorEntry& tensor : file.tensors()) sum += tensor.bytes.size();
  return sum;
}

// For a line of text: JSON, shortened.
std::string shorten(const Json& value) {
  if (value.is_array() && value.size() > kShownItems) {
    Json first(value.begin(), value.begin() + kShownItems);
    std::string text = shorten(first);
    text.pop_back();
    return fmt::format("{}, ... {} in all]", text, value.size());
  }
  std::string text = value.dump();
  if (text.size() <= kShownText) return text;
  size_t end = kShownText;
  while ((text[end] & 0xc0) == 0x80) --end;  // not inside a character
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

void print_pairs(std::string& out, std::string_view title, const Json& pairs) {
  if (pairs.empty()) return;
  fmt::format_to(std::back_inserter(out), "\n{}\n", title);
  if (!pairs.is_object()) {
    fmt::format_to(std::back_inserter(out), "  {}\n", shorten(pairs));
    return;
  }
  size_t width = 0;
  for (const auto& [key, value] : pairs.items()) width = std::max(width, key.size());
  width = std::min<size_t>(width, 48);
  for (const auto& [key, value] : pairs.items()) {
    std::string name = json_text(key);
    fmt::format_to(std::back_inserter(out), "  {:{}}  {}\n", name.substr(1, name.size() - 2), width,
                   shorten(value));
  }
}

}  // namespace

Json describe_json(const TensorFile& file, bool metadata) {
  Json object = Json::object();
  append(object, "file", clean(file.path()));
  append(object, "format", file.format());
  append(object, "tensor_count", file.tensors().size());
  append(object, "parameters", parameters(file));
  append(object, "tensor_bytes", tensor_bytes(file));
  append(object, "identity", identity(file));
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors()) {
    tensors.push_back({{"name", clean(tensor.name)},
                       {"type", tensor.type_name},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes.size()}});
  }
  append(object, "tensors", std::move(tensors));
  if (metadata) append(object, "meta", all_metadata(file));
  return object;
}

std::string describe_text(const TensorFile& file, bool metadata) {
  std::string out =
      fmt::format("{}\n{}: {} tensors, {} values, {} bytes\n", file.path(), file.format(),
                  file.tensors().size(), parameters(file), tensor_bytes(file));
  print_pairs(out, "identity", identity(file));
  if (metadata) print_pairs(out, "metadata", all_metadata(file));
  if (file.tensors().empty()) return out;
  struct Row {
    std::string name, shape;
  };
  std::vector<Row> rows;
  size_t name_width = 0, shape_width = 0;
  for (const TensorEntry& tensor : file.tensors()) {
    std::string name = json_text(tensor.name);
    rows.push_back({name.substr(1, name.size() - 2), tensor.shape_text()});
    name_width = std::max(name_width, rows.back().name.size());
    shape_width = std::max(shape_width, rows.back().shape.size());
  }
  name_width = std::min<size_t>(name_width, 80);
  out += "\ntensors\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorEntry& tensor = file.tensors()[i];
    fmt::format_to(std::back_inserter(out), "  {:{}}  {:7}  {:{}}  {}\n", rows[i].name, name_width,
                   tensor.type_name, rows[i].shape, shape_width, tensor.bytes.size());
  }
  return out;
}

}  // namespace speech
