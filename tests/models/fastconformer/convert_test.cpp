// Conversion of official checkpoints, and what the reader of the result refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "models/fastconformer/family.h"
#include "models/fastconformer/golden_support.h"
#include "test_data.h"

namespace speech::testing {
namespace {

std::string golden(const std::string& name) {
  return data_path("fastconformer/" + name);
}

std::vector<std::string> keys_of(const GgufFile& file) {
  std::vector<std::string> keys;
  for (const auto& pair : file.metadata()) keys.push_back(pair.key);
  return keys;
}

// The message of the Error that `call` throws, or "" if it throws none.
template <typename Call>
std::string error_of(Call&& call, Status status = Status::model_file) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    return e.what();
  }
  return "";
}

// A .nemo file with one text of the same length put in place of another.
void patch(const std::string& source, const std::string& out, const std::string& from,
           const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::ifstream in(source, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t at = bytes.find(from);
  ASSERT_NE(at, bytes.npos) << from;
  bytes.replace(at, from.size(), to);
  std::ofstream(out, std::ios::binary) << bytes;
}

TEST(FastConformerConvert, WritesTheKeysOfThePublishedLayout) {
  const std::vector<std::string> general = {
      "general.architecture", "general.name",       "general.organization",    "general.basename",
      "general.size_label",   "general.license",    "general.source.repo_url", "general.source.url",
      "general.file_type",    "general.languages",  "speech.layout",           "speech.requires",
      "speech.task",          "speech.sample_rate", "speech.language_use"};
  const auto prefixed = [](std::initializer_list<const char*> names) {
    std::vector<std::string> out;
    for (const char* name : names) out.push_back(std::string("fastconformer.") + name);
    return out;
  };
  const auto front =
      prefixed({"frontend.n_fft", "frontend.hop_length", "frontend.n_mels", "frontend.preemphasis",
                "frontend.log_guard", "frontend.std_guard", "encoder.d_model", "encoder.num_layers",
                "encoder.num_heads", "encoder.conv_kernel", "encoder.subsampling_factor",
                "encoder.norm_eps", "encoder.pos_base", "encoder.xscale", "encoder.ff_factor",
                "encoder.use_bias", "encoder.attention"});
  const auto local = prefixed({"encoder.attention_context", "encoder.global_tokens"});
  const auto decoder = prefixed({"decoder.kind", "decoder.blank_id", "decoder.prediction_layers"});
  const auto tdt = prefixed({"decoder.tdt.durations", "decoder.tdt.max_symbols"});
  const auto rnnt = prefixed({"decoder.rnnt.beam_size", "decoder.rnnt.score_norm",
                              "decoder.rnnt.max_target_ratio", "decoder.rnnt.max_symbols"});
  const auto text = prefixed({"segment.separators", "segment.breaks", "tokenizer.tokens",
                              "tokenizer.unknown_id", "tokenizer.unknown_surface",
                              "tokenizer.strip_leading_space", "tokenizer.punctuation"});
  for (const std::string name : {"v3-small", "ja", "reazon"}) {
    TempFile out(".gguf");
    convert_checkpoint(golden(name) + "/model.nemo", out.path());
    auto file = GgufFile::open(out.path());
    std::vector<std::string> want;
    const auto add = [&](const std::vector<std::string>& more) {
      want.insert(want.end(), more.begin(), more.end());
    };
    add(general);
    add(front);
    if (name == "reazon") add(local);
    add(decoder);
    add(name == "reazon" ? rnnt : tdt);
    add(text);
    EXPECT_EQ(keys_of(*file), want) << name;
    EXPECT_EQ(file->get_string("general.name"), name);
    EXPECT_EQ(file->find("ctc.out.weight"), nullptr);
    EXPECT_EQ(file->get_strings("general.languages"), name == "v3-small"
                                                          ? (std::vector<std::string>{"de", "en"})
                                                          : (std::vector<std::string>{"ja"}));
    EXPECT_EQ(file->get_strings("fastconformer.segment.breaks").size(),
              name == "v3-small" ? 0u : 5u);
  }
}

TEST(FastConformerConvert, KnowsThePublishedModelsByName) {
  TempFile out(".gguf");
  ConvertOptions options;
  options.name = "reazonspeech-nemo-v2";
  convert_checkpoint(golden("reazon") + "/model.nemo", out.path(), options);
  const ModelInfo info = fastconformer_family.read_info(*GgufFile::open(out.path()));
  EXPECT_EQ(info.organization, "reazon-research");
  EXPECT_EQ(info.basename, "reazonspeech-nemo");
  EXPECT_EQ(info.size_label, "619M");
  EXPECT_EQ(info.version, "v2");
  EXPECT_EQ(info.source_revision, "33693408be76b7cba9fd4a7546a0a8772430211b");
  ASSERT_NE(info.find_option(option::decoding), nullptr);
  EXPECT_EQ(info.find_option(option::decoding)->choices,
            (std::vector<std::string>{"beam", "greedy"}));
}

TEST(FastConformerConvert, BothFormsOfACheckpointGiveTheSameFile) {
  TempFile nemo(".gguf"), hf(".gguf");
  ConvertOptions options;
  options.name = "tiny";
  convert_checkpoint(golden("v3-small") + "/model.nemo", nemo.path(), options);
  convert_checkpoint(golden("v3-small") + "/hf", hf.path(), options);
  auto a = GgufFile::open(nemo.path()), b = GgufFile::open(hf.path());
  ASSERT_EQ(keys_of(*a), keys_of(*b));
  for (size_t i = 0; i < a->metadata().size(); ++i) {
    const auto x = a->metadata()[i].bytes, y = b->metadata()[i].bytes;
    EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end())) << a->metadata()[i].key;
  }
  ASSERT_EQ(a->tensors().size(), b->tensors().size());
  for (size_t i = 0; i < a->tensors().size(); ++i) {
    const TensorEntry &x = a->tensors()[i], &y = b->tensors()[i];
    ASSERT_EQ(x.name, y.name);
    // The window and the filters are not in a transformers folder: they are computed.
    const float tolerance = x.name.starts_with("frontend.") ? 2e-7f : 0;
    const auto u = to_f32(x), v = to_f32(y);
    ASSERT_EQ(u.size(), v.size()) << x.name;
    for (size_t k = 0; k < u.size(); ++k) ASSERT_NEAR(u[k], v[k], tolerance) << x.name << k;
  }
}

