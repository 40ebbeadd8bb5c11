#include "models/fastconformer/checkpoint.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "audio/spectrogram.h"
#include "base/error.h"

namespace speech::fastconformer {
namespace {

constexpr double kBatchNormEps = 1e-5;  // torch.nn.BatchNorm1d

bool is_punctuation(utf8proc_int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

// NeMo's names of blk.N's linear parts.
struct Name {
  std::string_view layout, nemo;
};
constexpr Name kLayerNames[] = {
    {"ff1_norm", "norm_feed_forward1"},
    {"ff1_up", "feed_forward1.linear1"},
    {"ff1_down", "feed_forward1.linear2"},
    {"attn_norm", "norm_self_att"},
    {"attn_q", "self_attn.linear_q"},
    {"attn_k", "self_attn.linear_k"},
    {"attn_v", "self_attn.linear_v"},
    {"attn_out", "self_attn.linear_out"},
    {"attn_pos", "self_attn.linear_pos"},
    {"conv_norm", "norm_conv"},
    {"conv_pw2", "conv.pointwise_conv2"},
    {"ff2_norm", "norm_feed_forward2"},
    {"ff2_up", "feed_forward2.linear1"},
    {"ff2_down", "feed_forward2.linear2"},
    {"out_norm", "norm_out"},
};

std::string joint_out(const StateDict& state) {
  // The index counts the activation and, where there is one, the dropout before it.
  const bool dropout = state.has("joint.joint_net.2.weight");
  return dropout ? "joint.joint_net.2" : "joint.joint_net.1";
}

// conv_dw.weight [d, kernel] or conv_dw.bias [d] with the batch norm behind it folded in.
std::vector<float> folded(const StateDict& state, const std::string& conv, int64_t channels,
                          int64_t kernel, bool use_bias, bool weight) {
  const std::string norm = conv + "batch_norm.";
  const auto gamma = state.values(norm + "weight", channels);
  const auto beta = state.values(norm + "bias", channels);
  const auto mean = state.values(norm + "running_mean", channels);
  const auto variance = state.values(norm + "running_var", channels);
  std::vector<float> bias(static_cast<size_t>(channels));
  if (use_bias) bias = state.values(conv + "depthwise_conv.bias", channels);
  std::vector<float> out;
  if (weight)
    out = state.values(conv + "depthwise_conv.weight", channels * kernel);
  else
    out.resize(bias.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t c = weight ? i / static_cast<size_t>(kernel) : i;
    const double scale = gamma[c] / std::sqrt(static_cast<double>(variance[c]) + kBatchNormEps);
    const double value =
        weight ? out[i] * scale : (static_cast<double>(bias[c]) - mean[c]) * scale + beta[c];
    out[i] = static_cast<float>(value);
  }
  return out;
}

std::vector<float> layer_values(const Checkpoint& checkpoint, const TensorSpec& spec,
                                std::string_view rest, int64_t count) {
  const StateDict& state = checkpoint.state;
  const EncoderConfig& e = checkpoint.config.encoder;
  const size_t dot = rest.find('.');
  const std::string layer = "encoder.layers." + std::string(rest.substr(0, dot)) + ".";
  rest.remove_prefix(dot + 1);
  if (rest == "attn_pos_bias_u") return state.values(layer + "self_attn.pos_bias_u", count);
  if (rest == "attn_pos_bias_v") return state.values(layer + "self_attn.pos_bias_v", count);

  const size_t end = rest.find('.');
  const std::string_view part = rest.substr(0, end);
  const std::string kind(rest.substr(end));  // ".weight" or ".bias"
  if (part == "conv_dw") {
    return folded(state, layer + "conv.", e.d_model, e.conv_kernel, e.use_bias, kind == ".weight");
  }
  if (part == "conv_pw1_a" || part == "conv_pw1_gate") {  // the two halves of one convolution
    auto both = state.values(layer + "conv.pointwise_conv1" + kind, 2 * count);
    const auto middle = both.begin() + static_cast<std::ptrdiff_t>(count);
    if (part == "conv_pw1_a") return {both.begin(), middle};
    return {middle, both.end()};
  }
  for (const Name& name : kLayerNames) {
    if (name.layout == part) return state.values(layer + std::string(name.nemo) + kind, count);
  }
  fail(Status::internal, "no source for tensor {}", spec.name);
}

}  // namespace

int64_t StateDict::dim(const std::string& name, size_t axis) const {
  const TensorEntry& t = file_->require(rename_(name));
  if (axis >= t.shape.size()) {
    fail(Status::model_file, "{}: tensor {} is {}, more axes were expected", file_->path(), t.name,
         t.shape_text());
  }
  return t.shape[axis];
}

std::vector<float> StateDict::values(const std::string& name, int64_t count) const {
  const TensorEntry& t = file_->require(rename_(name));
  if (t.elements() != count) {
    fail(Status::model_file, "{}: tensor {} is {}, expected {} values", file_->path(), t.name,
         t.shape_text(), count);
  }
  std::vector<float> out = to_f32(t);
  for (float x : out) {
    if (!std::isfinite(x)) {
      fail(Status::model_file, "{}: tensor {} holds a value that is no finite number",
           file_->path(), t.name);
    }
  }
  used_.insert(t.name);
  return out;
}

void StateDict::check_all_used(bool (*ignored)(std::string_view)) const {
  for (const TensorEntry& t : file_->tensors()) {
    if (!used_.contains(t.name) && !ignored(t.name)) {
      fail(Status::model_file,
           "{}: tensor {} {} is no part of a model that its configuration describes", file_->path(),
           t.name, t.shape_text());
    }
  }
}

Widths read_widths(const Checkpoint& checkpoint) {
  const StateDict& state = checkpoint.state;
  Widths w;
  w.window = checkpoint.window;
  w.channels = state.dim("encoder.pre_encode.conv.0.weight", 0);
  w.feed_forward = state.dim("encoder.layers.0.feed_forward1.linear1.weight", 0);
  w.prediction = state.dim("decoder.prediction.embed.weight", 1);
  w.joint = state.dim("joint.enc.weight", 0);
  return w;
}

std::vector<float> layout_values(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const StateDict& state = checkpoint.state;
  const std::string& name = spec.name;
  int64_t count = 1;
  for (int64_t n : spec.shape) count *= n;
  const size_t last = name.rfind('.');
  const std::string kind = name.substr(last);  // ".weight", ".bias" or a name's end

  if (name == "frontend.window") {
    if (state.has("preprocessor.featurizer.window")) {
      return state.values("preprocessor.featurizer.window", count);
    }
    const auto window = hann_window(static_cast<int>(count), false);
    return {window.begin(), window.end()};
  }
  if (name == "frontend.filterbank") {
    if (state.has("preprocessor.featurizer.fb")) {
      return state.values("preprocessor.featurizer.fb", count);
    }
    const FrontendConfig& f = checkpoint.config.frontend;
    const auto bank = mel_filters(MelScale::slaney, true, f.n_mels, f.n_fft, f.sample_rate, 0,
                                  f.sample_rate / 2.0);
    return {bank.begin(), bank.end()};
  }
  if (name.starts_with("blk.")) {
    return layer_values(checkpoint, spec, std::string_view(name).substr(4), count);
  }
  if (name.starts_with("sub.conv.0.")) {
    return state.values("encoder.pre_encode.conv.0" + kind, count);
  }
  if (name.starts_with("sub.conv.")) {  // sub.conv.I.dw / .pw: modules 3 I - 1 and 3 I
    const int i = std::stoi(name.substr(9));
    const bool depthwise = name.find(".dw.") != name.npos;
    return state.values(
        "encoder.pre_encode.conv." + std::to_string(3 * i - (depthwise ? 1 : 0)) + kind, count);
  }
  if (name.starts_with("sub.out.")) return state.values("encoder.pre_encode.out" + kind, count);
  if (name == "pred.embed.weight") return state.values("decoder.prediction.embed.weight", count);
  if (name.starts_with("pred.lstm.")) {
    const std::string l = std::to_string(std::stoi(name.substr(10)));
    const std::string lstm = "decoder.prediction.dec_rnn.lstm.";
    if (name.ends_with(".ih.weight")) return state.values(lstm + "weight_ih_l" + l, count);
    if (name.ends_with(".hh.weight")) return state.values(lstm + "weight_hh_l" + l, count);
    auto bias = state.values(lstm + "bias_ih_l" + l, count);
    const auto more = state.values(lstm + "bias_hh_l" + l, count);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] += more[i];
    return bias;
  }
  if (name.starts_with("joint.out.")) return state.values(joint_out(state) + kind, count);
  if (name.starts_with("joint.")) return state.values(name, count);  // joint.enc, joint.pred
  if (name.starts_with("ctc.out.")) {
    return state.values("ctc_decoder.decoder_layers.0" + kind, count);
  }
  fail(Status::internal, "no source for tensor {}", name);
}

std::vector<std::string> punctuation_of(const std::vector<std::string>& pieces) {
  std::set<std::string> out;
  for (const std::string& piece : pieces) {
    const bool special = (piece.starts_with('[') && piece.ends_with(']') && piece.size() > 1) ||
                         (piece.starts_with('<') && piece.ends_with('>') && piece.size() > 1) ||
                         piece.starts_with("##") || piece.starts_with("\xe2\x96\x81");
    if (special) continue;
    for (size_t at = 0; at < piece.size();) {
      utf8proc_int32_t code = -1;
      const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(&piece[at]),
                                      static_cast<utf8proc_ssize_t>(piece.size() - at), &code);
      if (n <= 0) break;
      if (is_punctuation(code)) out.insert(piece.substr(at, static_cast<size_t>(n)));
      at += static_cast<size_t>(n);
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace speech::fastconformer
