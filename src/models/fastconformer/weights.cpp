#include "models/fastconformer/weights.h"

#include <cstring>

#include "formats/gguf.h"

namespace speech::fastconformer {
namespace {

class Loader {
 public:
  Loader(const GgufFile& file, Weights& out) : file_(file), out_(out) {}

  Weight matrix(const std::string& name) const {
    const TensorEntry& t = file_.require(name);
    Weight w;
    w.type = *weight_type_from_ggml(ggml_type(t.type)->number);
    w.cols = t.shape.back();
    w.rows = t.elements() / w.cols;
    w.data = t.bytes.data();
    w.row_bytes = row_bytes(w.type, w.cols);
    return w;
  }

  // A tensor of F32 values; copied only when the file does not keep floats aligned.
  Tensor floats(const std::string& name, std::span<const int64_t> shape) {
    const TensorEntry& t = file_.require(name);
    auto* data = reinterpret_cast<const float*>(t.bytes.data());
    if (reinterpret_cast<uintptr_t>(data) % alignof(float) != 0) {
      out_.copies.push_back(std::make_unique<float[]>(static_cast<size_t>(t.elements())));
      std::memcpy(out_.copies.back().get(), t.bytes.data(), t.bytes.size());
      data = out_.copies.back().get();
    }
    return TensorAccess::make(const_cast<float*>(data), shape);  // operations do not write weights
  }
  Tensor floats(const std::string& name) { return floats(name, file_.require(name).shape); }

  Linear linear(const std::string& name, bool bias) {
    Linear l{matrix(name + ".weight"), {}};
    if (bias) l.bias = floats(name + ".bias");
    return l;
  }
  Norm norm(const std::string& name) { return {floats(name + ".weight"), floats(name + ".bias")}; }

 private:
  const GgufFile& file_;
  Weights& out_;
};

}  // namespace

Weights load_weights(std::shared_ptr<const GgufFile> file, const Config& config) {
  Weights w;
  w.file = std::move(file);
  Loader load(*w.file, w);
  const EncoderConfig& e = config.encoder;

  w.window = load.floats("frontend.window");
  w.filterbank = load.floats("frontend.filterbank");

  const int64_t channels = w.file->require("sub.conv.0.bias").elements();
  const int64_t conv_shape[] = {channels, 9}, dw_shape[] = {channels, 3, 3};
  w.subsampling.conv = load.floats("sub.conv.0.weight", conv_shape);
  w.subsampling.conv_bias = load.floats("sub.conv.0.bias");
  for (int i = 1; i < e.subsampling_stages(); ++i) {
    const std::string p = "sub.conv." + std::to_string(i);
    w.subsampling.stages.push_back({load.floats(p + ".dw.weight", dw_shape),
                                    load.floats(p + ".dw.bias"), load.linear(p + ".pw", true)});
  }
  w.subsampling.out = load.linear("sub.out", true);

  for (int n = 0; n < e.num_layers; ++n) {
    const std::string p = "blk." + std::to_string(n) + ".";
    const auto linear = [&](const char* name) { return load.linear(p + name, e.use_bias); };
    Layer l;
    l.ff1_norm = load.norm(p + "ff1_norm");
    l.ff1_up = linear("ff1_up");
    l.ff1_down = linear("ff1_down");
    l.attn_norm = load.norm(p + "attn_norm");
    l.q = linear("attn_q");
    l.k = linear("attn_k");
    l.v = linear("attn_v");
    l.attn_out = linear("attn_out");
    l.pos = load.matrix(p + "attn_pos.weight");
    l.pos_bias_u = load.floats(p + "attn_pos_bias_u");
    l.pos_bias_v = load.floats(p + "attn_pos_bias_v");
    l.conv_norm = load.norm(p + "conv_norm");
    l.conv_value = linear("conv_pw1_a");
    l.conv_gate = linear("conv_pw1_gate");
    l.conv_dw = load.floats(p + "conv_dw.weight");
    l.conv_dw_bias = load.floats(p + "conv_dw.bias");
    l.conv_out = linear("conv_pw2");
    l.ff2_norm = load.norm(p + "ff2_norm");
    l.ff2_up = linear("ff2_up");
    l.ff2_down = linear("ff2_down");
    l.out_norm = load.norm(p + "out_norm");
    w.layers.push_back(std::move(l));
  }

  w.embed = load.matrix("pred.embed.weight");
  for (int i = 0; i < config.decoder.prediction_layers; ++i) {
    const std::string p = "pred.lstm." + std::to_string(i);
    w.lstm.push_back(
        {load.matrix(p + ".ih.weight"), load.matrix(p + ".hh.weight"), load.floats(p + ".bias")});
  }
  w.joint_enc = load.linear("joint.enc", true);
  w.joint_pred = load.linear("joint.pred", true);
  w.joint_out = load.linear("joint.out", true);
  if (config.decoder.ctc) w.ctc = load.linear("ctc.out", true);
  return w;
}

}  // namespace speech::fastconformer
