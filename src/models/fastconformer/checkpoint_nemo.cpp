#include <yaml-cpp/yaml.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/fastconformer/checkpoint.h"
#include "text/sentencepiece.h"

namespace speech::fastconformer {
namespace {

// A mapping of the configuration. A key that is absent or null has the value that NeMo's own
// constructor gives it, which the caller names.
class Section {
 public:
  Section(YAML::Node node, std::string name) : node_(node), name_(std::move(name)) {}

  Section section(const std::string& key) const {
    const YAML::Node child = node_.IsMap() ? node_[key] : YAML::Node();
    return {child && child.IsMap() ? child : YAML::Node(YAML::NodeType::Map), name_ + key + "."};
  }
  bool has(const std::string& key) const { return node_[key] && !node_[key].IsNull(); }

  template <typename T>
  T get(const std::string& key, T fallback) const {
    if (!has(key)) return fallback;
    try {
      return node_[key].as<T>();
    } catch (const YAML::Exception&) {
      refuse(key, "a value of another type");
    }
  }
  std::string text(const std::string& key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    return node_[key].IsScalar() ? node_[key].Scalar() : "a list";
  }

  // What this family does not do is refused by name.
  void only(const std::string& key, const std::string& fallback,
            std::initializer_list<const char*> allowed) const {
    const std::string found = text(key, fallback);
    std::string list;
    for (const char* value : allowed) {
      if (found == value) return;
      list += (list.empty() ? "" : " or ") + std::string(value);
    }
    refuse(key, list);
  }
  void only_false(const std::string& key) const {
    if (get(key, false)) refuse(key, "false");
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    fail(Status::model_file, "model_config.yaml: {}{} is {}, this converter knows {}", name_, key,
         text(key, "not there"), expected);
  }

