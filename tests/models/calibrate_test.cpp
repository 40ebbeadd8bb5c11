#include "models/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "audio/read.h"
#include "base/error.h"
#include "base/file.h"
#include "models/fastconformer/family.h"
#include "models/fastconformer/golden_support.h"
#include "models/language_model.h"
#include "models/quantize.h"
#include "models/qwen3/family.h"
#include "quant/codec.h"
#include "test_data.h"

namespace speech::testing {
namespace {

// Sum over the rows of a stored tensor of e^T G e against its F32 values.
double weighted_error(const TensorEntry& exact, const TensorEntry& stored,
                      const InputStatistics& inputs) {
  const auto n = static_cast<size_t>(inputs.cols());
  const std::vector<float> a = to_f32(exact);
  std::vector<float> b(a.size());
  decode_row(*weight_type_from_name(stored.type_name), stored.bytes.data(), b.data(),
             exact.elements());
  double total = 0;
  for (size_t r = 0; r < a.size(); r += n) {
    for (size_t i = 0; i < n; ++i) {
      double pull = 0;
      for (size_t j = 0; j < n; ++j) {
        pull += static_cast<double>(inputs.gram()[i * n + j]) * (a[r + j] - b[r + j]);
      }
      total += pull * (a[r + i] - b[r + i]);
    }
  }
  return total;
}

std::string failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return std::string(status_name(e.status())) + " (" + e.option() + "): " + e.what();
  }
  return "done";
}

class CalibrateRecognizer : public ::testing::Test {
 protected:
  CalibrateRecognizer() : f32_(".gguf"), out_(".gguf"), other_(".gguf") {
    convert_checkpoint(data_path("fastconformer/ja/model.nemo"), f32_.path(),
                       {.name = {}, .extra_heads = true, .rate = 0});
    file_ = GgufFile::open(f32_.path());
  }
  void quantize_to(const std::string& out, QuantizeOptions options) {
    quantize({&fastconformer_family, 1}, f32_.path(), out, options, {});
  }
  std::string refusal(const std::string& type, const std::string& input,
                      const std::string& importance = {}) {
    return failure([&] {
      QuantizeOptions options;
      options.type = quantize_type(type);
      options.calibration = {main_, input};
      options.importance_path = importance;
      quantize_to(out_.path(), options);
    });
  }

  const std::string main_ = data_path("fastconformer/inputs/main.wav");
  TempFile f32_, out_, other_;
  std::shared_ptr<const GgufFile> file_;
};

TEST_F(CalibrateRecognizer, StatisticsAreThoseOfTheTracedInputs) {
  const AudioFile audio = read_audio(main_);
  Trace trace;
  {
    auto model = load_recognizer(f32_.path());
    Control control;
    control.trace = &trace;
    const AudioView view{audio.samples, audio.rate};
    model->transcribe({&view, 1}, {}, control);
  }
  struct Case {
    const char* stage;
    const char* tensor;
    int runs;  // the encoder runs for each of the two decodings
  };
  const Case cases[] = {{"layer0.20_ff1_norm", "blk.0.ff1_up.weight", 2},
                        {"17_pos_emb", "blk.0.attn_pos.weight", 2},
                        {"60_encoded", "joint.enc.weight", 1},
                        {"60_encoded", "ctc.out.weight", 1}};
  std::set<std::string> names = {"pred.embed.weight"};  // is looked up, never multiplied
  for (const Case& c : cases) names.insert(c.tensor);
  std::vector<std::map<std::string, InputStatistics>> found;
  for (int threads : {1, 2}) {
    Calibration calibration(fastconformer_family, file_, {main_}, threads);
    found.push_back(calibration.collect(names, {}));
    EXPECT_EQ(found.back().size(), std::size(cases));
  }
  for (const Case& c : cases) {
    const auto stage = std::ranges::find(trace.entries(), c.stage, &Trace::Entry::name);
    ASSERT_NE(stage, trace.entries().end()) << c.stage;
    const InputStatistics& inputs = found[0].at(c.tensor);
    const auto n = static_cast<size_t>(inputs.cols());
    ASSERT_EQ(static_cast<int64_t>(n), stage->shape.back());
    EXPECT_EQ(inputs.rows(), c.runs * static_cast<int64_t>(stage->floats.size() / n));
    double largest = 0, difference = 0;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        double sum = 0;
        for (size_t r = 0; r < stage->floats.size(); r += n) {
          sum += static_cast<double>(stage->floats[r + a]) * stage->floats[r + b];
        }
        largest = std::max(largest, c.runs * sum);
        difference = std::max(difference, std::fabs(inputs.gram()[a * n + b] - c.runs * sum));
      }
    }
    EXPECT_GT(largest, 0);
    EXPECT_LT(difference, 1e-5 * largest) << c.tensor;
    EXPECT_TRUE(std::ranges::equal(found[1].at(c.tensor).gram(), inputs.gram())) << c.tensor;
  }
}