TEST(FastConformerConvert, RefusesWhatItCannotRun) {
  const struct {
    const char *golden, *from, *to, *message;
  } cases[] = {
      {"v3-small", "rnnt_bpe_models.EncDecRNNTBPEModel", "rnnt_bpe_models.EncDecCTCModelBPE_",
       "EncDecCTCModelBPE_"},
      {"v3-small", "causal_downsampling: false", "causal_downsampling: true ",
       "causal_downsampling"},
      {"v3-small", "subsampling: dw_striding", "subsampling: striding   ", "subsampling"},
      {"v3-small", "normalize: per_feature", "normalize: all_feature", "normalize"},
      {"v3-small", "activation: relu", "activation: tanh", "activation"},
      {"v3-small", "use_bias: false", "use_bias: true ", "bias"},
      {"v3-small", "conv_norm_type: batch_norm", "conv_norm_type: layer_norm", "conv_norm_type"},
      {"reazon", "global_tokens: 1", "global_tokens: 2", "global_tokens"},
      {"reazon", "strategy: alsd", "strategy: maes", "strategy"},
      {"reazon", "type: bpe", "type: wpe", "tokenizer.type"},
  };
  for (const auto& c : cases) {
    TempFile source(".nemo"), out(".gguf");
    patch(golden(c.golden) + "/model.nemo", source.path(), c.from, c.to);
    const std::string error = error_of([&] { convert_checkpoint(source.path(), out.path()); });
    EXPECT_NE(error.find(c.message), error.npos) << c.to << ": " << error;
  }
}

