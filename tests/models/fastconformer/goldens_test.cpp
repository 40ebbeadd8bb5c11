// Whole runs of tiny official checkpoints against NeMo's own results.
#include <gtest/gtest.h>

#include <fstream>

#include "models/fastconformer/golden_support.h"

namespace speech::testing {
namespace {

using Json = nlohmann::json;

class FastConformerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  FastConformerGolden() : gguf_(".gguf") {
    std::ifstream in(GetParam() + "/expect.json");
    expect_ = Json::parse(in);
    ConvertOptions options;
    for (const Json& run : expect_["runs"]) options.extra_heads |= run["decoder"] == "ctc";
    convert_checkpoint(GetParam() + "/model.nemo", gguf_.path(), options);
  }

  // The file with the settings of a run that changes the checkpoint's.
  std::string with(const Json& decoding, const TempFile& file) const {
    Changes changes;
    const std::string p = "fastconformer.decoder.";
    if (decoding.contains("greedy")) {
      for (const char* kind : {"tdt", "rnnt"}) {
        const std::string key = p + kind + ".max_symbols";
        changes[key] = [=, value = decoding["greedy"]["max_symbols"].get<uint32_t>()](
                           GgufWriter& w) { w.add_u32(key, value); };
      }
    }
    const Json beam = decoding.value("beam", Json::object());
    if (beam.contains("beam_size")) {
      changes[p + "rnnt.beam_size"] = [=](GgufWriter& w) {
        w.add_u32(p + "rnnt.beam_size", beam["beam_size"]);
      };
    }
    if (beam.contains("score_norm")) {
      changes[p + "rnnt.score_norm"] = [=](GgufWriter& w) {
        w.add_bool(p + "rnnt.score_norm", beam["score_norm"]);
      };
    }
    if (beam.contains("alsd_max_target_len")) {
      changes[p + "rnnt.max_target_ratio"] = [=](GgufWriter& w) {
        w.add_f32(p + "rnnt.max_target_ratio", beam["alsd_max_target_len"]);
      };
    }
    rewrite_gguf(gguf_.path(), file.path(), changes);
    return file.path();
  }

  static Options options_of(const Json& run) {
    Options options;
    options.set(option::timestamps, true);
    const std::string decoder = run["decoder"];
    if (decoder == "ctc") options.set(option::decoding, std::string("ctc"));
    if (decoder == "rnnt") options.set(option::decoding, std::string("greedy"));
    return options;
  }

  Transcript transcribe(Recognizer& model, const Json& run, Trace* trace = nullptr) const {
    const std::vector<float> samples = golden_input(GetParam(), run["input"]);
    const AudioView view{samples, 16000};
    Control control;
    control.trace = trace;
    return model.transcribe({&view, 1}, options_of(run), control)[0];
  }

  TempFile gguf_;
  Json expect_;
};

void expect_spans(const std::vector<Segment>& got, const Json& want, const char* key,
                  const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name << " " << key;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].text, want[i][key].get<std::string>()) << name << " " << key << " " << i;
    EXPECT_NEAR(got[i].start, want[i]["start"].get<double>(), 1e-9) << name << " " << key << i;
    EXPECT_NEAR(got[i].end, want[i]["end"].get<double>(), 1e-9) << name << " " << key << i;
  }
}

std::vector<int32_t> ids_of(const Transcript& t) {
  std::vector<int32_t> ids;
  for (const Token& token : t.tokens) ids.push_back(token.id);
  return ids;
}

TEST_P(FastConformerGolden, EveryRunHasTheOfficialTokensTextAndTimes) {
  auto plain = load_recognizer(gguf_.path());
  for (const Json& run : expect_["runs"]) {
    const std::string name = run["name"];
    TempFile changed(".gguf");
    std::unique_ptr<Recognizer> other;
    if (run.contains("decoding")) {
      other = load_recognizer(with(run["decoding"], changed));
    }
    const Transcript t = transcribe(other ? *other : *plain, run);
    EXPECT_EQ(ids_of(t), run["ids"].get<std::vector<int32_t>>()) << name;
    EXPECT_EQ(t.text, run["text"].get<std::string>()) << name;
    const Json& times = run["timestamps"];
    std::vector<Segment> tokens;
    for (const Token& token : t.tokens) tokens.push_back({token.start, token.end, token.text});
    // NeMo's spans of ALSD tokens count steps of the search, ours frames of the audio.
    if (run["decoder"] == "alsd") {
      const auto frames = run["frames"].get<std::vector<int>>();
      ASSERT_EQ(tokens.size(), frames.size()) << name;
      for (size_t i = 0; i < frames.size(); ++i) {
        EXPECT_EQ(tokens[i].text, times["char"][i]["char"].get<std::string>()) << name;
        EXPECT_NEAR(tokens[i].start, frames[i] * 0.08, 1e-9) << name << i;
        EXPECT_NEAR(tokens[i].end, (frames[i] + 1) * 0.08, 1e-9) << name << i;
      }
      ASSERT_EQ(t.words.size(), times["word"].size()) << name;
      for (size_t i = 0; i < t.words.size(); ++i) {
        EXPECT_EQ(t.words[i].text, times["word"][i]["word"].get<std::string>()) << name;
      }
      ASSERT_EQ(t.segments.size(), times["segment"].size()) << name;
      for (size_t i = 0; i < t.segments.size(); ++i) {
        EXPECT_EQ(t.segments[i].text, times["segment"][i]["segment"].get<std::string>()) << name;
      }
    } else {
      expect_spans(tokens, times["char"], "char", name);
      expect_spans(t.words, times["word"], "word", name);
      expect_spans(t.segments, times["segment"], "segment", name);
    }
  }
}

