#include "models/qwen3/config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "formats/gguf.h"

namespace speech::qwen3 {
namespace {

using Json = nlohmann::json;

// Reads typed members of one JSON object; messages name file and key.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& at(const char* key) const {
    if (!has(key)) fail(Status::model_file, "{}: key \"{}\" is missing", where_, key);
    return json_[key];
  }
  int64_t integer(const char* key, int64_t minimum, int64_t maximum) const {
    const Json& v = at(key);
    if (!v.is_number_integer()) wrong(key, "an integer");
    auto value = v.get<int64_t>();
    if (value < minimum || value > maximum) {
      fail(Status::model_file, "{}: \"{}\" is {}, expected {} to {}", where_, key, value, minimum,
           maximum);
    }
    return value;
  }
  double number(const char* key) const {
    const Json& v = at(key);
    if (!v.is_number()) wrong(key, "a number");
    auto value = v.get<double>();
    if (!std::isfinite(value)) wrong(key, "a finite number");
    return value;
  }
  double positive(const char* key) const {
    double value = number(key);
    if (value <= 0) wrong(key, "a number above 0");
    return value;
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_boolean()) wrong(key, "true or false");
    return json_[key].get<bool>();
  }
  std::string text(const char* key) const {
    const Json& v = at(key);
    if (!v.is_string()) wrong(key, "a string");
    return v.get<std::string>();
  }
  [[noreturn]] void wrong(const char* key, const char* expected) const {
    fail(Status::model_file, "{}: \"{}\" is {}, expected {}", where_, key, json_[key].dump(),
         expected);
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

constexpr int64_t kMaxWidth = 1 << 20, kMaxPositions = int64_t{1} << 31;

Json parse(std::string_view text, const std::string& where) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail(Status::model_file, "{}: not a JSON object", where);
  return json;
}

void read_rope(const Reader& config, const Json& json, RopeSettings& rope) {
  // transformers 5 writes rope_parameters, 4 writes rope_theta and rope_scaling.
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  Json scaling = json.value(key, Json());
  if (!scaling.is_null() && !scaling.is_object()) config.wrong(key, "an object");
  if (scaling.is_null()) scaling = Json::object();
  Reader r(scaling, config.where() + ": " + key);
  rope.theta = r.has("rope_theta") ? r.positive("rope_theta") : config.positive("rope_theta");
  std::string type = r.has("rope_type") ? r.text("rope_type")
                     : r.has("type")    ? r.text("type")
                                        : "default";
  if (type == "default") return;
  if (type != "yarn") {
    fail(Status::model_file, "{}: rope type \"{}\" is not known; default and yarn are",
         config.where(), type);
  }
  rope.yarn = true;
  rope.factor = r.positive("factor");
  rope.original_positions = r.has("original_max_position_embeddings")
                                ? r.positive("original_max_position_embeddings")
                                : config.positive("max_position_embeddings");
  if (r.has("beta_fast")) rope.beta_fast = r.positive("beta_fast");
  if (r.has("beta_slow")) rope.beta_slow = r.positive("beta_slow");
  if (r.has("attention_factor")) rope.attention_factor = r.positive("attention_factor");
  rope.truncate = r.boolean("truncate", true);
}

AffineFormat read_affine(const Reader& r, bool defaults) {
  if (r.has("mode") && r.text("mode") != "affine") {
    fail(Status::model_file, "{}: mode \"{}\" is not supported, only affine is", r.where(),
         r.text("mode"));
  }
  // An override may leave them out or null: then MLX's defaults hold.
  AffineFormat f;
  f.bits = static_cast<int>(defaults && !r.has("bits") ? 4 : r.integer("bits", 2, 8));
  f.group =
      static_cast<int>(defaults && !r.has("group_size") ? 64 : r.integer("group_size", 32, 128));
  if (f.bits == 7) fail(Status::model_file, "{}: 7 bits are not an affine format", r.where());
  if (f.group != 32 && f.group != 64 && f.group != 128) {
    fail(Status::model_file, "{}: group_size {} is not 32, 64 or 128", r.where(), f.group);
  }
  return f;
}

std::optional<Config::Quantization> read_quantization(const Json& json, const std::string& where) {
  const char* key = json.contains("quantization") && !json["quantization"].is_null()
                        ? "quantization"
                        : "quantization_config";
  if (!json.contains(key) || json[key].is_null()) return std::nullopt;
  const Json& block = json[key];
  if (!block.is_object()) fail(Status::model_file, "{}: \"{}\" is not an object", where, key);
  Reader r(block, where + ": " + key);
  if (r.has("quant_method") && r.text("quant_method") != "mlx") {
    fail(Status::model_file,
         "{}: weights quantized by \"{}\" are not supported; use an MLX-quantized folder "
         "(mlx_lm.convert -q) or a GGUF file",
         where, r.text("quant_method"));
  }
  Config::Quantization q;
  q.format = read_affine(r, true);
  for (const auto& [name, value] : block.items()) {
    if (value.is_object()) {
      q.modules[name] = read_affine(Reader(value, r.where() + ": " + name), true);
    } else if (value.is_boolean()) {
      if (value.get<bool>()) {
        q.modules[name] = q.format;
      } else {
        q.modules[name] = std::nullopt;
      }
    }
  }
  return q;
}

