#include "models/qwen3/weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "models/qwen3/adapter.h"
#include "quant/codec.h"

namespace speech::qwen3 {
namespace {

std::optional<WeightType> weight_type(DType type) {
  switch (type) {
    case DType::f32:
      return WeightType::f32;
    case DType::f16:
      return WeightType::f16;
    case DType::bf16:
      return WeightType::bf16;
    case DType::q8_0:
      return WeightType::q8_0;
    case DType::q6_k:
      return WeightType::q6_k;
    case DType::q5_k:
      return WeightType::q5_k;
    case DType::q4_k:
      return WeightType::q4_k;
    default:
      return std::nullopt;
  }
}

std::string affine_name(const AffineFormat& f) {
  return fmt::format("int{}-g{}", f.bits, f.group);
}

// Takes tensors of one file by name and keeps account of which were used.
class Loader {
 public:
  Loader(std::shared_ptr<const TensorFile> file, const Config& config,
         const LoadQuantization& quantization, bool mapped, const Adapter* adapter = nullptr)
      : config_(config),
        quantization_(quantization),
        mapped_(mapped),
        adapter_(adapter),
        pool_(default_threads()) {
    weights_.file = std::move(file);
  }

  Weights& weights() { return weights_; }
  const TensorFile& file() const { return *weights_.file; }

  // A vector of `size` values as f32.
  Tensor vector(const std::string& name, int64_t size) {
    const TensorEntry& t = take(name);
    if (t.shape != std::vector<int64_t>{size}) wrong_shape(t, fmt::format("[{}]", size));
    (void)float_type(t, file().path());
    std::vector<float> values = to_f32(t);
    auto owned = std::make_unique<float[]>(values.size());
    std::copy(values.begin(), values.end(), owned.get());
    Tensor view = TensorAccess::make(owned.get(), {size});
    weights_.vectors.push_back(std::move(owned));
    weights_.bytes += values.size() * sizeof(float);
    return view;
  }

  // The matrix of a module ("model.layers.0.mlp.up_proj"), stored as `module`.weight.
  Weight matrix(const std::string& module, int64_t rows, int64_t cols) {
    const TensorEntry& t = take(module + ".weight");
    std::optional<AffineFormat> affine = packed_format(module, t, cols);
    Weight w = affine ? packed(module, t, *affine, rows, cols) : dense(t, rows, cols);
    const std::byte* in_file = w.data;
    const Delta* delta = adapter_ ? adapter_->find(t.name) : nullptr;
    if (delta) w = adapted(w, t, *delta);
    if (w.type != WeightType::affine && quantization_.bits != 0) w = quantize(w, t);
    if (!mapped_ && w.data == in_file) w = copied(w, module, t);
    weights_.bytes += static_cast<uint64_t>(w.bytes());
    bytes_by_type_[w.type == WeightType::affine ? affine_name(w.affine)
                                                : std::string(facts(w.type).label)] += w.bytes();
    return w;
  }

  // A tensor that may be there and is not wanted.
  void ignore(const std::string& name) { used_.insert(name); }

  // After the last tensor: names the type of most bytes, refuses what was not asked for.
  void finish() {
    for (const TensorEntry& t : file().tensors()) {
      if (!used_.count(t.name)) {
        fail(Status::model_file, "{}: tensor {} {} is not one of a Qwen3 model", file().path(),
             t.name, t.shape_text());
      }
    }
    auto most = std::max_element(bytes_by_type_.begin(), bytes_by_type_.end(),
                                 [](auto& a, auto& b) { return a.second < b.second; });
    weights_.type = most->first;
  }

 private:
  const TensorEntry& take(const std::string& name) {
    const TensorEntry& t = file().require(name);
    used_.insert(name);
    return t;
  }

  [[noreturn]] void wrong_shape(const TensorEntry& t, const std::string& expected) {
    fail(Status::model_file, "{}: tensor {} is {} {}, expected {}", file().path(), t.name,
         t.type_name, t.shape_text(), expected);
  }

