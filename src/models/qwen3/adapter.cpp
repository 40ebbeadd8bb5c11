#include "models/qwen3/adapter.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "models/qwen3/weights.h"
#include "quant/codec.h"

namespace speech::qwen3 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kWeight = ".weight";

std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      y[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * cols + j)];
    }
  }
  return y;
}

struct AdapterFile {
  std::string path;
  bool peft = false;
  Json config;
  std::shared_ptr<const TensorFile> file;
};

AdapterFile open_adapter(const std::string& folder) {
  AdapterFile a;
  std::string config_path = (fs::path(folder) / "adapter_config.json").string();
  a.config = Json::parse(read_text_file(config_path), nullptr, false);
  if (!a.config.is_object()) fail(Status::model_file, "{}: not a JSON object", config_path);
  a.peft = a.config.contains("peft_type");
  if (!a.peft && !a.config.contains("fine_tune_type") && !a.config.contains("lora_parameters")) {
    fail(Status::model_file,
         "{}: neither a PEFT adapter (\"peft_type\") nor one of mlx-lm (\"fine_tune_type\", "
         "\"lora_parameters\")",
         config_path);
  }
  a.path =
      (fs::path(folder) / (a.peft ? "adapter_model.safetensors" : "adapters.safetensors")).string();
  a.file = SafetensorsFile::open(a.path);
  return a;
}

// PEFT settings that change more than A, B and a magnitude, or change it in another way.
void check_peft(const Json& config, const std::string& path) {
  auto refuse = [&](const char* key) {
    fail(Status::unsupported, "{}: \"{}\" is {}; only plain LoRA, rsLoRA and DoRA can be added",
         path, key, config[key].dump());
  };
  if (config["peft_type"] != "LORA") refuse("peft_type");
  for (const char* key : {"modules_to_save", "layer_replication", "trainable_token_indices",
                          "target_parameters", "alora_invocation_tokens"}) {
    if (config.contains(key) && !config[key].is_null() && !config[key].empty()) refuse(key);
  }
  for (const char* key : {"fan_in_fan_out", "lora_bias", "use_qalora"}) {
    if (config.contains(key) && config[key] == true) refuse(key);
  }
  if (config.contains("bias") && config["bias"] != "none") refuse("bias");
}

// The value of a module in rank_pattern or alpha_pattern: the first key that matches the end of its
// path as a regular expression.
double pattern_value(const Json& config, const char* patterns, const std::string& module,
                     double fallback, const std::string& path) {
  if (!config.contains(patterns) || !config[patterns].is_object()) return fallback;
  for (const auto& [key, value] : config[patterns].items()) {
    bool matches = false;
    try {
      if (key.size() > 200) throw std::regex_error(std::regex_constants::error_complexity);
      matches = std::regex_match(module, std::regex("(.*\\.)?(" + key + ")"));
    } catch (const std::regex_error&) {
      fail(Status::model_file, "{}: {}: \"{}\" is not a regular expression this program reads",
           path, patterns, key);
    }
    if (!matches) continue;
    if (!value.is_number())
      fail(Status::model_file, "{}: {}: {} is no number", path, patterns, key);
    return value.get<double>();
  }
  return fallback;
}

double required_number(const Json& object, const char* key, const std::string& path) {
  if (!object.contains(key) || !object[key].is_number()) {
    fail(Status::model_file, "{}: adapter_config.json: \"{}\" is missing or no number", path, key);
  }
  return object[key].get<double>();
}