TEST_F(CalibrateRecognizer, FilesLoseLessOfWhatTheInputsSee) {
  std::set<std::string> names;
  for (const TensorEntry& t : file_->tensors()) names.insert(t.name);
  const std::string silence = data_path("fastconformer/inputs/edge_silence.wav");  // is no error
  const auto inputs =
      Calibration(fastconformer_family, file_, {main_, silence}, 2).collect(names, {});
  QuantizeOptions options;
  options.type = WeightType::q4_k;  // of this tiny model the subsampling has; the rest is Q8_0
  quantize_to(other_.path(), options);
  options.calibration = {main_, silence};
  options.threads = 1;
  quantize_to(out_.path(), options);
  const auto plain = GgufFile::open(other_.path()), calibrated = GgufFile::open(out_.path());
  std::map<std::string, int> compared;
  for (const TensorEntry& t : file_->tensors()) {
    const TensorEntry& stored = calibrated->require(t.name);
    EXPECT_EQ(stored.type_name, plain->require(t.name).type_name);
    const auto it = inputs.find(t.name);
    if (it == inputs.end() || stored.type == DType::f16 || stored.type == DType::f32) {
      EXPECT_TRUE(std::ranges::equal(stored.bytes, plain->require(t.name).bytes)) << t.name;
      continue;
    }
    ++compared[stored.type_name];
    EXPECT_LT(weighted_error(t, stored, it->second),
              0.8 * weighted_error(t, plain->require(t.name), it->second))
        << t.name;
  }
  EXPECT_GE(compared["Q4_K"], 2);
  EXPECT_GE(compared["Q8_0"], 20);

  const AudioFile audio = read_audio(main_);
  const AudioView view{audio.samples, audio.rate};
  EXPECT_EQ(load_recognizer(out_.path())->transcribe({&view, 1}, {}, {}).size(), 1u);

  options.threads = 2;
  quantize_to(other_.path(), options);
  EXPECT_EQ(read_text_file(other_.path()), read_text_file(out_.path()));
}

TEST_F(CalibrateRecognizer, RefusesWhatItCannotUse) {
  EXPECT_TRUE(refusal("f16", main_).starts_with("invalid_argument (calibrate): F16 ")) << "f16";
  EXPECT_TRUE(refusal("q4_k", main_, "x.gguf").starts_with("invalid_argument (calibrate): "));
  std::string error = refusal("q4_k", "/nonexistent/a.wav");
  EXPECT_TRUE(error.starts_with("io (calibrate): ")) << error;
  EXPECT_NE(error.find("/nonexistent/a.wav"), std::string::npos) << error;
  const std::string text = data_path("fastconformer/ja/expect.json");
  error = refusal("q4_k", text);
  EXPECT_TRUE(error.starts_with("unsupported (calibrate): ")) << error;
  EXPECT_NE(error.find(text), std::string::npos) << error;
  const std::string brief = data_path("fastconformer/inputs/edge_100.wav");
  error = refusal("q4_k", brief);
  EXPECT_TRUE(error.starts_with("out_of_range (calibrate): ")) << error;
  EXPECT_NE(error.find(brief), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(out_.path()));

  QuantizeOptions options;
  options.type = WeightType::q4_k;
  options.calibration = {main_};
  Control control;
  std::atomic<bool> cancel = true;
  control.cancel = &cancel;
  EXPECT_TRUE(failure([&] {
                quantize({&fastconformer_family, 1}, f32_.path(), out_.path(), options, control);
              }).starts_with("cancelled"));
  // A plan looks at the inputs too.
  options.calibration = {"/nonexistent/a.wav"};
  EXPECT_TRUE(failure([&] {
                plan_quantize({&fastconformer_family, 1}, f32_.path(), out_.path(), options);
              }).starts_with("io (calibrate): "));
}

TEST(CalibrateLanguageModel, RunsTexts) {
  const std::string path = data_path("qwen3/gguf/dup-f32.gguf");
  const auto file = GgufFile::open(path);
  TempFile text(".txt"), out(".gguf"), other(".gguf");
  std::string words;
  for (int i = 0; i < 300; ++i) words += "The quick brown fox " + std::to_string(i * 37) + ". ";
  std::ofstream(text.path()) << words;
  std::set<std::string> names;
  for (const TensorEntry& t : file->tensors()) names.insert(t.name);
  const auto inputs = Calibration(qwen3::qwen3_family, file, {text.path()}, 2).collect(names, {});
  const auto model = load_model(path, {});
  const auto ids = dynamic_cast<LanguageModel&>(*model).tokenizer()->encode(words);
  EXPECT_EQ(inputs.at("blk.0.attn_q.weight").rows(), static_cast<int64_t>(ids.size()));

  const Family family = qwen3::qwen3_family;
  QuantizeOptions options;
  options.type = WeightType::q8_0;
  quantize({&family, 1}, path, other.path(), options, {});
  options.calibration = {text.path()};
  quantize({&family, 1}, path, out.path(), options, {});
  const auto plain = GgufFile::open(other.path()), calibrated = GgufFile::open(out.path());
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.ffn_down.weight", "output.weight"}) {
    const auto& t = file->require(name);
    EXPECT_LT(weighted_error(t, calibrated->require(name), inputs.at(name)),
              0.8 * weighted_error(t, plain->require(name), inputs.at(name)))
        << name;
  }
  std::ofstream(text.path(), std::ios::trunc).close();
  const std::string error = failure([&] { quantize({&family, 1}, path, out.path(), options, {}); });
  EXPECT_TRUE(error.starts_with("invalid_argument (calibrate): " + text.path())) << error;
}

}  // namespace
}  // namespace speech::testing
