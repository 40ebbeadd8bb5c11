#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/fastconformer/checkpoint.h"

namespace speech::fastconformer {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json read_json(const fs::path& path) {
  Json out = Json::parse(read_text_file(path.string()), nullptr, false);
  if (out.is_discarded() || !out.is_object()) {
    fail(Status::model_file, "{} is no JSON object", path.string());
  }
  return out;
}

// A value of a JSON object that must be there, or has a default of transformers' own classes.
template <typename T>
T get(const Json& object, const char* key, std::optional<T> fallback = std::nullopt) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    if (fallback) return *fallback;
    fail(Status::model_file, "config.json: {} is missing", key);
  }
  try {
    return it->get<T>();
  } catch (const Json::exception&) {
    fail(Status::model_file, "config.json: {} is {}, a value of another type was expected", key,
         it->dump());
  }
}

int size(const Json& object, const char* key, std::optional<int64_t> fallback = std::nullopt) {
  const int64_t value = get<int64_t>(object, key, fallback);
  if (value < 1 || value > 1 << 20) {
    fail(Status::model_file, "config.json: {} is {}, expected 1 to 1048576", key, value);
  }
  return static_cast<int>(value);
}

void only(const Json& object, const char* key, const char* value) {
  if (const auto found = get<std::string>(object, key, value); found != value) {
    fail(Status::model_file, "config.json: {} is {}, this converter knows {}", key, found, value);
  }
}

// The feature extractor's settings: in processor_config.json, or in a file of their own.
FrontendConfig read_frontend(const fs::path& folder, int n_mels, int64_t& window) {
  Json f = Json::object();
  if (fs::exists(folder / "processor_config.json")) {
    f = read_json(folder / "processor_config.json").value("feature_extractor", Json::object());
  } else if (fs::exists(folder / "preprocessor_config.json")) {
    f = read_json(folder / "preprocessor_config.json");
  }
  FrontendConfig c;
  c.sample_rate = size(f, "sampling_rate", 16000);
  c.n_fft = size(f, "n_fft", 512);
  c.hop_length = size(f, "hop_length", 160);
  c.n_mels = n_mels;
  c.preemphasis = get<float>(f, "preemphasis", 0.97f);
  window = size(f, "win_length", 400);
  if (const int features = size(f, "feature_size", n_mels); features != n_mels) {
    fail(Status::model_file, "the feature extractor makes {} mel bins, the encoder takes {}",
         features, n_mels);
  }
  return c;
}

TextConfig read_text(const fs::path& folder, int blank) {
  const Json tokenizer = read_json(folder / "tokenizer.json");
  const Json model = tokenizer.value("model", Json::object());
  TextConfig c;
  std::vector<bool> known(static_cast<size_t>(blank));
  c.pieces.resize(static_cast<size_t>(blank));
  const auto set = [&](int64_t id, const std::string& piece) {
    if (id < 0 || id >= blank) return;  // the blank, and whatever stands behind it
    c.pieces[static_cast<size_t>(id)] = piece;
    known[static_cast<size_t>(id)] = true;
  };
  const Json vocabulary = model.value("vocab", Json());
  if (vocabulary.is_object()) {
    for (const auto& [piece, id] : vocabulary.items()) {
      if (id.is_number_integer()) set(id.get<int64_t>(), piece);
    }
  } else if (vocabulary.is_array()) {  // [piece, score] by id
    for (size_t i = 0; i < vocabulary.size(); ++i) {
      const Json& entry = vocabulary[i];
      if (entry.is_array() && !entry.empty() && entry[0].is_string()) {
        set(static_cast<int64_t>(i), entry[0].get<std::string>());
      }
    }
  }
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    set(get<int64_t>(token, "id"), get<std::string>(token, "content"));
  }
  for (size_t i = 0; i < known.size(); ++i) {
    if (!known[i]) fail(Status::model_file, "tokenizer.json: there is no piece {} of {}", i, blank);
  }
  std::string unknown = "<unk>";
  if (model.contains("unk_token") && model["unk_token"].is_string()) unknown = model["unk_token"];
  c.unknown_id = -1;
  for (size_t i = 0; i < c.pieces.size(); ++i) {
    if (c.pieces[i] == unknown) c.unknown_id = static_cast<int>(i);
  }
  if (c.unknown_id < 0) {
    fail(Status::model_file, "tokenizer.json: there is no unknown piece \"{}\"", unknown);
  }
  // What the SentencePiece model that this tokenizer was made of says; it is NeMo's text that a
  // file gives, whichever form the checkpoint had.
  c.unknown_surface = " \xe2\x81\x87 ";
  c.strip_leading_space = true;
  c.punctuation = punctuation_of(c.pieces);
  return c;
}