  // The affine format of a module that is packed, by config.json's rule and the shapes found.
  std::optional<AffineFormat> packed_format(const std::string& module, const TensorEntry& t,
                                            int64_t cols) {
    const TensorEntry* scales = file().find(module + ".scales");
    std::optional<AffineFormat> said;
    if (config_.quantization) {
      auto it = config_.quantization->modules.find(module);
      if (it != config_.quantization->modules.end()) {
        said = it->second;
        if (!said && !scales) return std::nullopt;
      } else if (scales) {
        said = config_.quantization->format;
      }
    }
    if (!scales) {
      if (said) file().require(module + ".scales");
      return std::nullopt;
    }
    // Words and scales alone determine both numbers once the width is known.
    auto wrong = [&] {
      fail(Status::model_file,
           "{}: {}: weight {} {} and scales {} are not an affine format of width {}", file().path(),
           module, t.type_name, t.shape_text(), scales->shape_text(), cols);
    };
    if (t.type != DType::u32 || t.shape.size() != 2 || scales->shape.size() != 2 ||
        scales->shape[1] < 1 || t.shape[1] > cols) {
      wrong();
    }
    AffineFormat found;
    if (t.shape[1] * 32 % cols != 0 || cols % scales->shape[1] != 0) wrong();
    found.bits = static_cast<int>(t.shape[1] * 32 / cols);
    found.group = static_cast<int>(std::min<int64_t>(cols / scales->shape[1], 1 << 20));
    auto type = weight_type(scales->type);
    if (!type || facts(*type).block != 1) wrong();
    found.scale_type = *type;
    if (!valid_affine(found)) wrong();
    if (!said || said->bits != found.bits || said->group != found.group) {
      log_warn("{}: {} is {} by its shapes, {} by config.json; the shapes count", file().path(),
               module, affine_name(found), said ? affine_name(*said) : "dense");
    }
    return found;
  }

  Weight packed(const std::string& module, const TensorEntry& t, const AffineFormat& format,
                int64_t rows, int64_t cols) {
    const TensorEntry& scales = take(module + ".scales");
    const TensorEntry& biases = take(module + ".biases");
    std::vector<int64_t> groups{rows, cols / format.group};
    if (t.shape[0] != rows) wrong_shape(t, fmt::format("{} rows", rows));
    for (const TensorEntry* s : {&scales, &biases}) {
      if (s->shape != groups || s->type != scales.type) {
        wrong_shape(*s, fmt::format("{} [{}, {}]", scales.type_name, groups[0], groups[1]));
      }
    }
    Weight w;
    w.type = WeightType::affine;
    w.rows = rows;
    w.cols = cols;
    w.data = t.bytes.data();
    w.row_bytes = affine_packed_bytes(format, cols);
    w.affine = format;
    w.scales = scales.bytes.data();
    w.biases = biases.bytes.data();
    return w;
  }

  Weight dense(const TensorEntry& t, int64_t rows, int64_t cols) {
    auto type = weight_type(t.type);
    std::string expected = fmt::format("[{}, {}]", rows, cols);
    if (!type) {
      fail(Status::model_file,
           "{}: tensor {} has type {}; this library computes with F32, F16, BF16, Q8_0, Q6_K, "
           "Q5_K, Q4_K and MLX's affine formats",
           file().path(), t.name, t.type_name);
    }
    if (t.shape != std::vector<int64_t>{rows, cols} || cols % facts(*type).block != 0) {
      wrong_shape(t, expected);
    }
    Weight w;
    w.type = *type;
    w.rows = rows;
    w.cols = cols;
    w.data = t.bytes.data();
    w.row_bytes = row_bytes(*type, cols);
    return w;
  }

  Weight adapted(const Weight& w, const TensorEntry& t, const Delta& delta) {
    std::byte* data = weights_.memory.take(t.bytes.size());
    Adapter::apply(delta, t, {data, t.bytes.size()}, pool_);
    Weight a = w;
    a.data = data;
    file().release(t);
    return a;
  }

