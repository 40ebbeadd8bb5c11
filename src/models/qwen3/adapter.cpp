#include "models/qwen3/adapter.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "models/qwen3/weights.h"
#include "quant/codec.h"
#include "text/json_depth.h"
#include "text/regex.h"

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

struct Settings {
  bool peft = false;
  Json json;
  std::string where;

  // A setting that must have a type if it is there; null counts as not there.
  const Json* find(const char* key, bool (*fits)(const Json&), const char* expected) const {
    auto it = json.find(key);
    if (it == json.end() || it->is_null()) return nullptr;
    if (!fits(*it)) {
      fail(Status::model_file, "{}: \"{}\" is {}, expected {}", where, key, it->dump(), expected);
    }
    return &*it;
  }
  bool boolean(const char* key) const {
    const Json* v = find(
        key, [](const Json& j) { return j.is_boolean(); }, "true or false");
    return v && v->get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    const Json* v = find(
        key, [](const Json& j) { return j.is_string(); }, "a string");
    return v ? v->get<std::string>() : fallback;
  }
  const Json* object(const char* key) const {
    return find(
        key, [](const Json& j) { return j.is_object(); }, "an object");
  }
};

double number(const Json& object, const char* key, const std::string& where) {
  auto it = object.find(key);
  if (it == object.end() || !it->is_number() || !std::isfinite(it->get<double>())) {
    fail(Status::model_file, "{}: \"{}\" is missing or no number", where, key);
  }
  return it->get<double>();
}

Settings parse_settings(std::string_view text, const std::string& path) {
  constexpr int kDeepest = 100;  // what is dumped into messages, which recurses
  Settings s{.json = Json::parse(text, nullptr, false), .where = path};
  if (!s.json.is_object() || json_nests_deeper(text, kDeepest)) {
    fail(Status::model_file, "{}: not a JSON object, or nested too deep", path);
  }
  s.peft = s.json.contains("peft_type");
  if (!s.peft && !s.json.contains("fine_tune_type") && !s.json.contains("lora_parameters")) {
    fail(Status::model_file,
         "{}: neither a PEFT adapter (\"peft_type\") nor one of mlx-lm (\"fine_tune_type\", "
         "\"lora_parameters\")",
         path);
  }
  return s;
}

// PEFT settings that change more than A, B and a magnitude, or change it in another way.
void check_peft(const Settings& settings) {
  const Json& config = settings.json;
  auto refuse = [&](const char* key) {
    fail(Status::unsupported, "{}: \"{}\" is {}; only plain LoRA, rsLoRA and DoRA can be added",
         settings.where, key, config[key].dump());
  };
  if (config["peft_type"] != "LORA") refuse("peft_type");
  for (const char* key : {"modules_to_save", "layer_replication", "trainable_token_indices",
                          "target_parameters", "alora_invocation_tokens"}) {
    if (config.contains(key) && !config[key].is_null() && !config[key].empty()) refuse(key);
  }
  for (const char* key : {"fan_in_fan_out", "lora_bias", "use_qalora"}) {
    if (settings.boolean(key)) refuse(key);
  }
  if (config.contains("bias") && config["bias"] != "none") refuse("bias");
}

// A number that PEFT's rank_pattern or alpha_pattern gives for some modules.
class Patterns {
 public:
  Patterns(const Settings& settings, const char* key, const char* fallback)
      : where_(settings.where + ": " + key),
        fallback_(number(settings.json, fallback, settings.where)) {
    const Json* object = settings.object(key);
    if (!object) return;
    for (const auto& item : object->items()) {
      const std::string& text = item.key();
      double value = number(*object, text.c_str(), where_);
      // PEFT matches r"(.*\.)?({key})$" from the start (utils/other.py, get_pattern_key).
      guarded(text, [&] {
        patterns_.push_back({text, Regex("\\A(?:(.*\\.)?(" + text + ")$)"), value});
        return true;
      });
    }
  }

  // That of the first pattern which matches the end of the module's path.
  double of(const std::string& module) const {
    for (const auto& p : patterns_) {
      if (guarded(p.text, [&] { return p.regex.search(module); })) return p.value;
    }
    return fallback_;
  }

 private:
  template <typename Function>
  bool guarded(const std::string& pattern, Function function) const {
    try {
      return function();
    } catch (const Error& e) {
      fail(Status::model_file, "{}: \"{}\" cannot be used as a regular expression: {}", where_,
           pattern, e.what());
    }
  }

  struct Pattern {
    std::string text;
    Regex regex;
    double value;
  };
  std::string where_;
  double fallback_;
  std::vector<Pattern> patterns_;
};