void check_decoder(const DecoderConfig& d, const std::string& where) {
  if (d.heads % d.kv_heads != 0) {
    fail(Status::model_file, "{}: {} attention heads are not a multiple of {} key/value heads",
         where, d.heads, d.kv_heads);
  }
  if (d.head_dim % 2 != 0) fail(Status::model_file, "{}: head_dim {} is odd", where, d.head_dim);
}

// The token id or the list of them under `key`.
void append_ids(const Reader& r, const char* key, std::vector<int32_t>& ids, int64_t vocabulary) {
  const Json& v = r.at(key);
  auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocabulary) {
      r.wrong(key, "token ids of the vocabulary");
    }
    ids.push_back(id.get<int32_t>());
  };
  if (v.is_array()) {
    for (const Json& id : v) add(id);
  } else {
    add(v);
  }
}

// What else transformers' generate() takes from generation_config.json, with or without sampling.
void read_more_sampling(const Reader& g, Config& c) {
  if (g.has("min_p")) {
    c.sampling.min_p = g.number("min_p");
    if (c.sampling.min_p < 0 || c.sampling.min_p > 1) g.wrong("min_p", "0 to 1");
  }
  if (g.has("repetition_penalty")) c.sampling.repetition_penalty = g.positive("repetition_penalty");
  if (g.has("suppress_tokens")) {
    append_ids(g, "suppress_tokens", c.sampling.suppressed, c.vocabulary);
  }
  // Settings that change what comes out and that this library does not have, at the values that
  // change nothing.
  static const std::vector<std::pair<const char*, Json>> others = {
      {"bad_words_ids", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"diversity_penalty", 0.0},
      {"encoder_repetition_penalty", 1.0},
      {"epsilon_cutoff", 0.0},
      {"eta_cutoff", 0.0},
      {"exponential_decay_length_penalty", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"guidance_scale", 1.0},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"no_repeat_ngram_size", 0},
      {"num_beams", 1},
      {"penalty_alpha", 0.0},
      {"sequence_bias", nullptr},
      {"top_h", nullptr},
      {"typical_p", 1.0}};
  for (const auto& [key, neutral] : others) {
    if (!g.has(key) || g.at(key) == neutral) continue;
    log_warn("{}: \"{}\" is {}, which is not applied", g.where(), key, g.at(key).dump());
  }
}

}  // namespace

Config parse_config(std::string_view config_json, std::string_view generation_json,
                    const std::string& path) {
  std::string where = path + "/config.json";
  Json json = parse(config_json, where);
  Reader r(json, where);
  std::string type = r.text("model_type");
  bool known = type == "qwen3";
  if (known && r.has("architectures")) {
    const Json& a = r.at("architectures");
    known = a.is_array() && a.size() == 1 && a[0] == "Qwen3ForCausalLM";
  }
  if (!known) {
    fail(Status::model_file, "{}: model_type \"{}\", architectures {} is not a Qwen3ForCausalLM",
         where, type, json.value("architectures", Json()).dump());
  }
  if (r.has("hidden_act") && r.text("hidden_act") != "silu") r.wrong("hidden_act", "\"silu\"");
  if (r.boolean("attention_bias", false)) r.wrong("attention_bias", "false");
  if (r.boolean("use_sliding_window", false)) r.wrong("use_sliding_window", "false");
  if (r.has("layer_types")) {
    for (const Json& layer : r.at("layer_types")) {
      if (layer != "full_attention") r.wrong("layer_types", "full_attention only");
    }
  }

  Config c;
  DecoderConfig& d = c.decoder;
  d.layers = static_cast<int>(r.integer("num_hidden_layers", 1, 10000));
  d.hidden = r.integer("hidden_size", 1, kMaxWidth);
  d.intermediate = r.integer("intermediate_size", 1, kMaxWidth);
  d.heads = r.integer("num_attention_heads", 1, 65536);
  d.kv_heads = r.integer("num_key_value_heads", 1, 65536);
  d.head_dim = r.integer("head_dim", 2, 65536);
  d.eps = static_cast<float>(r.positive("rms_norm_eps"));
  read_rope(r, json, d.rope);
  d.rope.dim = d.head_dim;
  check_decoder(d, where);
  c.vocabulary = r.integer("vocab_size", 1, int64_t{1} << 30);
  c.max_positions = r.integer("max_position_embeddings", 1, kMaxPositions);
  c.tied = r.boolean("tie_word_embeddings", false);
  c.quantization = read_quantization(json, where);

  // generation_config.json decides where generation ends; config.json's id counts only without it.
  if (!generation_json.empty()) {
    std::string where_generation = path + "/generation_config.json";
    Json generation = parse(generation_json, where_generation);
    Reader g(generation, where_generation);
    if (g.has("eos_token_id")) append_ids(g, "eos_token_id", c.eos, c.vocabulary);
    c.sampling.sample = g.boolean("do_sample", false);
    if (g.has("temperature")) c.sampling.temperature = g.number("temperature");
    if (g.has("top_p")) c.sampling.top_p = g.number("top_p");
    if (g.has("top_k")) c.sampling.top_k = g.integer("top_k", 0, c.vocabulary);
    read_more_sampling(g, c);
  }
  if (c.eos.empty() && r.has("eos_token_id")) append_ids(r, "eos_token_id", c.eos, c.vocabulary);
  return c;
}

