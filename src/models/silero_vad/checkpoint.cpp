#include "models/silero_vad/checkpoint.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/sha256.h"
#include "formats/gguf.h"

namespace speech::silero_vad {
namespace {

// The names of one kind of export; {} is the number of the block.
struct Names {
  const char *basis, *encoder_weight, *encoder_bias;
  int first_block;
  const char* lstm;  // prefix of weight_ih, weight_hh, bias_ih, bias_hh; null: operands of an ONNX
                     // LSTM that the export numbered
  const char *decoder_weight, *decoder_bias;
};

constexpr Names kExports[] = {
    // silero_vad.jit, .onnx, _half, _16k_op15, _op18_ifless, _openvino: the modules' own names,
    // behind a prefix where a file holds two models.
    {"stft.forward_basis_buffer", "encoder.{}.reparam_conv.weight", "encoder.{}.reparam_conv.bias",
     0, "decoder.rnn.", "decoder.decoder.2.weight", "decoder.decoder.2.bias"},
    // silero_vad_16k_sequence.onnx
    {"stft.forward_basis_buffer", "encoder.{}.weight", "encoder.{}.bias", 0, nullptr,
     "output.weight", "output.bias"},
    // silero_vad_16k.safetensors
    {"stft_conv.weight", "conv{}.weight", "conv{}.bias", 1, "lstm_cell.", "final_conv.weight",
     "final_conv.bias"},
};

constexpr char kNumbered[] = "onnx::LSTM_";

// What the checkpoints leave to the code: they hold matrices only.
Config config_of(int rate) {
  Config c;
  if (rate == 8000) {
    c.rate = 8000;
    c.chunk /= 2, c.context /= 2, c.n_fft /= 2, c.hop /= 2, c.reflect /= 2;
  }
  return c;
}

std::string block_name(const char* pattern, int block) {
  return fmt::format(fmt::runtime(pattern), block);
}

struct Found {
  int rate;
  const Names* names;
  std::string prefix;
};

std::vector<Found> find_models(const TensorFile& file) {
  std::vector<Found> found;
  if (file.format() == "gguf") return found;
  for (const TensorEntry& entry : file.tensors()) {
    for (const Names& names : kExports) {
      if (!entry.name.ends_with(names.basis) || entry.shape.size() != 3) continue;
      std::string prefix =
          entry.name.substr(0, entry.name.size() - std::string(names.basis).size());
      if (!file.find(prefix + block_name(names.encoder_weight, names.first_block)) ||
          !file.find(prefix + names.decoder_weight)) {
        continue;
      }
      for (int rate : {16000, 8000}) {
        if (entry.shape[2] == config_of(rate).n_fft) found.push_back({rate, &names, prefix});
      }
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.rate > b.rate; });
  return found;
}

std::vector<float> values(const TensorFile& file, const std::string& name,
                          std::vector<int64_t> shape) {
  const TensorEntry& entry = file.require(name);
  if (entry.shape != shape) {
    TensorEntry wanted;
    wanted.shape = std::move(shape);
    fail(Status::model_file, "{}: tensor {} has shape {}, expected {}", file.path(), name,
         entry.shape_text(), wanted.shape_text());
  }
  std::vector<float> v = to_f32(entry);
  for (float x : v) {
    if (!std::isfinite(x)) {
      fail(Status::model_file, "{}: tensor {} holds a value that is not finite", file.path(), name);
    }
  }
  return v;
}

// Rows of an ONNX LSTM, gates i o f g, as PyTorch's i f g o.
std::vector<float> reorder_gates(std::span<const float> rows, size_t gate) {
  std::vector<float> out;
  for (size_t from : {0, 2, 3, 1}) {
    auto part = rows.subspan(from * gate, gate);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

struct Lstm {
  std::vector<float> ih, hh, bias_ih, bias_hh;
};

Lstm read_lstm(const TensorFile& file, const Found& model, int64_t features, int64_t hidden) {
  if (model.names->lstm) {
    std::string prefix = model.prefix + model.names->lstm;
    return {values(file, prefix + "weight_ih", {4 * hidden, features}),
            values(file, prefix + "weight_hh", {4 * hidden, hidden}),
            values(file, prefix + "bias_ih", {4 * hidden}),
            values(file, prefix + "bias_hh", {4 * hidden})};
  }
  // The operands W, R and B of the one LSTM have numbers in this order.
  std::vector<std::pair<int64_t, std::string>> operands;
  for (const TensorEntry& entry : file.tensors()) {
    if (!entry.name.starts_with(kNumbered)) continue;
    operands.emplace_back(std::atoll(entry.name.c_str() + sizeof kNumbered - 1), entry.name);
  }
  std::sort(operands.begin(), operands.end());
  if (operands.size() != 3) {
    fail(Status::model_file, "{}: found {} tensors {}N, expected the 3 of one LSTM", file.path(),
         operands.size(), kNumbered);
  }
  auto h = static_cast<size_t>(hidden), f = static_cast<size_t>(features);
  std::vector<float> bias = values(file, operands[2].second, {1, 8 * hidden});
  auto both = std::span<const float>(bias);
  return {reorder_gates(values(file, operands[0].second, {1, 4 * hidden, features}), h * f),
          reorder_gates(values(file, operands[1].second, {1, 4 * hidden, hidden}), h * h),
          reorder_gates(both.first(4 * h), h), reorder_gates(both.subspan(4 * h), h)};
}

// The first 16 digits of the SHA-256 of the fifteen tensors in the order they are read. Values that
// come with the package but belong to no release have no version.
struct Release {
  std::string_view hash, version, tree;
};

constexpr Release kReleases[] = {
    {"5afe96454b4595a9", "v6.2", "5cd7945676eb32225748052e2e6a0580e4686a08"},  // 16 kHz
    {"5aeddb26baafaac8", "v6.2", "5cd7945676eb32225748052e2e6a0580e4686a08"},  // 8 kHz
    {"cfe2bb46ba2bfd57", "v6.0", "v6.0"},
    {"c05cf40283a93d90", "v6.0", "v6.0"},
    {"b8df2e6e32753b7a", "v5", "v5.1.2"},  // v5.0 to v5.1.2 hold the same values
    {"6e80b19e3ab42154", "v5", "v5.1.2"},
    {"9209d82de83a3053", "", ""},  // silero_vad_16k.safetensors
    {"8b96b44ab552b3c2", "", ""},  // 8 kHz of silero_vad_op18_ifless.onnx
};

}  // namespace

std::vector<int> checkpoint_rates(const TensorFile& file) {
  std::vector<int> rates;
  for (const Found& model : find_models(file)) rates.push_back(model.rate);
  return rates;
}

Checkpoint read_checkpoint(const TensorFile& file, int rate) {
  std::vector<Found> models = find_models(file);
  auto model = std::find_if(models.begin(), models.end(),
                            [&](const Found& m) { return rate == 0 || m.rate == rate; });
  if (models.empty()) {
    fail(Status::model_file, "{} is no Silero VAD checkpoint of version 5 or 6", file.path());
  }
  if (model == models.end()) {
    fail_option(Status::invalid_argument, "rate", "{} holds no model for {} Hz", file.path(), rate);
  }
  Checkpoint checkpoint;
  Weights& w = checkpoint.weights;
  w.config = config_of(model->rate);
  const Names& names = *model->names;
  const std::string& prefix = model->prefix;
  Sha256 hash;
  auto add = [&hash](const std::vector<float>& v) {
    hash.update(std::as_bytes(std::span(v)));
    return v;
  };

  w.basis = add(values(file, prefix + names.basis, {2 * w.config.bins(), 1, w.config.n_fft}));
  int64_t channels = w.config.bins();
  for (size_t i = 0; i < w.config.strides.size(); ++i) {
    int block = names.first_block + static_cast<int>(i);
    std::string weight = prefix + block_name(names.encoder_weight, block);
    const TensorEntry& entry = file.require(weight);
    int64_t out = entry.shape.empty() ? 0 : entry.shape[0];
    Weights::Conv conv{out, channels, 3, {}, {}};
    conv.weight = add(values(file, weight, {out, channels, conv.taps}));
    conv.bias = add(values(file, prefix + block_name(names.encoder_bias, block), {out}));
    channels = out;
    w.encoder.push_back(std::move(conv));
  }
  const TensorEntry& decoder = file.require(prefix + names.decoder_weight);
  w.features = channels;
  w.hidden = decoder.shape.size() == 3 ? decoder.shape[1] : 0;
  Lstm lstm = read_lstm(file, *model, w.features, w.hidden);
  w.ih = add(lstm.ih);
  w.hh = add(lstm.hh);
  add(lstm.bias_ih);
  add(lstm.bias_hh);
  for (size_t i = 0; i < lstm.bias_ih.size(); ++i) {
    w.lstm_bias.push_back(lstm.bias_ih[i] + lstm.bias_hh[i]);
  }
  w.decoder = add(values(file, prefix + names.decoder_weight, {1, w.hidden, 1}));
  w.decoder_bias = add(values(file, prefix + names.decoder_bias, {1}));

  std::string digits = hash.hex();
  for (const Release& release : kReleases) {
    if (!digits.starts_with(release.hash)) continue;
    checkpoint.published = true;
    checkpoint.version = release.version;
    if (!release.tree.empty()) {
      checkpoint.source_url = fmt::format("{}/tree/{}", kRepository, release.tree);
    }
  }
  return checkpoint;
}

std::string size_label(const Weights& w) {
  size_t count = w.basis.size() + w.ih.size() + w.hh.size() + w.lstm_bias.size() +
                 w.decoder.size() + w.decoder_bias.size();
  for (const Weights::Conv& conv : w.encoder) count += conv.weight.size() + conv.bias.size();
  return fmt::format("{}K", count / 1000);
}

void write_gguf(const Checkpoint& checkpoint, const std::string& name, GgufWriter& writer,
                OutputFile& out) {
  const Weights& w = checkpoint.weights;
  const Config& c = w.config;
  auto u32 = [&writer](const char* key, int64_t value) {
    writer.add_u32(key, static_cast<uint32_t>(value));
  };
  auto i32s = [&writer](const char* key, const std::vector<int64_t>& values) {
    writer.add_i32s(key, std::vector<int32_t>(values.begin(), values.end()));
  };
  writer.add_string("general.architecture", kName);
  writer.add_string("general.name", name.empty() ? kName : name);
  // Values of no release may be anyone's: nothing is said about where they come from.
  if (checkpoint.published) writer.add_string("general.organization", kOrganization);
  writer.add_string("general.basename", kName);
  writer.add_string("general.size_label", size_label(w));
  if (!checkpoint.version.empty()) writer.add_string("general.version", checkpoint.version);
  if (checkpoint.published) {
    writer.add_string("general.license", kLicense);
    if (!checkpoint.source_url.empty()) {
      writer.add_string("general.source.url", checkpoint.source_url);
    }
    writer.add_string("general.source.repo_url", kRepository);
  }
  u32("general.file_type", 0);
  u32("speech.layout", 1);
  writer.add_string("speech.requires", "0.8.0");
  writer.add_string("speech.task", "detection");
  u32("speech.sample_rate", c.rate);
  u32("silero-vad.chunk_size", c.chunk);
  u32("silero-vad.context_size", c.context);
  u32("silero-vad.stft.n_fft", c.n_fft);
  u32("silero-vad.stft.hop_length", c.hop);
  u32("silero-vad.stft.reflect", c.reflect);
  i32s("silero-vad.encoder.strides", c.strides);
  i32s("silero-vad.encoder.padding", c.padding);
  writer.add_f64("silero-vad.threshold", c.threshold);
  u32("silero-vad.min_speech_duration_ms", c.min_speech_ms);
  u32("silero-vad.min_silence_duration_ms", c.min_silence_ms);
  u32("silero-vad.speech_pad_ms", c.speech_pad_ms);
  u32("silero-vad.min_silence_at_max_speech_ms", c.min_cut_silence_ms);
  writer.add_f64("silero-vad.neg_threshold_offset", c.neg_threshold_offset);
  writer.add_f64("silero-vad.neg_threshold_floor", c.neg_threshold_floor);

  std::vector<const std::vector<float>*> data;
  auto tensor = [&](const std::string& tensor_name, std::vector<int64_t> shape,
                    const std::vector<float>& values) {
    writer.add_tensor(tensor_name, shape, *ggml_type(DType::f32));
    data.push_back(&values);
  };
  tensor("stft.basis", {2 * c.bins(), c.n_fft}, w.basis);
  for (size_t i = 0; i < w.encoder.size(); ++i) {
    const Weights::Conv& conv = w.encoder[i];
    tensor(fmt::format("encoder.{}.weight", i), {conv.out, conv.in, conv.taps}, conv.weight);
    tensor(fmt::format("encoder.{}.bias", i), {conv.out}, conv.bias);
  }
  tensor("lstm.ih.weight", {4 * w.hidden, w.features}, w.ih);
  tensor("lstm.hh.weight", {4 * w.hidden, w.hidden}, w.hh);
  tensor("lstm.bias", {4 * w.hidden}, w.lstm_bias);
  tensor("decoder.weight", {1, w.hidden}, w.decoder);
  tensor("decoder.bias", {1}, w.decoder_bias);
  writer.begin(out);
  for (const auto* values : data) writer.write(std::as_bytes(std::span(*values)));
}

}  // namespace speech::silero_vad