// All deltas by module path ("model.layers.0.mlp.up_proj").
std::map<std::string, Delta> read_deltas(const Settings& settings, const TensorFile& file) {
  bool dora = false, rslora = false;
  std::optional<Patterns> ranks, alphas;
  double mlx_scale = 20;  // the default of mlx-lm, which uses it as it is
  if (settings.peft) {
    check_peft(settings);
    dora = settings.boolean("use_dora");
    rslora = settings.boolean("use_rslora");
    ranks.emplace(settings, "rank_pattern", "r");
    alphas.emplace(settings, "alpha_pattern", "lora_alpha");
  } else {
    std::string type = settings.text("fine_tune_type", "lora");
    if (type != "lora" && type != "dora") {
      fail(Status::unsupported, "{}: fine_tune_type \"{}\" cannot be added; lora and dora can",
           settings.where, type);
    }
    dora = type == "dora";
    const Json* parameters = settings.object("lora_parameters");
    if (parameters && parameters->contains("scale")) {
      mlx_scale = number(*parameters, "scale", settings.where + ": lora_parameters");
    }
  }
  const char* a_end = settings.peft ? ".lora_A.weight" : ".lora_a";
  const char* b_end = settings.peft ? ".lora_B.weight" : ".lora_b";
  const char* m_end = settings.peft ? ".lora_magnitude_vector" : ".m";
  const std::string prefix = settings.peft ? "base_model.model." : "";

  std::map<std::string, Delta> deltas;
  for (const TensorEntry& t : file.tensors()) {
    auto bad = [&](const char* what) {
      fail(Status::model_file, "{}: tensor {} {}: {}", file.path(), t.name, t.shape_text(), what);
    };
    if (!t.name.starts_with(prefix)) bad("its name does not begin with base_model.model.");
    std::string name = t.name.substr(prefix.size());
    auto module = [&](const char* end) { return name.substr(0, name.size() - std::strlen(end)); };
    for (int64_t size : t.shape) {
      if (size < 1) bad("an axis is empty");
    }
    std::vector<float> values = to_f32(t);
    for (float v : values) {
      if (!std::isfinite(v)) bad("has a value that is not finite");
    }
    if (name.ends_with(a_end)) {
      if (t.shape.size() != 2) bad("expected two axes");
      Delta& d = deltas[module(a_end)];
      d.rank = settings.peft ? t.shape[0] : t.shape[1];
      d.in = settings.peft ? t.shape[1] : t.shape[0];
      d.a = settings.peft ? std::move(values) : transposed(values, d.in, d.rank);
    } else if (name.ends_with(b_end)) {
      if (t.shape.size() != 2) bad("expected two axes");
      Delta& d = deltas[module(b_end)];
      d.out = settings.peft ? t.shape[0] : t.shape[1];
      d.b = settings.peft ? std::move(values) : transposed(values, t.shape[0], d.out);
    } else if (name.ends_with(m_end) && dora) {
      if (t.shape.size() != 1) bad("expected one axis");
      deltas[module(m_end)].magnitude = std::move(values);
    } else {
      bad("only adapters of linear layers can be added");
    }
  }
  if (deltas.empty()) fail(Status::model_file, "{}: holds no adapter", file.path());
  bool all_zero = true;
  for (auto& [module, d] : deltas) {
    if (d.rank < 1 || d.out < 1 || std::ssize(d.b) != d.out * d.rank ||
        (dora && std::ssize(d.magnitude) != d.out)) {
      fail(Status::model_file, "{}: {}: its A, B{} are missing or do not fit each other",
           file.path(), module, dora ? " or magnitude" : "");
    }
    for (float v : d.b) all_zero = all_zero && v == 0;
    if (!settings.peft) {
      d.scale = mlx_scale;
      continue;
    }
    double rank = ranks->of(module), alpha = alphas->of(module);
    if (rank != static_cast<double>(d.rank)) {
      fail(Status::model_file, "{}: {}: rank {} in its tensors, {} by adapter_config.json",
           file.path(), module, d.rank, rank);
    }
    d.scale = rslora ? alpha / std::sqrt(rank) : alpha / rank;
  }
  if (all_zero && !dora) {
    fail(Status::model_file, "{}: every B is zero: the adapter was saved untrained", file.path());
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
  std::string config = (fs::path(folder) / "adapter_config.json").string();
  Settings settings = parse_settings(read_text_file(config), config);
  const char* name = settings.peft ? "adapter_model.safetensors" : "adapters.safetensors";
  path_ = (fs::path(folder) / name).string();
  deltas_ = read_deltas(settings, *SafetensorsFile::open(path_));
}

Adapter::Adapter(std::string_view config, const TensorFile& file)
    : path_(file.path()), deltas_(read_deltas(parse_settings(config, path_), file)) {}

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