// All deltas by module path ("model.layers.0.mlp.up_proj").
std::map<std::string, Delta> read_deltas(const AdapterFile& adapter) {
  const Json& config = adapter.config;
  bool dora = false;
  double mlx_scale = 0;
  if (adapter.peft) {
    check_peft(config, adapter.path);
    dora = config.value("use_dora", false);
  } else {
    std::string type = config.value("fine_tune_type", "lora");
    if (type != "lora" && type != "dora") {
      fail(Status::unsupported, "{}: fine_tune_type \"{}\" cannot be added; lora and dora can",
           adapter.path, type);
    }
    dora = type == "dora";
    // mlx-lm uses the scale as it is; 20 is its default.
    Json parameters = config.value("lora_parameters", Json::object());
    mlx_scale =
        parameters.contains("scale") ? required_number(parameters, "scale", adapter.path) : 20;
  }
  const char* a_end = adapter.peft ? ".lora_A.weight" : ".lora_a";
  const char* b_end = adapter.peft ? ".lora_B.weight" : ".lora_b";
  const char* m_end = adapter.peft ? ".lora_magnitude_vector" : ".m";
  const std::string prefix = adapter.peft ? "base_model.model." : "";

  std::map<std::string, Delta> deltas;
  for (const TensorEntry& t : adapter.file->tensors()) {
    auto bad = [&](const char* what) {
      fail(Status::model_file, "{}: tensor {} {}: {}", adapter.path, t.name, t.shape_text(), what);
    };
    if (!t.name.starts_with(prefix)) bad("its name does not begin with base_model.model.");
    std::string name = t.name.substr(prefix.size());
    auto module = [&](const char* end) { return name.substr(0, name.size() - std::strlen(end)); };
    std::vector<float> values = to_f32(t);
    for (float v : values) {
      if (!std::isfinite(v)) bad("has a value that is not finite");
    }
    if (name.ends_with(a_end)) {
      if (t.shape.size() != 2) bad("expected two axes");
      Delta& d = deltas[module(a_end)];
      d.rank = adapter.peft ? t.shape[0] : t.shape[1];
      d.in = adapter.peft ? t.shape[1] : t.shape[0];
      d.a = adapter.peft ? std::move(values) : transposed(values, d.in, d.rank);
    } else if (name.ends_with(b_end)) {
      if (t.shape.size() != 2) bad("expected two axes");
      Delta& d = deltas[module(b_end)];
      d.out = adapter.peft ? t.shape[0] : t.shape[1];
      d.b = adapter.peft ? std::move(values) : transposed(values, t.shape[0], d.out);
    } else if (name.ends_with(m_end) && dora) {
      if (t.shape.size() != 1) bad("expected one axis");
      deltas[module(m_end)].magnitude = std::move(values);
    } else {
      bad("only adapters of linear layers can be added");
    }
  }
  if (deltas.empty()) fail(Status::model_file, "{}: holds no adapter", adapter.path);
  bool all_zero = true;
  for (auto& [module, d] : deltas) {
    if (d.rank < 1 || d.out < 1 || std::ssize(d.b) != d.out * d.rank ||
        (dora && std::ssize(d.magnitude) != d.out)) {
      fail(Status::model_file, "{}: {}: its A, B{} are missing or do not fit each other",
           adapter.path, module, dora ? " or magnitude" : "");
    }
    for (float v : d.b) all_zero = all_zero && v == 0;
    if (!adapter.peft) {
      d.scale = mlx_scale;
      continue;
    }
    double rank = pattern_value(config, "rank_pattern", module,
                                required_number(config, "r", adapter.path), adapter.path);
    double alpha = pattern_value(config, "alpha_pattern", module,
                                 required_number(config, "lora_alpha", adapter.path), adapter.path);
    if (rank != static_cast<double>(d.rank)) {
      fail(Status::model_file, "{}: {}: rank {} in its tensors, {} by adapter_config.json",
           adapter.path, module, d.rank, rank);
    }
    d.scale = config.value("use_rslora", false) ? alpha / std::sqrt(rank) : alpha / rank;
  }
  if (all_zero && !dora) {
    fail(Status::model_file, "{}: every B is zero: the adapter was saved untrained", adapter.path);
  }
  return deltas;
}

// One row of a matrix with the adapter in it.
void bake_row(const Delta& d, int64_t row, std::span<float> values) {
  std::vector<double> sum(values.size());
  for (int64_t r = 0; r < d.rank; ++r) {
    double b = d.b[static_cast<size_t>(row * d.rank + r)];
    const float* a = d.a.data() + r * d.in;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += b * a[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = values[i] + d.scale * sum[i];
  double factor = 1;
  if (!d.magnitude.empty()) {
    double square = 0;
    for (double v : sum) square += v * v;
    factor = square > 0 ? d.magnitude[static_cast<size_t>(row)] / std::sqrt(square) : 0;
  }
  for (size_t i = 0; i < sum.size(); ++i) values[i] = static_cast<float>(sum[i] * factor);
}

}  // namespace

Adapter::Adapter(const std::string& folder) {
  AdapterFile file = open_adapter(folder);
  path_ = file.path;
  deltas_ = read_deltas(file);
}

void Adapter::check(const TensorFile& base, const Config& config) const {
  if (config.quantization) {
    fail(Status::unsupported,
         "{}: its weights are quantized already; an adapter is added to the dense folder",
         base.path());
  }
  for (const auto& [module, d] : deltas_) {
    const TensorEntry* t = base.find(module + std::string(kWeight));
    if (!t) {
      fail(Status::model_file, "{}: {}: the base has no {}.weight", path_, module, module);
    }
    if (module == "lm_head" && config.tied) {
      fail(Status::unsupported,
           "{}: lm_head of a tied model is its embedding and cannot be changed", path_);
    }
    if (module == "model.embed_tokens" || t->shape != std::vector<int64_t>{d.out, d.in}) {
      fail(Status::model_file, "{}: {}: an adapter of [{}, {}] for a weight of {}", path_, module,
           d.out, d.in, t->shape_text());
    }
    float_type(*t, base.path());
  }
}

const Delta* Adapter::find(const std::string& weight) const {
  if (!weight.ends_with(kWeight)) return nullptr;
  auto it = deltas_.find(weight.substr(0, weight.size() - kWeight.size()));
  return it == deltas_.end() ? nullptr : &it->second;
}

void Adapter::apply(const Delta& delta, const TensorEntry& t, std::span<std::byte> out,
                    ThreadPool& pool) {
  WeightType type = float_type(t, "the base");
  int64_t cols = t.shape[1], bytes = row_bytes(type, cols);
  pool.run(t.shape[0], [&](int64_t r, int) {
    std::vector<float> row(static_cast<size_t>(cols));
    decode_row(type, t.bytes.data() + r * bytes, row.data(), cols);
    bake_row(delta, r, row);
    encode_row(type, row.data(), out.data() + r * bytes, cols);
  });
}

}  // namespace speech::qwen3