TEST_P(FastConformerGolden, EveryStageIsTheOfficialOne) {
  auto model = load_recognizer(gguf_.path());
  for (const Json& run : expect_["runs"]) {
    if (!run.contains("stages")) continue;
    const std::string stages = GetParam() + "/" + run["stages"].get<std::string>();
    // Which channels of the images were kept: every n-th.
    Trace trace;
    const auto expected = SafetensorsFile::open(stages);
    for (const TensorEntry& t : expected->tensors()) {
      if (!t.name.starts_with("10_conv0")) continue;
      const int64_t channels = GgufFile::open(gguf_.path())->require("sub.conv.0.bias").elements();
      trace.set_channel_step(static_cast<int>(channels / t.shape[0]));
    }
    Json all = run;
    if (run["decoder"] == "ctc") all["decoder"] = expect_["runs"][0]["decoder"];
    if (run["decoder"] == "rnnt") all["decoder"] = "alsd";
    transcribe(*model, all, &trace);
    // Batch norm is folded into the depthwise convolution; long runs keep the ends of one stage.
    EXPECT_EQ(compare_stages(stages, trace, 2e-5, {"34_conv_dw", "02_features_"}), "") << stages;
  }
}

TEST_P(FastConformerGolden, HalfPrecisionWeightsGiveTheSameTokens) {
  TempFile half(".gguf");
  quantize_gguf(gguf_.path(), half.path(), WeightType::f16);
  auto model = load_recognizer(half.path());
  for (const Json& run : expect_["runs"]) {
    if (run.contains("decoding") || run["name"] == "long") continue;
    // Rounding to 11 bits moves logits by about 1e-3 of their size: closer calls may fall
    // otherwise.
    const double gap =
        std::min(run.value("min_label_gap", 1.0), run.value("min_duration_gap", 1.0));
    if (gap < 0.1 || run["decoder"] == "alsd") continue;
    EXPECT_EQ(ids_of(transcribe(*model, run)), run["ids"].get<std::vector<int32_t>>())
        << run["name"];
  }
}

TEST_P(FastConformerGolden, BatchAndThreadsChangeNothing) {
  auto one = load_recognizer(gguf_.path(), 1), two = load_recognizer(gguf_.path(), 2);
  std::vector<std::vector<float>> samples;
  std::vector<AudioView> views;
  for (const Json& run : expect_["runs"]) {
    if (run.contains("decoding") || run["decoder"] == "ctc") continue;
    samples.push_back(golden_input(GetParam(), run["input"]));
  }
  for (const auto& s : samples) views.push_back({s, 16000});
  Options options;
  options.set(option::timestamps, true);
  const auto batch = two->transcribe(views, options, {});
  ASSERT_EQ(batch.size(), views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const Transcript alone = one->transcribe({&views[i], 1}, options, {})[0];
    EXPECT_EQ(batch[i].text, alone.text);
    ASSERT_EQ(ids_of(batch[i]), ids_of(alone));
    for (size_t k = 0; k < alone.tokens.size(); ++k) {
      EXPECT_EQ(batch[i].tokens[k].start, alone.tokens[k].start);
      EXPECT_EQ(batch[i].tokens[k].end, alone.tokens[k].end);
      EXPECT_EQ(batch[i].tokens[k].log_probability, alone.tokens[k].log_probability);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastConformerGolden, ::testing::ValuesIn(golden_folders()),
                         [](const auto& info) {
                           std::string name = info.param.substr(info.param.rfind('/') + 1);
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return std::to_string(info.index) + "_" + name;
                         });

}  // namespace
}  // namespace speech::testing
