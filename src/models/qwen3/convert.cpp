#include "models/qwen3/convert.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "formats/gguf.h"
#include "models/qwen3/model.h"
#include "quant/codec.h"
#include "text/bpe.h"
#include "text/chat_template.h"

namespace speech::qwen3 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json parse_file(const fs::path& path) {
  Json json = Json::parse(read_text_file(path.string()), nullptr, false);
  if (!json.is_object()) fail(Status::model_file, "{}: not a JSON object", path.string());
  return json;
}

// The arrays of tokenizer.ggml: tokens by id, their types, and the merges in order.
struct TokenArrays {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;
};

TokenArrays read_tokens(const std::string& folder, int64_t rows) {
  // The tokenizer itself has checked vocabulary, ids and merges.
  auto tokenizer = BpeTokenizer::load(folder);
  TokenArrays a;
  a.tokens.resize(static_cast<size_t>(rows));
  a.types.assign(static_cast<size_t>(rows), static_cast<int32_t>(GgufTokenType::unused));
  for (int64_t id = 0; id < rows; ++id)
    a.tokens[static_cast<size_t>(id)] = fmt::format("[PAD{}]", id);
  auto put = [&](int64_t id, const std::string& text, GgufTokenType type) {
    if (id < 0 || id >= rows) return;
    a.tokens[static_cast<size_t>(id)] = text;
    a.types[static_cast<size_t>(id)] = static_cast<int32_t>(type);
  };
  fs::path json_path = fs::path(folder) / "tokenizer.json";
  Json vocabulary;
  if (fs::exists(json_path)) {
    Json json = parse_file(json_path);
    vocabulary = json["model"]["vocab"];
    for (const Json& merge : json["model"]["merges"]) {
      a.merges.push_back(merge.is_array()
                             ? merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>()
                             : merge.get<std::string>());
    }
  } else {
    vocabulary = parse_file(fs::path(folder) / "vocab.json");
    std::string text = read_text_file((fs::path(folder) / "merges.txt").string());
    for (size_t at = 0; at < text.size();) {
      size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      at = end + 1;
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && !line.starts_with("#version")) a.merges.push_back(line);
    }
  }
  for (const auto& [token, id] : vocabulary.items()) {
    put(id.get<int64_t>(), token, GgufTokenType::normal);
  }
  for (const AddedToken& t : tokenizer->added_tokens()) {
    // llama.cpp also calls tokens of this shape control tokens, flagged special or not.
    bool control = t.special || (t.text.starts_with("<|") && t.text.ends_with("|>"));
    put(t.id, t.text, control ? GgufTokenType::control : GgufTokenType::user_defined);
  }
  return a;
}

std::string size_label(int64_t parameters) {
  auto n = static_cast<double>(parameters);
  if (n >= 1e9) return fmt::format("{:.1f}B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.0f}M", n / 1e6);
  return fmt::format("{:.0f}K", std::max(1.0, n / 1e3));
}

