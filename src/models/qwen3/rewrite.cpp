#include "models/qwen3/rewrite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "formats/safetensors.h"
#include "models/qwen3/config.h"
#include "quant/codec.h"

namespace speech::qwen3 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A tensor of the new folder and how to make its bytes.
struct NewTensor {
  std::string name;
  DType type;
  std::vector<int64_t> shape;
  // Writes the bytes; null: those of the old tensor.
  std::function<void(SafetensorsWriter&)> write;
};
// The tensors that take the place of one old tensor, in order; none to leave it out.
using Plan = std::function<std::vector<NewTensor>(const TensorEntry&)>;

uint64_t bytes_of(const NewTensor& t) {
  return static_cast<uint64_t>(checked_elements(t.shape)) *
         static_cast<uint64_t>(dtype_bytes(t.type));
}

WeightType float_type(const TensorEntry& t, const std::string& path) {
  switch (t.type) {
    case DType::f32:
      return WeightType::f32;
    case DType::f16:
      return WeightType::f16;
    case DType::bf16:
      return WeightType::bf16;
    default:
      fail(Status::model_file, "{}: tensor {} has type {}, expected F32, F16 or BF16", path, t.name,
           t.type_name);
  }
}

// Files of the folder that hold weights, by its index or by name.
std::vector<std::string> shards(const std::string& folder) {
  std::set<std::string> names;
  fs::path index = fs::path(folder) / "model.safetensors.index.json";
  if (fs::exists(index)) {
    Json json = Json::parse(read_text_file(index.string()), nullptr, false);
    if (json.is_object() && json.contains("weight_map") && json["weight_map"].is_object()) {
      for (const auto& [tensor, file] : json["weight_map"].items()) {
        if (file.is_string()) names.insert(file.get<std::string>());
      }
    }
  }
  if (names.empty()) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (name.starts_with("model") && name.ends_with(".safetensors")) names.insert(name);
    }
  }
  for (const std::string& name : names) {
    if (name.find('/') != std::string::npos) {
      fail(Status::model_file, "{}: shard name \"{}\" leaves the folder", folder, name);
    }
  }
  return {names.begin(), names.end()};
}

void write_text(OutputFolder& out, const std::string& name, const std::string& text) {
  OutputFile file(out.file(name));
  file.write(text);
  file.commit();
}

// Copies `source` to `out` with its tensors changed by `plan` and config.json by `edit`.
void rewrite_folder(const std::string& source, const std::string& out, const Plan& plan,
                    const std::function<void(Json&)>& edit, const Progress& progress) {
  SafetensorsFile::open(source);  // every check of a whole folder, before anything is written
  std::vector<std::string> files = shards(source);
  std::error_code error;
  if (fs::equivalent(source, out, error)) {
    fail_option(Status::invalid_argument, "out_path", "{} is the folder that is read", out);
  }
  OutputFolder folder(out);
  uint64_t total = 0, done = 0, written = 0;
  for (const std::string& name : files) total += fs::file_size(fs::path(source) / name);

  std::map<std::string, std::string> weight_map;
  for (const std::string& name : files) {
    auto shard = SafetensorsFile::open((fs::path(source) / name).string());
    std::vector<std::pair<const TensorEntry*, NewTensor>> tensors;
    for (const TensorEntry& t : shard->tensors()) {
      for (NewTensor& n : plan(t)) tensors.emplace_back(&t, std::move(n));
    }
    SafetensorsWriter writer;
    writer.add_metadata("format", "mlx");
    for (auto& [old, t] : tensors) {
      writer.add_tensor(t.name, t.type, t.shape);
      weight_map[t.name] = name;
      written += bytes_of(t);
    }
    OutputFile file(folder.file(name));
    writer.begin(file);
    for (auto& [old, t] : tensors) {
      if (t.write) {
        t.write(writer);
      } else {
        writer.write(old->bytes);
      }
      shard->release(*old);
      done += old->bytes.size() / std::max<uint64_t>(1, tensors.size() / shard->tensors().size());
      if (progress) progress(std::min(1.0, static_cast<double>(done) / static_cast<double>(total)));
    }
    writer.finish();
    file.commit();
  }
  Json index;
  index["metadata"]["total_size"] = written;
  for (const auto& [tensor, file] : weight_map) index["weight_map"][tensor] = file;
  write_text(folder, "model.safetensors.index.json", index.dump(4) + "\n");
  Json config = Json::parse(read_text_file((fs::path(source) / "config.json").string()));
  edit(config);
  write_text(folder, "config.json", config.dump(4) + "\n");

  for (const auto& entry : fs::directory_iterator(source)) {
    std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "config.json" ||
        name == "model.safetensors.index.json" || name.ends_with(".safetensors")) {
      continue;
    }
    fs::copy_file(entry.path(), folder.file(name));
  }
  folder.commit();
  if (progress) progress(1);
}