Config read_config(const GgufFile& file) {
  Config c;
  DecoderConfig& d = c.decoder;
  auto width = [&](const char* key, int64_t maximum) -> int64_t {
    auto value = static_cast<int64_t>(file.get_u32(key));
    if (value < 1 || value > maximum) {
      fail(Status::model_file, "{}: {} is {}, expected 1 to {}", file.path(), key, value, maximum);
    }
    return value;
  };
  d.layers = static_cast<int>(width("qwen3.block_count", 10000));
  d.hidden = width("qwen3.embedding_length", kMaxWidth);
  d.intermediate = width("qwen3.feed_forward_length", kMaxWidth);
  d.heads = width("qwen3.attention.head_count", 65536);
  d.kv_heads = width("qwen3.attention.head_count_kv", 65536);
  d.head_dim = width("qwen3.attention.key_length", 65536);
  if (width("qwen3.attention.value_length", 65536) != d.head_dim) {
    fail(Status::model_file, "{}: qwen3.attention.key_length and value_length differ", file.path());
  }
  d.eps = file.get_f32("qwen3.attention.layer_norm_rms_epsilon");
  d.rope.dim = d.head_dim;
  d.rope.theta = file.get_f32("qwen3.rope.freq_base");
  if (!(d.eps > 0) || !(d.rope.theta > 1)) {
    fail(Status::model_file, "{}: layer_norm_rms_epsilon {} or rope.freq_base {} is not valid",
         file.path(), d.eps, d.rope.theta);
  }
  if (file.has("qwen3.rope.scaling.type")) {
    std::string type = file.get_string("qwen3.rope.scaling.type");
    if (type == "yarn") {
      d.rope.yarn = true;
      d.rope.factor = file.get_f32("qwen3.rope.scaling.factor");
      d.rope.original_positions = file.get_u32("qwen3.rope.scaling.original_context_length");
      if (!(d.rope.factor > 0) || !(d.rope.original_positions > 0)) {
        fail(Status::model_file, "{}: qwen3.rope.scaling is not valid", file.path());
      }
    } else if (type != "none") {
      fail(Status::model_file, "{}: rope scaling \"{}\" is not known; none and yarn are",
           file.path(), type);
    }
  }
  check_decoder(d, file.path());
  c.vocabulary = static_cast<int64_t>(file.get_strings("tokenizer.ggml.tokens").size());
  c.max_positions = width("qwen3.context_length", kMaxPositions);
  c.tied = file.find("output.weight") == nullptr;
  if (file.has("general.name")) c.name = file.get_string("general.name");
  // GGUF holds one end-of-sequence id; Qwen3 also ends at <|endoftext|>, its padding token.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.padding_token_id"}) {
    if (!file.has(key)) continue;
    uint32_t id = file.get_u32(key);
    if (id >= c.vocabulary) {
      fail(Status::model_file, "{}: {} {} is outside the vocabulary of {}", file.path(), key, id,
           c.vocabulary);
    }
    c.eos.push_back(static_cast<int32_t>(id));
  }
  if (file.has("general.sampling.temp")) {
    c.sampling = {.sample = true, .temperature = file.get_f32("general.sampling.temp")};
    if (file.has("general.sampling.top_p"))
      c.sampling.top_p = file.get_f32("general.sampling.top_p");
    if (file.has("general.sampling.top_k"))
      c.sampling.top_k = file.get_i32("general.sampling.top_k");
    if (file.has("general.sampling.min_p"))
      c.sampling.min_p = file.get_f32("general.sampling.min_p");
  }
  if (file.has("general.sampling.penalty_repeat")) {
    c.sampling.repetition_penalty = file.get_f32("general.sampling.penalty_repeat");
  }
  return c;
}

}  // namespace speech::qwen3