TEST(FastConformerConvert, ATensorThatTheConfigurationDoesNotKnowIsRefused) {
  // With one layer less in the configuration its weights would be left out in silence.
  TempFile source(".nemo"), out(".gguf");
  patch(golden("v3-small") + "/model.nemo", source.path(), "n_layers: 2", "n_layers: 1");
  const std::string error = error_of([&] { convert_checkpoint(source.path(), out.path()); });
  EXPECT_NE(error.find("encoder.layers.1."), error.npos) << error;
}

class FastConformerReader : public ::testing::Test {
 protected:
  FastConformerReader() : tdt_(".gguf"), rnnt_(".gguf") {
    convert_checkpoint(golden("v3-loops") + "/model.nemo", tdt_.path());
    convert_checkpoint(golden("reazon") + "/model.nemo", rnnt_.path());
  }
  // The error that a changed file gives, or "".
  std::string refused(const TempFile& source, const Changes& changes,
                      const std::function<bool(const TensorEntry&)>& keep = {}) {
    TempFile out(".gguf");
    rewrite_gguf(source.path(), out.path(), changes, keep);
    return error_of([&] { fastconformer_family.read_info(*GgufFile::open(out.path())); });
  }

  TempFile tdt_, rnnt_;
};

void set_layout_1(GgufWriter& w) {
  w.add_u32("speech.layout", 1);
}

TEST_F(FastConformerReader, ReadsLayout1AsFarAsItIsKnown) {
  EXPECT_EQ(refused(tdt_, {{"speech.layout", set_layout_1}}), "");
  const std::string limit = "fastconformer.decoder.rnnt.max_symbols";
  EXPECT_NE(refused(rnnt_, {{"speech.layout", set_layout_1}, {limit, nullptr}}).find("layout 1"),
            std::string::npos);
  EXPECT_EQ(
      refused(rnnt_,
              {{"speech.layout", set_layout_1},
               {limit, nullptr},
               {"general.name",
                [](GgufWriter& w) { w.add_string("general.name", "reazonspeech-nemo-v2"); }}}),
      "");
}

TEST_F(FastConformerReader, EveryKeyIsRequiredWithItsType) {
  auto file = GgufFile::open(tdt_.path());
  for (const auto& pair : file->metadata()) {
    const std::string& key = pair.key;
    if (key == "general.alignment") continue;
    EXPECT_NE(refused(tdt_, {{key, nullptr}}).find(key), std::string::npos) << key;
    const auto other = [&](GgufWriter& w) { w.add_f64(key, 1.0); };
    EXPECT_NE(refused(tdt_, {{key, other}}).find(key), std::string::npos) << key;
  }
}

TEST_F(FastConformerReader, EveryTensorIsRequired) {
  auto file = GgufFile::open(tdt_.path());
  for (const TensorEntry& t : file->tensors()) {
    const auto keep = [&](const TensorEntry& other) { return other.name != t.name; };
    EXPECT_NE(refused(tdt_, {}, keep).find(t.name), std::string::npos) << t.name;
  }
}

TEST_F(FastConformerReader, ImpossibleValuesAreRefused) {
  const std::string p = "fastconformer.";
  const std::pair<const char*, uint32_t> cases[] = {
      {"encoder.num_heads", 3},        {"encoder.num_heads", 0},
      {"encoder.conv_kernel", 4},      {"encoder.subsampling_factor", 6},
      {"encoder.num_layers", 9},       {"encoder.d_model", 4000000000u},
      {"decoder.blank_id", 299},       {"tokenizer.unknown_id", 300},
      {"frontend.n_fft", 256},         {"decoder.tdt.max_symbols", 0},
      {"decoder.prediction_layers", 2}};
  for (const auto& [name, value] : cases) {
    const std::string key = p + name;
    EXPECT_NE(refused(tdt_, {{key, [&, v = value](GgufWriter& w) { w.add_u32(key, v); }}}), "")
        << key << " " << value;
  }
  EXPECT_NE(
      refused(tdt_, {{p + "decoder.kind",
                      [](GgufWriter& w) { w.add_string("fastconformer.decoder.kind", "ctc"); }}}),
      "");
  EXPECT_NE(
      refused(tdt_, {{"speech.layout", [](GgufWriter& w) { w.add_u32("speech.layout", 3); }}}), "");
}

}  // namespace
}  // namespace speech::testing
