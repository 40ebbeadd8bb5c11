#include "models/silero_vad/weights.h"

#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "formats/gguf.h"
#include "models/general_info.h"

namespace speech::silero_vad {
namespace {

// Far above any real model; keeps products of sizes small.
constexpr int64_t kLargestSize = 1 << 16;

int64_t size_key(const GgufFile& file, const char* key, int64_t least) {
  int64_t value = file.get_u32(key);
  if (value < least || value > kLargestSize) {
    fail(Status::model_file, "{}: {} is {}, expected {} to {}", file.path(), key, value, least,
         kLargestSize);
  }
  return value;
}

double fraction_key(const GgufFile& file, const char* key) {
  double value = file.get_f64(key);
  if (!(value >= 0 && value <= 1)) {
    fail(Status::model_file, "{}: {} is {}, expected 0 to 1", file.path(), key, value);
  }
  return value;
}

std::vector<int64_t> list_key(const GgufFile& file, const char* key, int64_t least) {
  std::vector<int64_t> list;
  for (int32_t value : file.get_i32s(key)) {
    if (value < least || value > kLargestSize) {
      fail(Status::model_file, "{}: {} holds {}, expected {} to {}", file.path(), key, value, least,
           kLargestSize);
    }
    list.push_back(value);
  }
  return list;
}

// A tensor of F32 and `rank` axes; sizes that are not -1 must be these.
const TensorEntry& tensor(const GgufFile& file, const std::string& name,
                          std::initializer_list<int64_t> shape) {
  const TensorEntry& entry = file.require(name);
  if (entry.type != DType::f32) {
    fail(Status::model_file, "{}: tensor {} is {}; Silero VAD is kept in F32 only", file.path(),
         name, entry.type_name);
  }
  bool fits = entry.shape.size() == shape.size();
  std::string wanted;
  size_t axis = 0;
  for (int64_t size : shape) {
    wanted += (axis ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
    if (fits) {
      int64_t found = entry.shape[axis];
      fits = found >= 1 && found <= kLargestSize && (size < 0 || found == size);
    }
    ++axis;
  }
  if (!fits) {
    fail(Status::model_file, "{}: tensor {} has shape {}, expected [{}]", file.path(), name,
         entry.shape_text(), wanted);
  }
  return entry;
}

// Config and the shapes of all matrices; `use` sees each tensor with the place of its values.
Weights read(const GgufFile& file,
             const std::function<void(const TensorEntry&, std::vector<float>&)>& use) {
  Weights w;
  Config& c = w.config;
  const std::string& path = file.path();
  check_layout(file, 1);
  c.rate = file.get_u32("speech.sample_rate");
  if (c.rate < 1 || c.rate > 1000000) {
    fail(Status::model_file, "{}: speech.sample_rate is {} Hz", path, c.rate);
  }
  c.chunk = size_key(file, "silero-vad.chunk_size", 1);
  c.context = size_key(file, "silero-vad.context_size", 0);
  c.n_fft = size_key(file, "silero-vad.stft.n_fft", 2);
  c.hop = size_key(file, "silero-vad.stft.hop_length", 1);
  c.reflect = size_key(file, "silero-vad.stft.reflect", 0);
  c.strides = list_key(file, "silero-vad.encoder.strides", 1);
  c.padding = list_key(file, "silero-vad.encoder.padding", 0);
  c.threshold = fraction_key(file, "silero-vad.threshold");
  c.neg_threshold_offset = fraction_key(file, "silero-vad.neg_threshold_offset");
  c.neg_threshold_floor = fraction_key(file, "silero-vad.neg_threshold_floor");
  c.min_speech_ms = file.get_u32("silero-vad.min_speech_duration_ms");
  c.min_silence_ms = file.get_u32("silero-vad.min_silence_duration_ms");
  c.speech_pad_ms = file.get_u32("silero-vad.speech_pad_ms");
  c.min_cut_silence_ms = file.get_u32("silero-vad.min_silence_at_max_speech_ms");
  if (c.context > c.chunk) {
    fail(Status::model_file, "{}: a context of {} samples does not fit into a chunk of {}", path,
         c.context, c.chunk);
  }
  if (c.reflect >= c.input()) {
    fail(Status::model_file, "{}: {} samples cannot be reflected of {}", path, c.reflect,
         c.input());
  }
  if (c.n_fft % 2 != 0 || c.n_fft > c.padded()) {
    fail(Status::model_file, "{}: silero-vad.stft.n_fft is {}, expected an even number up to {}",
         path, c.n_fft, c.padded());
  }
  if (c.strides.size() != c.padding.size() || c.strides.empty() || c.strides.size() > 64) {
    fail(Status::model_file, "{}: the encoder has {} strides and {} paddings", path,
         c.strides.size(), c.padding.size());
  }
  std::set<const TensorEntry*> taken;
  const auto take = [&](const TensorEntry& entry, std::vector<float>& values) {
    taken.insert(&entry);
    use(entry, values);
  };
  take(tensor(file, "stft.basis", {2 * c.bins(), c.n_fft}), w.basis);
  int64_t frames = c.frames(), channels = c.bins();
  for (size_t i = 0; i < c.strides.size(); ++i) {
    std::string name = fmt::format("encoder.{}.", i);
    const TensorEntry& weight = tensor(file, name + "weight", {-1, channels, -1});
    Weights::Conv conv{weight.shape[0], channels, weight.shape[2], {}, {}};
    if (c.padding[i] >= conv.taps) {
      fail(Status::model_file, "{}: silero-vad.encoder.padding is {} for {} taps", path,
           c.padding[i], conv.taps);
    }
    frames = frames + 2 * c.padding[i] < conv.taps
                 ? 0
                 : (frames + 2 * c.padding[i] - conv.taps) / c.strides[i] + 1;
    if (frames < 1) fail(Status::model_file, "{}: encoder block {} leaves no frame", path, i);
    take(weight, conv.weight);
    take(tensor(file, name + "bias", {conv.out}), conv.bias);
    channels = conv.out;
    w.encoder.push_back(std::move(conv));
  }
  if (frames != 1) {
    fail(Status::model_file, "{}: the encoder leaves {} frames of a chunk, expected 1", path,
         frames);
  }
  w.features = channels;
  const TensorEntry& hh = tensor(file, "lstm.hh.weight", {-1, -1});
  w.hidden = hh.shape[1];
  take(tensor(file, "lstm.hh.weight", {4 * w.hidden, w.hidden}), w.hh);
  take(tensor(file, "lstm.ih.weight", {4 * w.hidden, w.features}), w.ih);
  take(tensor(file, "lstm.bias", {4 * w.hidden}), w.lstm_bias);
  take(tensor(file, "decoder.weight", {1, w.hidden}), w.decoder);
  take(tensor(file, "decoder.bias", {1}), w.decoder_bias);
  for (const TensorEntry& entry : file.tensors()) {
    if (taken.contains(&entry)) continue;
    fail(Status::model_file, "{}: tensor {} is not one of this layout", path, entry.name);
  }
  return w;
}

}  // namespace

Config read_config(const GgufFile& file) {
  return read(file, [](const TensorEntry&, std::vector<float>&) {}).config;
}

Weights read_weights(const GgufFile& file) {
  return read(file, [&file](const TensorEntry& entry, std::vector<float>& values) {
    values = to_f32(entry);
    for (float v : values) {
      if (!std::isfinite(v)) {
        fail(Status::model_file, "{}: tensor {} holds a value that is not finite", file.path(),
             entry.name);
      }
    }
  });
}

}  // namespace speech::silero_vad