// llama.cpp's name of a tensor; empty for one that is not written.
std::string gguf_name(const std::string& name) {
  if (name == "model.embed_tokens") return "token_embd.weight";
  if (name == "model.norm") return "output_norm.weight";
  if (name == "lm_head") return "output.weight";
  static const std::pair<const char*, const char*> parts[] = {
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  constexpr std::string_view prefix = "model.layers.";
  if (!name.starts_with(prefix)) return {};
  std::string rest = name.substr(prefix.size());
  size_t dot = rest.find('.');
  if (dot == std::string::npos) return {};
  for (auto [from, to] : parts) {
    if (rest.substr(dot + 1) == from) return "blk." + rest.substr(0, dot) + "." + to + ".weight";
  }
  return {};
}

void add_keys(const std::string& path, const Config& c, const std::string& name, int64_t parameters,
              GgufWriter& w) {
  const DecoderConfig& d = c.decoder;
  w.add_string("general.architecture", "qwen3");
  w.add_string("general.type", "model");
  fs::path generation = fs::path(path) / "generation_config.json";
  if (fs::exists(generation)) {
    Json g = parse_file(generation);
    if (g.contains("top_k"))
      w.add_i32("general.sampling.top_k", static_cast<int32_t>(c.sampling.top_k));
    if (g.contains("top_p"))
      w.add_f32("general.sampling.top_p", static_cast<float>(c.sampling.top_p));
    if (g.contains("min_p"))
      w.add_f32("general.sampling.min_p", static_cast<float>(c.sampling.min_p));
    if (g.contains("temperature")) {
      w.add_f32("general.sampling.temp", static_cast<float>(c.sampling.temperature));
    }
    if (c.sampling.repetition_penalty != 1) {
      w.add_f32("general.sampling.penalty_repeat",
                static_cast<float>(c.sampling.repetition_penalty));
    }
    if (!c.sampling.suppressed.empty()) {
      log_warn("{}: GGUF has no place for \"suppress_tokens\"", generation.string());
    }
  }
  w.add_string("general.name", name);
  w.add_string("general.size_label", size_label(parameters));
  auto count = [&](const char* key, int64_t value) {
    w.add_u32(std::string("qwen3.") + key, static_cast<uint32_t>(value));
  };
  count("block_count", d.layers);
  count("context_length", c.max_positions);
  count("embedding_length", d.hidden);
  count("feed_forward_length", d.intermediate);
  count("attention.head_count", d.heads);
  count("attention.head_count_kv", d.kv_heads);
  w.add_f32("qwen3.rope.freq_base", static_cast<float>(d.rope.theta));
  w.add_f32("qwen3.attention.layer_norm_rms_epsilon", d.eps);
  count("attention.key_length", d.head_dim);
  count("attention.value_length", d.head_dim);
  if (d.rope.yarn) {
    if (d.rope.attention_factor > 0 || !d.rope.truncate || d.rope.beta_fast != 32 ||
        d.rope.beta_slow != 1) {
      fail(Status::unsupported, "{}: these YaRN settings have no keys in a GGUF file", path);
    }
    w.add_string("qwen3.rope.scaling.type", "yarn");
    w.add_f32("qwen3.rope.scaling.factor", static_cast<float>(d.rope.factor));
    w.add_u32("qwen3.rope.scaling.original_context_length",
              static_cast<uint32_t>(d.rope.original_positions));
  }
  w.add_u32("general.file_type", 0);
  w.add_u32("general.quantization_version", 2);

  TokenArrays tokens = read_tokens(path, c.vocabulary);
  w.add_string("tokenizer.ggml.model", "gpt2");
  w.add_string("tokenizer.ggml.pre", "qwen2");
  w.add_strings("tokenizer.ggml.tokens", tokens.tokens);
  w.add_i32s("tokenizer.ggml.token_type", tokens.types);
  w.add_strings("tokenizer.ggml.merges", tokens.merges);
  Json config = parse_file(fs::path(path) / "config.json");
  Json ids = fs::exists(generation) ? parse_file(generation) : Json::object();
  if (!c.eos.empty()) w.add_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(c.eos[0]));
  // The second end of sequence goes where llama.cpp's readers and ours find it.
  auto id_of = [&](const char* key) -> std::optional<uint32_t> {
    for (const Json* json : {&ids, &config}) {
      if (json->contains(key) && (*json)[key].is_number_integer()) {
        auto id = (*json)[key].get<int64_t>();
        if (id >= 0 && id < c.vocabulary) return static_cast<uint32_t>(id);
      }
    }
    return std::nullopt;
  };
  if (auto id = id_of("pad_token_id")) w.add_u32("tokenizer.ggml.padding_token_id", *id);
  if (auto id = id_of("bos_token_id")) w.add_u32("tokenizer.ggml.bos_token_id", *id);
  w.add_bool("tokenizer.ggml.add_bos_token", false);
  std::string chat_template = ChatTemplate::find_source(path);
  if (!chat_template.empty()) w.add_string("tokenizer.chat_template", chat_template);
}

}  // namespace