// transformers' name of a tensor of NeMo's.
std::string rename(std::string name) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  };
  replace("encoder.pre_encode.conv.", "encoder.subsampling.layers.");
  replace("encoder.pre_encode.out.", "encoder.subsampling.linear.");
  replace("self_attn.linear_pos.", "self_attn.relative_k_proj.");
  replace("self_attn.linear_q.", "self_attn.q_proj.");
  replace("self_attn.linear_k.", "self_attn.k_proj.");
  replace("self_attn.linear_v.", "self_attn.v_proj.");
  replace("self_attn.linear_out.", "self_attn.o_proj.");
  replace("self_attn.pos_bias_", "self_attn.bias_");
  replace("conv.batch_norm.", "conv.norm.");
  replace("decoder.prediction.embed.", "decoder.embedding.");
  replace("decoder.prediction.dec_rnn.lstm.", "decoder.lstm.");
  if (name.starts_with("joint.pred.")) replace("joint.pred.", "decoder.decoder_projector.");
  if (name.starts_with("joint.enc.")) replace("joint.enc.", "encoder_projector.");
  replace("joint.joint_net.2.", "joint.head.");
  replace("ctc_decoder.decoder_layers.0.", "ctc_head.");
  return name;
}

bool ignored(std::string_view name) {
  return name.ends_with(".num_batches_tracked");
}

}  // namespace

std::string transformers_type(const std::string& folder) {
  std::error_code error;
  const fs::path config = fs::path(folder) / "config.json";
  if (!fs::is_directory(folder, error) || !fs::exists(config, error)) return {};
  const Json json = Json::parse(read_text_file(config.string()), nullptr, false);
  if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string()) {
    return {};
  }
  return json["model_type"];
}

Checkpoint read_transformers(const std::string& folder, const TensorFile& weights) {
  const Json config = read_json(fs::path(folder) / "config.json");
  if (const auto type = get<std::string>(config, "model_type"); type != "parakeet_tdt") {
    fail(Status::model_file, "{} holds a {} model; this program converts parakeet_tdt", folder,
         type);
  }
  const Json encoder = config.value("encoder_config", Json::object());
  only(encoder, "hidden_act", "silu");
  only(config, "hidden_act", "relu");
  Checkpoint out{.config = {},
                 .window = 0,
                 .ctc = false,
                 .state = StateDict(weights, rename),
                 .ignored = ignored};

  EncoderConfig& e = out.config.encoder;
  e.d_model = size(encoder, "hidden_size");
  e.num_layers = size(encoder, "num_hidden_layers");
  e.num_heads = size(encoder, "num_attention_heads");
  e.conv_kernel = size(encoder, "conv_kernel_size", 9);
  e.subsampling_factor = size(encoder, "subsampling_factor", 8);
  if (e.d_model % e.num_heads != 0 || e.d_model % 2 != 0) {
    fail(Status::model_file,
         "config.json: hidden_size is {}, expected an even multiple of {} heads", e.d_model,
         e.num_heads);
  }
  if (e.conv_kernel % 2 == 0) {
    fail(Status::model_file, "config.json: conv_kernel_size is {}, expected an odd number",
         e.conv_kernel);
  }
  if (e.subsampling_factor < 2 || (e.subsampling_factor & (e.subsampling_factor - 1)) != 0) {
    fail(Status::model_file, "config.json: subsampling_factor is {}, expected a power of two",
         e.subsampling_factor);
  }
  if (get<bool>(encoder, "scale_input", true)) {
    e.xscale = static_cast<float>(std::sqrt(e.d_model));
  }
  e.use_bias = get<bool>(encoder, "attention_bias", true);
  if (get<bool>(encoder, "convolution_bias", e.use_bias) != e.use_bias) {
    fail(Status::model_file,
         "config.json: attention_bias and convolution_bias differ; the layout has one for both");
  }
  out.config.frontend = read_frontend(folder, size(encoder, "num_mel_bins", 80), out.window);

  DecoderConfig& d = out.config.decoder;
  d.kind = DecoderKind::tdt;
  d.blank = size(config, "blank_token_id");
  if (const int vocabulary = size(config, "vocab_size"); vocabulary != d.blank + 1) {
    fail(Status::model_file, "config.json: vocab_size is {}, blank_token_id {}; the blank is last",
         vocabulary, d.blank);
  }
  d.prediction_layers = size(config, "num_decoder_layers", 2);
  d.durations = get<std::vector<int>>(config, "durations");
  d.max_symbols = size(config, "max_symbols_per_step", 10);
  out.config.text = read_text(folder, d.blank);
  return out;
}

}  // namespace speech::fastconformer
