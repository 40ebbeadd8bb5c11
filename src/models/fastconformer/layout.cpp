#include "models/fastconformer/layout.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "formats/gguf.h"

namespace speech::fastconformer {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Axis `axis` of a tensor of `rank` axes: a width that no key holds.
int64_t width_of(const GgufFile& file, std::string_view name, size_t rank, size_t axis) {
  const TensorEntry& t = file.require(name);
  if (t.shape.size() != rank || t.shape[axis] < 1 || t.shape[axis] > 1 << 20) {
    fail(Status::model_file, "{}: tensor {} is {}, expected {} axes of 1 to 1048576", file.path(),
         name, t.shape_text(), rank);
  }
  return t.shape[axis];
}

// An axis of length 1 that is outermost may be missing: some writers drop it.
bool same_shape(std::vector<int64_t> a, std::vector<int64_t> b) {
  const auto strip = [](std::vector<int64_t>& s) {
    while (s.size() > 1 && s.front() == 1) s.erase(s.begin());
  };
  strip(a);
  strip(b);
  return a == b;
}

}  // namespace

std::vector<TensorSpec> layout_tensors(const Config& config, const Widths& w) {
  const EncoderConfig& e = config.encoder;
  const int64_t d = e.d_model, mels = config.frontend.n_mels, c = w.channels;
  std::vector<TensorSpec> out;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    out.push_back({std::move(name), std::move(shape)});
  };

  add("frontend.window", {w.window});
  add("frontend.filterbank", {mels, config.frontend.n_fft / 2 + 1});

  add("sub.conv.0.weight", {c, 1, 3, 3});
  add("sub.conv.0.bias", {c});
  for (int i = 1; i < e.subsampling_stages(); ++i) {
    const std::string p = "sub.conv." + std::to_string(i);
    add(p + ".dw.weight", {c, 1, 3, 3});
    add(p + ".dw.bias", {c});
    add(p + ".pw.weight", {c, c});
    add(p + ".pw.bias", {c});
  }
  add("sub.out.weight", {d, c * config.subsampled_mels()});
  add("sub.out.bias", {d});

  for (int n = 0; n < e.num_layers; ++n) {
    const std::string p = "blk." + std::to_string(n) + ".";
    const auto linear = [&](const char* name, int64_t rows, int64_t cols) {
      add(p + name + ".weight", {rows, cols});
      if (e.use_bias) add(p + name + ".bias", {rows});
    };
    const auto norm = [&](const char* name) {
      add(p + name + ".weight", {d});
      add(p + name + ".bias", {d});
    };
    norm("ff1_norm");
    linear("ff1_up", w.feed_forward, d);
    linear("ff1_down", d, w.feed_forward);
    norm("attn_norm");
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_out"}) linear(name, d, d);
    add(p + "attn_pos.weight", {d, d});
    add(p + "attn_pos_bias_u", {e.num_heads, e.head_size()});
    add(p + "attn_pos_bias_v", {e.num_heads, e.head_size()});
    norm("conv_norm");
    linear("conv_pw1_a", d, d);
    linear("conv_pw1_gate", d, d);
    add(p + "conv_dw.weight", {d, e.conv_kernel});
    add(p + "conv_dw.bias", {d});
    linear("conv_pw2", d, d);
    norm("ff2_norm");
    linear("ff2_up", w.feed_forward, d);
    linear("ff2_down", d, w.feed_forward);
    norm("out_norm");
  }

  const int64_t blank = config.decoder.blank, h = w.prediction;
  add("pred.embed.weight", {blank + 1, h});
  for (int i = 0; i < config.decoder.prediction_layers; ++i) {
    const std::string p = "pred.lstm." + std::to_string(i);
    add(p + ".ih.weight", {4 * h, h});
    add(p + ".hh.weight", {4 * h, h});
    add(p + ".bias", {4 * h});
  }
  add("joint.enc.weight", {w.joint, d});
  add("joint.enc.bias", {w.joint});
  add("joint.pred.weight", {w.joint, h});
  add("joint.pred.bias", {w.joint});
  add("joint.out.weight", {config.decoder.outputs(), w.joint});
  add("joint.out.bias", {config.decoder.outputs()});
  if (config.decoder.ctc) {
    add("ctc.out.weight", {blank + 1, d});
    add("ctc.out.bias", {blank + 1});
  }
  return out;
}

StorageClass storage_class(std::string_view name) {
  const bool matrix = name.ends_with(".weight") && !name.ends_with("dw.weight") &&
                      !name.ends_with("_norm.weight") && name != "sub.conv.0.weight";
  return matrix ? StorageClass::matrix : StorageClass::full;
}

Widths check_tensors(const GgufFile& file, const Config& config) {
  Widths w;
  w.window = width_of(file, "frontend.window", 1, 0);
  w.channels = width_of(file, "sub.conv.0.bias", 1, 0);
  w.feed_forward = width_of(file, "blk.0.ff1_up.weight", 2, 0);
  w.prediction = width_of(file, "pred.embed.weight", 2, 1);
  w.joint = width_of(file, "joint.enc.weight", 2, 0);
  if (w.window > config.frontend.n_fft) {
    fail(Status::model_file, "{}: frontend.window has {} samples, more than n_fft {}", file.path(),
         w.window, config.frontend.n_fft);
  }
  const std::vector<TensorSpec> specs = layout_tensors(config, w);
  std::unordered_set<std::string_view> known;
  for (const TensorSpec& spec : specs) {
    const TensorEntry& t = file.require(spec.name);
    if (!same_shape(t.shape, spec.shape)) {
      fail(Status::model_file, "{}: tensor {} is {}, expected {}", file.path(), spec.name,
           t.shape_text(), shape_text(spec.shape));
    }
    const DType type = t.type;
    const bool allowed = storage_class(spec.name) == StorageClass::full
                             ? type == DType::f32
                             : type == DType::f32 || type == DType::f16 || type == DType::q8_0 ||
                                   type == DType::q6_k || type == DType::q5_k ||
                                   type == DType::q4_k;
    if (!allowed) {
      fail(Status::model_file, "{}: tensor {} is {}, expected {}", file.path(), spec.name,
           t.type_name,
           storage_class(spec.name) == StorageClass::full ? "F32"
                                                          : "F32, F16, Q8_0, Q6_K, Q5_K or Q4_K");
    }
    known.insert(spec.name);
  }
  for (const TensorEntry& t : file.tensors()) {
    if (!known.contains(t.name)) {
      fail(Status::model_file, "{}: tensor {} is not one of this layout", file.path(), t.name);
    }
  }
  return w;
}

}  // namespace speech::fastconformer
