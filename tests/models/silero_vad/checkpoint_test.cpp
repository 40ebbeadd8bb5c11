#include "models/silero_vad/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/sha256.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "models/silero_vad/silero_test.h"

namespace speech::silero_vad {
namespace {

namespace fs = std::filesystem;

class SileroCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "speech-silero-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Converts through the registry's entry.
  std::string convert(const std::string& source, const ConvertOptions& options = {}) {
    auto file = open_tensor_file(source);
    EXPECT_TRUE(silero_vad_family.recognizes(source, *file));
    std::string out = path("out.gguf");
    GgufWriter writer;
    OutputFile output(out);
    silero_vad_family.convert(source, *file, options, writer, output);
    writer.finish();
    output.commit();
    return out;
  }
  static std::string hash(const std::string& file) {
    return sha256_hex(MappedFile::open(file)->bytes());
  }

  struct Named {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::string save(const std::vector<Named>& tensors) {
    SafetensorsWriter writer;
    for (const Named& t : tensors) writer.add_tensor(t.name, DType::f32, t.shape);
    std::string file = path("made.safetensors");
    OutputFile out(file);
    writer.begin(out);
    for (const Named& t : tensors) writer.write(std::as_bytes(std::span(t.values)));
    writer.finish();
    out.commit();
    return file;
  }
  static std::vector<Named> all(const TensorFile& file, const std::string& prefix) {
    std::vector<Named> tensors;
    for (const TensorEntry& t : file.tensors()) {
      if (!t.name.starts_with(prefix)) continue;
      tensors.push_back({t.name.substr(prefix.size()), t.shape, to_f32(t)});
    }
    return tensors;
  }

