#include "models/qwen3/rewrite.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "formats/safetensors.h"
#include "models/qwen3/adapter.h"
#include "models/qwen3/config.h"
#include "models/qwen3/weights.h"
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

// A matrix of the decoder (not a norm): what MLX quantizes.
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
  Adapter adapter(adapter_folder);
  adapter.check(*SafetensorsFile::open(base), config);
  ThreadPool pool(default_threads());
  Plan plan = [&](const TensorEntry& t) -> std::vector<NewTensor> {
    const Delta* delta = adapter.find(t.name);
    if (!delta) return {{t.name, t.type, t.shape, {}}};
    auto make = [&pool, &t, delta](SafetensorsWriter& writer) {
      std::vector<std::byte> baked(t.bytes.size());
      Adapter::apply(*delta, t, baked, pool);
      writer.write(baked);
    };
    return {{t.name, t.type, t.shape, make}};
  };
  rewrite_folder(
      base, out, plan, [](Json&) {}, progress);
}

}  // namespace speech::qwen3