  // The same bytes in memory; their pages of the file need not stay resident.
  Weight copied(const Weight& w, const std::string& module, const TensorEntry& t) {
    auto copy = [&](const TensorEntry& from) {
      std::byte* to = weights_.memory.take(from.bytes.size());
      std::copy(from.bytes.begin(), from.bytes.end(), to);
      file().release(from);
      return to;
    };
    Weight c = w;
    c.data = copy(t);
    if (w.scales) {
      c.scales = copy(file().require(module + ".scales"));
      c.biases = copy(file().require(module + ".biases"));
    }
    return c;
  }

  Weight quantize(const Weight& w, const TensorEntry& t) {
    AffineFormat format{quantization_.bits, quantization_.group, w.type};
    if (w.cols % format.group != 0 || facts(w.type).block != 1) return w;
    int64_t groups = w.cols / format.group;
    int64_t scale_bytes = groups * facts(w.type).block_bytes;
    int64_t packed_bytes = affine_packed_bytes(format, w.cols);
    Weight q = w;
    q.type = WeightType::affine;
    q.affine = format;
    q.row_bytes = packed_bytes;
    std::byte* words =
        weights_.memory.take(static_cast<size_t>(w.rows * (packed_bytes + 2 * scale_bytes)));
    std::byte* scales = words + w.rows * packed_bytes;
    std::byte* biases = scales + w.rows * scale_bytes;
    q.data = words;
    q.scales = scales;
    q.biases = biases;
    constexpr int64_t kRows = 64;
    pool_.run((w.rows + kRows - 1) / kRows, [&](int64_t tile, int) {
      std::vector<float> row(static_cast<size_t>(w.cols));
      for (int64_t r = tile * kRows; r < std::min(w.rows, (tile + 1) * kRows); ++r) {
        decode_row(w.type, w.data + r * w.row_bytes, row.data(), w.cols);
        for (float v : row) {
          if (!std::isfinite(v)) {
            fail(Status::model_file, "{}: tensor {} has a value that is not finite", file().path(),
                 t.name);
          }
        }
        encode_affine_row(format, row.data(), words + r * packed_bytes, scales + r * scale_bytes,
                          biases + r * scale_bytes, w.cols);
      }
    });
    file().release(t);  // its pages need not stay resident: the packed copy is used from now on
    return q;
  }