 private:
  YAML::Node node_;
  std::string name_;
};

int to_size(const Section& s, const std::string& key, double value) {
  if (!(value >= 1 && value <= 1 << 20)) s.refuse(key, "numbers of 1 to 1048576");
  return static_cast<int>(value);
}

FrontendConfig read_frontend(const Section& s, int64_t& window) {
  s.only("_target_", "", {"nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor"});
  s.only("normalize", "per_feature", {"per_feature"});
  s.only("log_zero_guard_type", "add", {"add"});
  if (!s.get("log", true)) s.refuse("log", "true");
  s.only_false("exact_pad");
  if (s.get("mag_power", 2.0) != 2.0) s.refuse("mag_power", "2.0");
  if (s.get("frame_splicing", 1) != 1) s.refuse("frame_splicing", "1");

  FrontendConfig c;
  const double rate = s.get("sample_rate", 16000.0);
  c.sample_rate = to_size(s, "sample_rate", rate);
  window = s.has("n_window_size")
               ? to_size(s, "n_window_size", s.get("n_window_size", 0.0))
               : to_size(s, "window_size", std::floor(s.get("window_size", 0.02) * rate + 1e-6));
  c.hop_length =
      s.has("n_window_stride")
          ? to_size(s, "n_window_stride", s.get("n_window_stride", 0.0))
          : to_size(s, "window_stride", std::floor(s.get("window_stride", 0.01) * rate + 1e-6));
  int enough = 1;
  while (enough < window) enough *= 2;
  c.n_fft = to_size(s, "n_fft", s.get("n_fft", static_cast<double>(enough)));
  c.n_mels = to_size(s, "features", s.get("features", 64.0));
  c.preemphasis = s.get("preemph", 0.97f);
  const std::string guard = s.text("log_zero_guard_value", "");
  c.log_guard = guard == "tiny"  ? std::numeric_limits<float>::min()
                : guard == "eps" ? std::numeric_limits<float>::epsilon()
                                 : s.get("log_zero_guard_value", 0x1p-24f);
  c.std_guard = 1e-5f;  // a constant of NeMo's normalize_batch
  return c;
}

// Both entries of att_context_size, of the first pair if it is a list of pairs.
std::pair<int, int> context_size(const YAML::Node& encoder) {
  YAML::Node size = encoder["att_context_size"];
  if (size && size.IsSequence() && size.size() > 0 && size[0].IsSequence()) size = size[0];
  if (!size || !size.IsSequence() || size.size() != 2) return {-1, -1};
  return {size[0].as<int>(), size[1].as<int>()};
}

EncoderConfig read_encoder(const Section& s, const YAML::Node& node) {
  s.only("_target_", "", {"nemo.collections.asr.modules.ConformerEncoder"});
  s.only("subsampling", "striding", {"dw_striding"});
  s.only("conv_norm_type", "batch_norm", {"batch_norm"});
  s.only("att_context_style", "regular", {"regular"});
  s.only("feat_out", "-1", {"-1", "0"});
  s.only("reduction", "None", {"None"});
  s.only_false("causal_downsampling");
  s.only_false("global_attn_separate");

  EncoderConfig c;
  const auto size = [&](const char* key, double fallback) {
    return to_size(s, key, s.get(key, fallback));
  };
  c.d_model = size("d_model", 0);
  c.num_layers = size("n_layers", 0);
  c.num_heads = size("n_heads", 4);
  c.conv_kernel = size("conv_kernel_size", 31);
  c.subsampling_factor = size("subsampling_factor", 4);
  if (c.num_heads < 1 || c.d_model % c.num_heads != 0 || c.d_model % 2 != 0) {
    s.refuse("d_model", "even multiples of n_heads");
  }
  if (c.conv_kernel % 2 == 0) s.refuse("conv_kernel_size", "odd numbers");
  if (c.subsampling_factor < 2 || (c.subsampling_factor & (c.subsampling_factor - 1)) != 0) {
    s.refuse("subsampling_factor", "powers of two");
  }
  if (s.has("conv_context_size")) {
    const YAML::Node context = node["conv_context_size"];
    const int half = c.conv_kernel / 2;
    if (!context.IsSequence() || context.size() != 2 || context[0].as<int>() != half ||
        context[1].as<int>() != half) {
      s.refuse("conv_context_size", "null and equal halves of the kernel");
    }
  }
  c.xscale = s.get("xscaling", true) ? static_cast<float>(std::sqrt(c.d_model)) : 1.0f;
  c.use_bias = s.get("use_bias", true);

  const auto [left, right] = context_size(node);
  s.only("self_attention_model", "rel_pos", {"rel_pos", "rel_pos_local_attn"});
  if (s.text("self_attention_model", "rel_pos") == "rel_pos_local_attn") {
    c.local = true;
    if (left < 1 || left != right) s.refuse("att_context_size", "two equal numbers above 0");
    c.context = left;
    c.global_tokens = s.get("global_tokens", 0);
    if (c.global_tokens < 0 || c.global_tokens > 1) s.refuse("global_tokens", "0 or 1");
  } else if (left != -1 || right != -1) {
    s.refuse("att_context_size", "[-1, -1] with rel_pos attention");
  }
  return c;
}

std::vector<int> durations_of(const Section& root) {
  const auto list = [](const Section& s, const char* key) {
    return s.get(key, std::vector<int>());
  };
  auto out = list(root.section("loss").section("tdt_kwargs"), "durations");  // NeMo takes these
  if (out.empty()) out = list(root.section("decoding"), "durations");
  if (out.empty()) out = list(root.section("model_defaults"), "tdt_durations");
  return out;
}

DecoderConfig read_decoder(const Section& root, const StateDict& state, int pieces) {
  const Section decoder = root.section("decoder"), joint = root.section("joint"),
                decoding = root.section("decoding");
  decoder.only("_target_", "", {"nemo.collections.asr.modules.RNNTDecoder"});
  decoder.only("normalization_mode", "None", {"None", ""});
  if (!decoder.get("blank_as_pad", true)) decoder.refuse("blank_as_pad", "true");
  joint.only("_target_", "", {"nemo.collections.asr.modules.RNNTJoint"});
  joint.section("jointnet").only("activation", "relu", {"relu"});

  DecoderConfig c;
  c.blank = pieces;
  while (state.has("decoder.prediction.dec_rnn.lstm.weight_ih_l" +
                   std::to_string(c.prediction_layers))) {
    ++c.prediction_layers;
  }
  const int layers = decoder.section("prednet").get("pred_rnn_layers", c.prediction_layers);
  if (c.prediction_layers < 1 || c.prediction_layers != layers) {
    fail(Status::model_file,
         "model_config.yaml: decoder.prednet.pred_rnn_layers is {}, the weights have {}", layers,
         c.prediction_layers);
  }
  const std::string out = state.has("joint.joint_net.2.weight") ? "joint.joint_net.2.weight"
                                                                : "joint.joint_net.1.weight";
  const int64_t extra = state.dim(out, 0) - (pieces + 1);
  const Section greedy = decoding.section("greedy");
  c.max_symbols = to_size(greedy, "max_symbols",
                          greedy.get("max_symbols", greedy.get("max_symbols_per_step", 10.0)));
  if (extra > 0) {
    c.kind = DecoderKind::tdt;
    c.durations = durations_of(root);
    if (static_cast<int64_t>(c.durations.size()) != extra) {
      fail(Status::model_file,
           "model_config.yaml: the joint network has {} outputs beside {} pieces and the blank, "
           "but {} durations are named",
           extra, pieces, c.durations.size());
    }
    decoding.only("strategy", "greedy_batch", {"greedy_batch", "greedy"});
    return c;
  }
  c.kind = DecoderKind::rnnt;
  decoding.only("strategy", "greedy_batch", {"alsd", "greedy_batch", "greedy"});
  decoding.only("model_type", "rnnt", {"rnnt"});
  const Section beam = decoding.section("beam");
  c.greedy_by_default = decoding.text("strategy", "greedy_batch") != "alsd";
  c.beam_size = to_size(beam, "beam_size", beam.get("beam_size", c.greedy_by_default ? 4.0 : 1.0));
  if (c.beam_size < 2) {
    if (!c.greedy_by_default) beam.refuse("beam_size", "2 and more");
    c.beam_size = 2;
  }
  c.score_norm = beam.get("score_norm", true);
  // A whole number is a limit on tokens, a fraction one on tokens per frame.
  const std::string limit = beam.text("alsd_max_target_len", "1.0");
  if (limit.find_first_not_of("0123456789") == limit.npos) {
    c.max_target_tokens = beam.get("alsd_max_target_len", 0);
    c.max_target_ratio = 0;
  } else {
    c.max_target_ratio = beam.get("alsd_max_target_len", 1.0f);
    if (!std::isfinite(c.max_target_ratio) || c.max_target_ratio < 0) {
      beam.refuse("alsd_max_target_len", "numbers of 0 and more");
    }
  }
  return c;
}

TextConfig read_text(const Section& root, const NemoFile& file) {
  const Section tokenizer = root.section("tokenizer");
  tokenizer.only("type", "bpe", {"bpe"});
  const std::string path = tokenizer.text("model_path", "");
  const NemoMember& member = file.require_member(path);
  const auto model = SentencePieceModel::parse(member.bytes, member.name);

  using Kind = SentencePieceModel::Kind;
  TextConfig c;
  int unknown = -1;
  for (const auto& piece : model.pieces) {
    if (piece.kind == Kind::unknown) unknown = static_cast<int>(c.pieces.size());
    if (piece.kind != Kind::normal && piece.kind != Kind::unknown &&
        piece.kind != Kind::user_defined) {
      fail(Status::model_file,
           "{}: piece {} \"{}\" is of type {}; only normal, unknown and user-defined ones can be "
           "written as text",
           member.name, c.pieces.size(), piece.text, static_cast<int>(piece.kind));
    }
    c.pieces.push_back(piece.text);
  }
  if (unknown < 0) fail(Status::model_file, "{}: there is no unknown piece", member.name);
  c.unknown_id = unknown;
  c.unknown_surface = model.unknown_surface;
  c.strip_leading_space = model.add_dummy_prefix || model.remove_extra_whitespaces;
  c.punctuation = punctuation_of(c.pieces);
  c.separators = root.section("decoding").get("segment_seperators", c.separators);
  return c;
}

// Tensors of NeMo's state dict that are no weights.
bool ignored(std::string_view name) {
  return name.ends_with(".num_batches_tracked") || name.starts_with("preprocessor.") ||
         name.starts_with("encoder.pos_enc.") || name == "encoder.pos_bias_u" ||
         name == "encoder.pos_bias_v" || name.starts_with("ctc_decoder.") ||
         name.starts_with("loss.");
}

std::string same_name(std::string name) {
  return name;
}

YAML::Node parse(const NemoFile& file) {
  try {
    return YAML::Load(std::string(file.config()));
  } catch (const YAML::Exception& e) {
    fail(Status::model_file, "{}: model_config.yaml cannot be read: {}", file.path(), e.what());
  }
}

}  // namespace

std::string nemo_target(const NemoFile& file) {
  const YAML::Node root = parse(file);
  return root.IsMap() && root["target"] && root["target"].IsScalar() ? root["target"].Scalar()
                                                                     : std::string();
}

Checkpoint read_nemo(const NemoFile& file) {
  const std::string target = nemo_target(file);
  const std::string name = target.substr(target.rfind('.') + 1);
  if (name != "EncDecRNNTBPEModel" && name != "EncDecHybridRNNTCTCBPEModel") {
    fail(Status::model_file,
         "{} holds a {}; this program converts EncDecRNNTBPEModel and "
         "EncDecHybridRNNTCTCBPEModel",
         file.path(), name.empty() ? "model that does not name its class" : name);
  }
  try {
    const YAML::Node node = parse(file);
    const Section root(node, "");
    Checkpoint out{.config = {},
                   .window = 0,
                   .ctc = false,
                   .state = StateDict(file, same_name),
                   .ignored = ignored};
    out.config.text = read_text(root, file);
    out.config.frontend = read_frontend(root.section("preprocessor"), out.window);
    if (out.state.has("preprocessor.featurizer.window")) {
      out.window = out.state.dim("preprocessor.featurizer.window", 0);
    }
    out.config.encoder = read_encoder(root.section("encoder"), node["encoder"]);
    out.config.decoder =
        read_decoder(root, out.state, static_cast<int>(out.config.text.pieces.size()));
    out.ctc = out.state.has("ctc_decoder.decoder_layers.0.weight");
    return out;
  } catch (const YAML::Exception& e) {
    fail(Status::model_file, "{}: model_config.yaml: {}", file.path(), e.what());
  }
}

}  // namespace speech::fastconformer