  fs::path folder_;
};

TEST_F(SileroCheckpoint, GivesThePublishedFiles) {
  nlohmann::json e = expected("gguf");
  for (const char* source : {"checkpoint/silero_vad.jit", "checkpoint/silero_vad.onnx"}) {
    std::string out = convert(data(source));
    EXPECT_EQ(fs::file_size(out), e["silero-vad-309K-v6.2-F32.gguf"]["bytes"]);
    EXPECT_EQ(hash(out), e["silero-vad-309K-v6.2-F32.gguf"]["sha256"]) << source;
    out = convert(data(source), {.rate = 8000});
    EXPECT_EQ(hash(out), e["silero-vad-8k-235K-v6.2-F32.gguf"]["sha256"]) << source;
  }
  EXPECT_EQ(hash(model_file()), e["silero-vad-309K-v6.2-F32.gguf"]["sha256"]);
}

TEST_F(SileroCheckpoint, ValuesOfNoReleaseGetNoVersion) {
  std::string source = data("checkpoint/silero_vad_16k.safetensors");
  auto file = GgufFile::open(convert(source));
  EXPECT_FALSE(file->has("general.version"));
  EXPECT_EQ(file->get_string("general.organization"), "snakers4");
  EXPECT_EQ(file->get_string("general.size_label"), "309K");
  ModelInfo info = silero_vad_family.read_info(*file);
  EXPECT_EQ(info.version, "");
  EXPECT_EQ(info.task, Task::detection);
  // It also runs as it is.
  auto model = silero_vad_family.load_checkpoint(source, open_tensor_file(source), {});
  EXPECT_EQ(model->info().version, "");
  EXPECT_EQ(model->info().size_label, "309K");
  EXPECT_EQ(model->info().sample_rate, 16000);
  auto& detector = dynamic_cast<Detector&>(*model);
  std::vector<float> samples = recording("silero_test.wav");
  // 17 regions, where v6.2 finds 19.
  EXPECT_EQ(detector.detect({samples, 16000}, {}, {}).size(), 17u);

  // Anyone's values: nothing is said of their origin.
  auto tensors = all(*open_tensor_file(source), "");
  tensors[0].values[0] += 1;
  file = GgufFile::open(convert(save(tensors)));
  for (const char* key : {"general.version", "general.organization", "general.license",
                          "general.source.url", "general.source.repo_url"}) {
    EXPECT_FALSE(file->has(key)) << key;
  }
  silero_vad_family.read_info(*file);
}

// The names and the order of gates (i o f g) of the export that runs a sequence of chunks.
TEST_F(SileroCheckpoint, GatesInTheOrderOfOnnx) {
  auto jit = open_tensor_file(data("checkpoint/silero_vad.jit"));
  std::vector<Named> tensors;
  std::vector<float> bias;
  for (Named t : all(*jit, "_model.")) {
    auto replace = [&t](const std::string& from, const std::string& to) {
      if (auto at = t.name.find(from); at != std::string::npos) t.name.replace(at, from.size(), to);
    };
    replace(".reparam_conv", "");
    replace("decoder.decoder.2", "output");
    if (t.name.starts_with("decoder.rnn.")) {
      std::vector<float> turned;
      size_t gate = t.values.size() / 4;
      for (size_t from : {0, 3, 1, 2}) {
        turned.insert(turned.end(), t.values.begin() + static_cast<std::ptrdiff_t>(from * gate),
                      t.values.begin() + static_cast<std::ptrdiff_t>((from + 1) * gate));
      }
      if (t.shape.size() == 1) {
        bias.insert(bias.end(), turned.begin(), turned.end());
        continue;
      }
      t.name = t.name.ends_with("ih") ? "onnx::LSTM_99" : "onnx::LSTM_100";
      t.shape.insert(t.shape.begin(), 1);
      t.values = turned;
    }
    tensors.push_back(std::move(t));
  }
  tensors.push_back({"onnx::LSTM_101", {1, 1024}, bias});
  EXPECT_EQ(hash(convert(save(tensors))),
            expected("gguf")["silero-vad-309K-v6.2-F32.gguf"]["sha256"]);
}

TEST_F(SileroCheckpoint, BrokenCheckpointsSayWhatIsWrong) {
  std::string source = data("checkpoint/silero_vad_16k.safetensors");
  const auto good = all(*open_tensor_file(source), "");
  auto error = [&](const std::vector<Named>& tensors, int rate = 0) -> std::string {
    try {
      read_checkpoint(*open_tensor_file(save(tensors)), rate);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  auto named = [&](std::vector<Named>& tensors, const std::string& name) -> Named& {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const Named& t) { return t.name == name; });
  };
  auto tensors = good;
  named(tensors, "lstm_cell.bias_hh").name = "other";
  EXPECT_NE(error(tensors).find("lstm_cell.bias_hh"), std::string::npos);
  tensors = good;
  named(tensors, "conv3.bias").values[3] = std::nanf("");
  EXPECT_NE(error(tensors).find("conv3.bias"), std::string::npos);
  tensors = good;
  named(tensors, "conv2.weight").shape = {64, 64, 6};
  EXPECT_NE(error(tensors).find("conv2.weight"), std::string::npos);
  EXPECT_NE(error(good, 8000).find("8000 Hz"), std::string::npos);
  EXPECT_EQ(error(good, 16000), "no error");
  tensors = good;
  named(tensors, "stft_conv.weight").name = "other";
  EXPECT_NE(error(tensors).find("no Silero VAD checkpoint"), std::string::npos);
  EXPECT_TRUE(checkpoint_rates(*GgufFile::open(model_file())).empty());
}

// Files with one key changed, made from the published one.
TEST_F(SileroCheckpoint, BrokenModelFilesSayWhatIsWrong) {
  auto good = GgufFile::open(model_file());
  auto error = [&](const std::string& key, auto change, const std::string& dropped_tensor = {},
                   const std::string& added_tensor = {}) -> std::string {
    GgufWriter writer;
    for (const GgufKeyValue& pair : good->metadata()) {
      if (pair.key == key) {
        change(writer);
      } else {
        writer.add_pair(pair);
      }
    }
    for (const TensorEntry& t : good->tensors()) {
      if (t.name != dropped_tensor) writer.add_tensor(t.name, t.shape, *ggml_type(DType::f32));
    }
    const std::vector<int64_t> one = {1};
    if (!added_tensor.empty()) writer.add_tensor(added_tensor, one, *ggml_type(DType::f32));
    std::string file = path("changed.gguf");
    OutputFile out(file);
    writer.begin(out);
    for (const TensorEntry& t : good->tensors()) {
      if (t.name != dropped_tensor) writer.write(t.bytes);
    }
    if (!added_tensor.empty()) writer.write(std::array<std::byte, 4>{});
    writer.finish();
    out.commit();
    try {
      silero_vad_family.load(GgufFile::open(file), {});
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::model_file);
      return e.what();
    }
    return "no error";
  };
  auto u32 = [&](const std::string& key, uint32_t value) {
    return error(key, [&](GgufWriter& w) { w.add_u32(key, value); });
  };
  auto f64 = [&](const std::string& key, double value) {
    return error(key, [&](GgufWriter& w) { w.add_f64(key, value); });
  };
  auto i32s = [&](const std::string& key, std::vector<int32_t> values) {
    return error(key, [&](GgufWriter& w) { w.add_i32s(key, values); });
  };
  auto none = [](GgufWriter&) {};
  EXPECT_EQ(u32("general.file_type", 0), "no error");
  EXPECT_NE(u32("speech.layout", 2).find("speech.layout is 2, this program reads 1; it requires"),
            std::string::npos);
  EXPECT_NE(u32("speech.sample_rate", 0).find("sample_rate"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.reflect", 576).find("576"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.n_fft", 255).find("n_fft"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.n_fft", 642).find("n_fft"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.n_fft", 128).find("stft.basis"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.hop_length", 0).find("hop_length"), std::string::npos);
  EXPECT_NE(u32("silero-vad.stft.hop_length", 8).find("frames"), std::string::npos);
  EXPECT_NE(u32("silero-vad.chunk_size", 0xFFFFFFFF).find("chunk_size"), std::string::npos);
  EXPECT_NE(u32("silero-vad.context_size", 4000).find("context"), std::string::npos);
  EXPECT_NE(i32s("silero-vad.encoder.strides", {1, 2, 0, 1}).find("strides"), std::string::npos);
  EXPECT_NE(i32s("silero-vad.encoder.strides", {1, 2, 2}).find("3 strides"), std::string::npos);
  EXPECT_NE(i32s("silero-vad.encoder.strides", {1, 1, 1, 1}).find("4 frames"), std::string::npos);
  EXPECT_NE(i32s("silero-vad.encoder.padding", {1, 1, -1, 1}).find("padding"), std::string::npos);
  EXPECT_NE(i32s("silero-vad.encoder.padding", {1, 1, 7, 1}).find("padding"), std::string::npos);
  for (double bad : {-0.1, 1.5, std::nan("")}) {
    EXPECT_NE(f64("silero-vad.threshold", bad).find("threshold"), std::string::npos);
    EXPECT_NE(f64("silero-vad.neg_threshold_floor", bad).find("floor"), std::string::npos);
  }
  EXPECT_NE(error("silero-vad.chunk_size", none).find("chunk_size"), std::string::npos);
  EXPECT_NE(error("", none, "lstm.bias").find("lstm.bias"), std::string::npos);
  EXPECT_NE(error("", none, {}, "extra.weight").find("extra.weight is not one of this layout"),
            std::string::npos);
}

TEST_F(SileroCheckpoint, InformationAndOptions) {
  ModelInfo info = silero_vad_family.read_info(*GgufFile::open(model_file()));
  EXPECT_EQ(info.name, "silero-vad");
  EXPECT_EQ(info.version, "v6.2");
  EXPECT_EQ(info.license, "MIT");
  EXPECT_EQ(info.weight_type, "F32");
  EXPECT_EQ(info.sample_rate, 16000);
  EXPECT_EQ(info.file_bytes, 1238624u);
  EXPECT_EQ(info.weight_bytes, 309121u * 4);
  ASSERT_EQ(info.options.size(), 5u);
  EXPECT_EQ(std::get<double>(*info.options[0].default_value), 0.5);
  EXPECT_EQ(std::get<int64_t>(*info.options[1].default_value), 250);
  EXPECT_FALSE(info.options[4].default_value);
  EXPECT_THROW(check_option(info, option::threshold, 1.5), Error);
  EXPECT_THROW(check_option(info, option::max_speech_duration_s, 0.0), Error);
  EXPECT_THROW(check_option(info, option::speech_pad_ms, int64_t{-1}), Error);
}

}  // namespace
}  // namespace speech::silero_vad