  const Config& config_;
  LoadQuantization quantization_;
  bool mapped_;
  const Adapter* adapter_;
  ThreadPool pool_;
  Weights weights_;
  std::set<std::string> used_;
  std::map<std::string, int64_t> bytes_by_type_;
};

// Names of the two containers.
struct LayerNames {
  std::string prefix;
  const char *input_norm, *q, *k, *v, *o, *q_norm, *k_norm, *post_norm, *gate, *up, *down;
};

std::string layer_stage(int l) {
  return fmt::format("{:02d}_layer{}_", 10 + l, l);
}

void load_layer(Loader& load, const DecoderConfig& d, const LayerNames& names,
                DecoderLayer& layer) {
  auto name = [&](const char* part) { return names.prefix + part; };
  int64_t q_width = d.heads * d.head_dim, kv_width = d.kv_heads * d.head_dim;
  layer.input_norm = load.vector(name(names.input_norm) + ".weight", d.hidden);
  layer.q = load.matrix(name(names.q), q_width, d.hidden);
  layer.k = load.matrix(name(names.k), kv_width, d.hidden);
  layer.v = load.matrix(name(names.v), kv_width, d.hidden);
  layer.o = load.matrix(name(names.o), d.hidden, q_width);
  layer.q_norm = load.vector(name(names.q_norm) + ".weight", d.head_dim);
  layer.k_norm = load.vector(name(names.k_norm) + ".weight", d.head_dim);
  layer.post_norm = load.vector(name(names.post_norm) + ".weight", d.hidden);
  layer.gate = load.matrix(name(names.gate), d.intermediate, d.hidden);
  layer.up = load.matrix(name(names.up), d.intermediate, d.hidden);
  layer.down = load.matrix(name(names.down), d.hidden, d.intermediate);
}

Weights load(Loader& load, const Config& config, const char* embedding, const char* norm,
             const char* head, const std::function<LayerNames(int)>& names,
             const std::function<void(double)>& progress) {
  const DecoderConfig& d = config.decoder;
  Weights& w = load.weights();
  w.decoder.config = d;
  w.decoder.rope = make_rope_table(d.rope);
  w.decoder.stage_prefix = layer_stage;
  w.embedding = load.matrix(embedding, config.vocabulary, d.hidden);
  w.final_norm = load.vector(std::string(norm) + ".weight", d.hidden);
  for (int l = 0; l < d.layers; ++l) {
    w.decoder.layers.emplace_back();
    load_layer(load, d, names(l), w.decoder.layers.back());
    if (progress) progress((l + 1.0) / d.layers);
  }
  if (config.tied) {
    w.head = w.embedding;
    for (const char* part : {".weight", ".scales", ".biases"})
      load.ignore(std::string(head) + part);
  } else {
    w.head = load.matrix(head, config.vocabulary, d.hidden);
  }
  load.finish();
  return std::move(w);
}

}  // namespace

WeightType float_type(const TensorEntry& t, const std::string& path) {
  std::optional<WeightType> type = weight_type(t.type);
  if (type != WeightType::f32 && type != WeightType::f16 && type != WeightType::bf16) {
    fail(Status::model_file, "{}: tensor {} has type {}, expected F32, F16 or BF16", path, t.name,
         t.type_name);
  }
  return *type;
}

std::string stored_type(const TensorFile& file, const Config& config) {
  std::map<std::string, size_t> bytes;
  for (const TensorEntry& t : file.tensors()) {
    constexpr std::string_view kEnd = ".weight";
    if (t.shape.size() != 2 || !t.name.ends_with(kEnd)) continue;
    std::string module = t.name.substr(0, t.name.size() - kEnd.size()), type = t.type_name;
    if (config.quantization && file.find(module + ".scales")) {
      const auto& q = *config.quantization;
      auto it = q.modules.find(module);
      type = affine_name(it != q.modules.end() && it->second ? *it->second : q.format);
    }
    bytes[type] += t.bytes.size();
  }
  auto most = std::max_element(bytes.begin(), bytes.end(),
                               [](auto& a, auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "" : most->first;
}

Weights load_folder(std::shared_ptr<const TensorFile> file, const Config& config,
                    const LoadQuantization& quantization, bool mapped, const Adapter* adapter,
                    const std::function<void(double)>& progress) {
  Loader loader(std::move(file), config, quantization, mapped, adapter);
  auto names = [](int l) {
    return LayerNames{fmt::format("model.layers.{}.", l),
                      "input_layernorm",
                      "self_attn.q_proj",
                      "self_attn.k_proj",
                      "self_attn.v_proj",
                      "self_attn.o_proj",
                      "self_attn.q_norm",
                      "self_attn.k_norm",
                      "post_attention_layernorm",
                      "mlp.gate_proj",
                      "mlp.up_proj",
                      "mlp.down_proj"};
  };
  return load(loader, config, "model.embed_tokens", "model.norm", "lm_head", names, progress);
}

Weights load_gguf(std::shared_ptr<const TensorFile> file, const Config& config, bool mapped,
                  const std::function<void(double)>& progress) {
  Loader loader(std::move(file), config, {}, mapped);
  auto names = [](int l) {
    return LayerNames{fmt::format("blk.{}.", l),
                      "attn_norm",
                      "attn_q",
                      "attn_k",
                      "attn_v",
                      "attn_output",
                      "attn_q_norm",
                      "attn_k_norm",
                      "ffn_norm",
                      "ffn_gate",
                      "ffn_up",
                      "ffn_down"};
  };
  return load(loader, config, "token_embd", "output_norm", "output", names, progress);
}

}  // namespace speech::qwen3