// A matrix of the decoder (not a norm): what MLX quantizes and adapters change.
bool is_matrix(const TensorEntry& t) {
  return t.shape.size() == 2 && t.name.ends_with(".weight");
}

std::string module_of(const std::string& weight_name) {
  return weight_name.substr(0, weight_name.size() - std::string_view(".weight").size());
}

Config dense_config(const std::string& folder) {
  Config config =
      parse_config(read_text_file((fs::path(folder) / "config.json").string()), "", folder);
  if (config.quantization) {
    fail(Status::unsupported, "{}: its weights are quantized already; start from the dense folder",
         folder);
  }
  return config;
}

// ---- adapters ----

struct Delta {
  std::vector<float> a;          // [rank, in]
  std::vector<float> b;          // [out, rank]
  std::vector<float> magnitude;  // [out], DoRA
  int64_t in = 0, out = 0, rank = 0;
  double scale = 0;
};

std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      y[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * cols + j)];
    }
  }
  return y;
}

struct Adapter {
  std::string path;
  bool peft = false;
  Json config;
  std::shared_ptr<const TensorFile> file;
};

Adapter open_adapter(const std::string& folder) {
  Adapter a;
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
    fail(Status::unsupported, "{}: \"{}\" is {}; only plain LoRA, rsLoRA and DoRA can be baked",
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
std::map<std::string, Delta> read_deltas(const Adapter& adapter) {
  const Json& config = adapter.config;
  bool dora = false;
  double mlx_scale = 0;
  if (adapter.peft) {
    check_peft(config, adapter.path);
    dora = config.value("use_dora", false);
  } else {
    std::string type = config.value("fine_tune_type", "lora");
    if (type != "lora" && type != "dora") {
      fail(Status::unsupported, "{}: fine_tune_type \"{}\" cannot be baked; lora and dora can",
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
      bad("only adapters of linear layers can be baked");
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

bool affine_type(std::string_view type, int& bits, int& group) {
  if (!type.starts_with("int") && !type.starts_with("INT")) return false;
  std::string_view rest = type.substr(3);
  size_t dash = rest.find("-g");
  std::string width(rest.substr(0, dash));
  std::string columns(dash == std::string_view::npos ? "64" : rest.substr(dash + 2));
  auto number = [](const std::string& text) {
    bool digits = !text.empty() && text.size() < 4 &&
                  text.find_first_not_of("0123456789") == std::string::npos;
    return digits ? std::stoi(text) : 0;
  };
  bits = number(width);
  group = number(columns);
  if (!valid_affine({bits, group, WeightType::f32})) {
    fail_option(Status::out_of_range, "type",
                "{} is not an affine format: int2, int3, int4, int5, int6 or int8, with -g32, -g64 "
                "or -g128 behind it",
                type);
  }
  return true;
}

void quantize_folder(const std::string& source, const std::string& out, int bits, int group,
                     const Progress& progress) {
  Config config = dense_config(source);
  ThreadPool pool(default_threads());
  Plan plan = [&](const TensorEntry& t) -> std::vector<NewTensor> {
    if (config.tied && t.name.starts_with("lm_head.")) return {};
    std::vector<NewTensor> same{{t.name, t.type, t.shape, {}}};
    if (!is_matrix(t)) return same;
    AffineFormat format{bits, group, float_type(t, source)};
    if (!valid_affine(format)) {
      fail_option(Status::out_of_range, "type", "int{}-g{} is not an affine format of MLX", bits,
                  group);
    }
    int64_t rows = t.shape[0], cols = t.shape[1];
    if (cols % group != 0) return same;
    std::string module = module_of(t.name);
    // The words are written first and leave the scales and biases for the two tensors after them.
    struct Packed {
      std::vector<std::byte> words, scales, biases;
    };
    auto packed = std::make_shared<Packed>();
    auto make = [&pool, &source, &t, format, rows, cols, packed](SafetensorsWriter& writer) {
      int64_t source_row = row_bytes(format.scale_type, cols);
      int64_t word_row = affine_packed_bytes(format, cols);
      int64_t scale_row = row_bytes(format.scale_type, cols / format.group);
      packed->words.resize(static_cast<size_t>(rows * word_row));
      packed->scales.resize(static_cast<size_t>(rows * scale_row));
      packed->biases.resize(static_cast<size_t>(rows * scale_row));
      pool.run(rows, [&](int64_t r, int) {
        std::vector<float> row(static_cast<size_t>(cols));
        decode_row(format.scale_type, t.bytes.data() + r * source_row, row.data(), cols);
        for (float v : row) {
          if (!std::isfinite(v)) {
            fail(Status::model_file, "{}: tensor {} has a value that is not finite", source,
                 t.name);
          }
        }
        encode_affine_row(format, row.data(), packed->words.data() + r * word_row,
                          packed->scales.data() + r * scale_row,
                          packed->biases.data() + r * scale_row, cols);
      });
      writer.write(packed->words);
      packed->words = {};
    };
    auto scales = [packed](SafetensorsWriter& w) { w.write(packed->scales); };
    auto biases = [packed](SafetensorsWriter& w) {
      w.write(packed->biases);
      packed->biases = {};
    };
    std::vector<int64_t> groups{rows, cols / group};
    return {{t.name, DType::u32, {rows, cols * bits / 32}, make},
            {module + ".scales", t.type, groups, scales},
            {module + ".biases", t.type, groups, biases}};
  };
  auto edit = [&](Json& json) {
    Json block{{"group_size", group}, {"bits", bits}, {"mode", "affine"}};
    json["quantization"] = block;
    json["quantization_config"] = block;
  };
  rewrite_folder(source, out, plan, edit, progress);
}

void bake_lora(const std::string& base, const std::string& adapter_folder, const std::string& out,
               const Progress& progress) {
  Config config = dense_config(base);
  Adapter adapter = open_adapter(adapter_folder);
  std::map<std::string, Delta> deltas = read_deltas(adapter);
  auto weights = SafetensorsFile::open(base);
  for (const auto& [module, d] : deltas) {
    const TensorEntry* t = weights->find(module + ".weight");
    if (!t) {
      fail(Status::model_file, "{}: {}: the base has no {}.weight", adapter.path, module, module);
    }
    if (module == "lm_head" && config.tied) {
      fail(Status::unsupported, "{}: lm_head of a tied model is its embedding and cannot be baked",
           adapter.path);
    }
    if (!is_matrix(*t) || module == "model.embed_tokens" || t->shape[0] != d.out ||
        t->shape[1] != d.in) {
      fail(Status::model_file, "{}: {}: an adapter of [{}, {}] for a weight of {}", adapter.path,
           module, d.out, d.in, t->shape_text());
    }
  }
  ThreadPool pool(default_threads());
  Plan plan = [&](const TensorEntry& t) -> std::vector<NewTensor> {
    auto it = is_matrix(t) ? deltas.find(module_of(t.name)) : deltas.end();
    if (it == deltas.end()) return {{t.name, t.type, t.shape, {}}};
    const Delta& delta = it->second;
    WeightType type = float_type(t, base);
    auto make = [&pool, &t, &delta, type](SafetensorsWriter& writer) {
      int64_t rows = t.shape[0], cols = t.shape[1], bytes = row_bytes(type, cols);
      std::vector<std::byte> baked(t.bytes.size());
      pool.run(rows, [&](int64_t r, int) {
        std::vector<float> row(static_cast<size_t>(cols));
        decode_row(type, t.bytes.data() + r * bytes, row.data(), cols);
        bake_row(delta, r, row);
        encode_row(type, row.data(), baked.data() + r * bytes, cols);
      });
      writer.write(baked);
    };
    return {{t.name, t.type, t.shape, make}};
  };
  rewrite_folder(
      base, out, plan, [](Json&) {}, progress);
}

}  // namespace speech::qwen3