void convert(const std::string& path, const TensorFile& source, const ConvertOptions& options,
             GgufWriter& writer, OutputFile& out) {
  Config config = folder_config(path);
  // Every check of tensors and shapes, packed ones included. The file keeps the mapping.
  auto mapped = open_tensor_file(path);
  Weights weights = load_folder(mapped, config, {});

  struct Item {
    std::string name;
    const Weight* matrix = nullptr;
    const TensorEntry* vector = nullptr;
    int64_t rows, cols;
  };
  std::vector<Item> items;
  int64_t parameters = 0;
  auto add_matrix = [&](const std::string& module, const Weight& w) {
    items.push_back({gguf_name(module), &w, nullptr, w.rows, w.cols});
    parameters += w.rows * w.cols;
  };
  auto add_vector = [&](const std::string& module) {
    const TensorEntry& t = source.require(module + ".weight");
    items.push_back({gguf_name(module), nullptr, &t, 1, t.elements()});
    parameters += t.elements();
  };
  add_matrix("model.embed_tokens", weights.embedding);
  for (int l = 0; l < config.decoder.layers; ++l) {
    const DecoderLayer& layer = weights.decoder.layers[static_cast<size_t>(l)];
    std::string p = fmt::format("model.layers.{}.", l);
    add_vector(p + "input_layernorm");
    add_matrix(p + "mlp.down_proj", layer.down);
    add_matrix(p + "mlp.gate_proj", layer.gate);
    add_matrix(p + "mlp.up_proj", layer.up);
    add_vector(p + "post_attention_layernorm");
    add_vector(p + "self_attn.k_norm");
    add_matrix(p + "self_attn.k_proj", layer.k);
    add_matrix(p + "self_attn.o_proj", layer.o);
    add_vector(p + "self_attn.q_norm");
    add_matrix(p + "self_attn.q_proj", layer.q);
    add_matrix(p + "self_attn.v_proj", layer.v);
  }
  add_vector("model.norm");
  if (!config.tied) add_matrix("lm_head", weights.head);

  add_keys(path, config, options.name.empty() ? config.name : options.name, parameters, writer);
  for (const Item& item : items) {
    std::vector<int64_t> shape =
        item.matrix ? std::vector{item.rows, item.cols} : std::vector{item.cols};
    writer.add_tensor(item.name, shape, *ggml_type(DType::f32));
  }
  writer.begin(out);
  for (const Item& item : items) {
    if (item.vector) {
      std::vector<float> values = to_f32(*item.vector);
      writer.write(std::as_bytes(std::span(values)));
      continue;
    }
    const Weight& w = *item.matrix;
    int64_t scale_row =
        w.type == WeightType::affine ? row_bytes(w.affine.scale_type, w.cols / w.affine.group) : 0;
    // Some rows at a time: few large writes instead of many small ones.
    const int64_t together = std::max<int64_t>(1, (int64_t{1} << 18) / w.cols);
    std::vector<float> rows(static_cast<size_t>(std::min(together, w.rows) * w.cols));
    for (int64_t first = 0; first < w.rows; first += together) {
      const int64_t count = std::min(together, w.rows - first);
      for (int64_t r = first; r < first + count; ++r) {
        float* row = rows.data() + (r - first) * w.cols;
        if (w.type == WeightType::affine) {
          decode_affine_row(w.affine, w.data + r * w.row_bytes, w.scales + r * scale_row,
                            w.biases + r * scale_row, row, w.cols);
        } else {
          decode_row(w.type, w.data + r * w.row_bytes, row, w.cols);
        }
      }
      writer.write(std::as_bytes(std::span(rows).first(static_cast<size_t>(count * w.cols))));
    }
  }
}

}  // namespace speech::qwen3
