// Stages, logits and greedy tokens of the official implementation (tests/data/qwen3; transformers
// 4.57.6 in float32, for packed weights with the dequantized matrices).

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "models/convert.h"
#include "models/quantize.h"
#include "models/qwen3/adapter.h"
#include "models/qwen3/convert.h"
#include "models/qwen3/family.h"
#include "models/qwen3/model.h"
#include "models/qwen3/rewrite.h"
#include "models/registry.h"
#include "tasks/generation.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string folder(const std::string& name) {
  return testing::data_path("qwen3/" + name);
}

Json expectations(const std::string& name) {
  return Json::parse(read_text_file(folder(name) + "/expect.json"));
}

std::unique_ptr<LanguageModel> load(const std::string& path, int threads = 2,
                                    Precision precision = Precision::fast) {
  LoadParams params{.threads = threads, .precision = precision};
  if (path.ends_with(".gguf")) return qwen3::load_gguf_model(GgufFile::open(path), params);
  return qwen3::load_folder_model(path, open_tensor_file(path), params);
}

std::vector<int32_t> ids_of(const Json& json) {
  return json.get<std::vector<int32_t>>();
}

// Relative RMS distance of the arrays.
double distance(std::span<const float> expected, std::span<const float> actual) {
  EXPECT_EQ(expected.size(), actual.size());
  if (expected.size() != actual.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    double d = static_cast<double>(expected[i]) - actual[i];
    difference += d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

// f32 arithmetic in another order leaves 1e-5 to 4e-5 (README of the reference data). Fast products
// of packed weights round activations to 15 bits: 3e-5 each, and 14 of them follow one another in
// two layers, so their root adds up to 1.1e-4; twice that for what norms amplify.
constexpr double kTolerance = 5e-5, kFastTolerance = 2.5e-4;

// Every recorded stage that the reference holds too; `prefix` is the reference's.
void compare_stages(const TensorFile& reference, const std::string& prefix, const Trace& trace,
                    const std::string& last_logits, double tolerance) {
  int compared = 0;
  for (const Trace::Entry& entry : trace.entries()) {
    const TensorEntry* expected = reference.find(prefix + entry.name);
    std::vector<float> actual = entry.floats;
    if (!expected && entry.name == "91_logits" && !last_logits.empty()) {
      expected = &reference.require(prefix + last_logits);
      actual.erase(actual.begin(), actual.end() - expected->elements());
    }
    if (!expected) continue;
    ++compared;
    if (expected->type == DType::i32) {
      std::vector<int64_t> ids = to_i64(*expected);
      EXPECT_EQ(ids, std::vector<int64_t>(entry.ints.begin(), entry.ints.end())) << entry.name;
      continue;
    }
    EXPECT_LE(distance(to_f32(*expected), actual), tolerance) << prefix << entry.name;
  }
  EXPECT_GE(compared, 4);
  for (const TensorEntry& t : reference.tensors()) {  // no stage of a layer is left out
    if (!t.name.starts_with(prefix + "10_layer0_")) continue;
    EXPECT_TRUE(std::any_of(trace.entries().begin(), trace.entries().end(),
                            [&](const Trace::Entry& e) { return prefix + e.name == t.name; }))
        << t.name;
  }
}

std::vector<int32_t> argmax_rows(std::span<const float> logits, int64_t width) {
  std::vector<int32_t> best;
  for (size_t row = 0; row * width < logits.size(); ++row) {
    auto values = logits.subspan(row * width, static_cast<size_t>(width));
    best.push_back(
        static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin()));
  }
  return best;
}

void check_model(LanguageModel& model, const TensorFile& reference, const std::string& prefix,
                 const Json& expect, double tolerance, const std::string& last_logits = "") {
  std::vector<int32_t> ids = ids_of(expect["ids"]);
  KvCache cache = model.new_cache();
  Trace trace;
  LanguageModel::Input input{&cache, ids, true};
  auto logits = model.step({&input, 1}, &trace);
  compare_stages(reference, prefix, trace, last_logits, tolerance);
  EXPECT_EQ(argmax_rows(logits[0], model.vocabulary()), ids_of(expect["argmax_per_position"]));

  std::vector<int32_t> greedy = ids_of(expect["greedy_ids"]);
  Generator generator(model, {});
  GenerationRequest request{
      .prompt = ids, .max_tokens = static_cast<int64_t>(greedy.size()), .ignore_eos = true};
  GenerationResult result = generator.run(request);
  std::vector<int32_t> generated;
  for (const GeneratedToken& t : result.tokens) generated.push_back(t.id);
  EXPECT_EQ(generated, greedy);
  EXPECT_EQ(result.finish, Finish::length);
}

class Qwen3Folder : public ::testing::TestWithParam<const char*> {};

TEST_P(Qwen3Folder, EqualsTheOfficialCode) {
  std::string name = GetParam();
  auto reference = open_tensor_file(folder(name) + "/stages.safetensors");
  for (auto [precision, tolerance] :
       {std::pair{Precision::exact, kTolerance}, std::pair{Precision::fast, kFastTolerance}}) {
    auto model = load(folder(name) + "/checkpoint", 2, precision);
    check_model(*model, *reference, "", expectations(name), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Qwen3Folder,
                         ::testing::Values("dense-tied", "dense-odd-sharded", "dense-dup-head",
                                           "mlx-2bit-g64", "mlx-3bit-g64", "mlx-4bit-g32-f32",
                                           "mlx-4bit-g64", "mlx-4bit-g64-partial", "mlx-5bit-g128",
                                           "mlx-6bit-g32", "mlx-8bit-g64", "mlx-custom",
                                           "mlx-mixed-3-6", "mlx-mixed-4-6"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class Qwen3Gguf : public ::testing::TestWithParam<const char*> {};

TEST_P(Qwen3Gguf, EqualsTheOfficialCode) {
  std::string name = GetParam();
  auto reference = open_tensor_file(folder("gguf") + "/stages.safetensors");
  for (auto [precision, tolerance] :
       {std::pair{Precision::exact, kTolerance}, std::pair{Precision::fast, kFastTolerance}}) {
    auto model = load(folder("gguf") + "/" + name + ".gguf", 2, precision);
    check_model(*model, *reference, name + ":", expectations("gguf")["files"][name + ".gguf"],
                tolerance, "91_logits_last");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Qwen3Gguf,
                         ::testing::Values("tied-zoo", "odd-q8_0", "dup-f32", "dup-f16"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Qwen3, LongPromptInPiecesEqualsOnePass) {
  auto model = load(folder("dense-tied") + "/checkpoint");
  auto reference = open_tensor_file(folder("dense-tied") + "/stages.safetensors");
  std::vector<int64_t> wide = to_i64(reference->require("92_long_ids"));
  std::vector<int32_t> ids(wide.begin(), wide.end());
  std::vector<float> expected = to_f32(reference->require("93_long_last_logits"));

  KvCache whole = model->new_cache();
  LanguageModel::Input input{&whole, ids};
  std::vector<float> logits = model->step({&input, 1})[0];
  EXPECT_LE(distance(expected, logits), kTolerance);

  for (size_t piece : {1, 7, 100}) {
    KvCache cache = model->new_cache();
    std::vector<float> last;
    for (size_t at = 0; at < ids.size(); at += piece) {
      LanguageModel::Input part{&cache,
                                std::span(ids).subspan(at, std::min(piece, ids.size() - at))};
      last = model->step({&part, 1})[0];
    }
    EXPECT_LE(distance(expected, last), kTolerance) << piece;
  }
}

TEST(Qwen3, SequencesInOneStepEqualThemselvesAlone) {
  Json expect = expectations("decode");
  for (int threads : {1, 2}) {
    auto model = load(folder("dense-tied") + "/checkpoint", threads);
    std::vector<std::vector<int32_t>> prompts;
    for (const Json& p : expect["prompts"]) prompts.push_back(ids_of(p["ids"]));
    std::vector<KvCache> caches, alone;
    std::vector<LanguageModel::Input> inputs;
    for (size_t i = 0; i < prompts.size(); ++i) {
      caches.push_back(model->new_cache());
      alone.push_back(model->new_cache());
    }
    for (size_t i = 0; i < prompts.size(); ++i) inputs.push_back({&caches[i], prompts[i]});
    auto together = model->step(inputs);
    for (size_t i = 0; i < prompts.size(); ++i) {
      LanguageModel::Input one{&alone[i], prompts[i]};
      EXPECT_EQ(model->step({&one, 1})[0], together[i]) << "prompt " << i;
    }
  }
}

// Keys and values in f16: rounding them to 11 bits moves the logits by less than 2e-3, which is
// less than the margins of these prompts' greedy tokens; and nothing depends on threads, pieces or
// neighbours.
TEST(Qwen3, HalfPrecisionCache) {
  Json expect = expectations("dense-tied");
  auto reference = open_tensor_file(folder("dense-tied") + "/stages.safetensors");
  std::vector<int64_t> wide = to_i64(reference->require("92_long_ids"));
  std::vector<int32_t> ids(wide.begin(), wide.end());
  std::vector<float> expected = to_f32(reference->require("93_long_last_logits"));
  std::string path = folder("dense-tied") + "/checkpoint";
  std::vector<float> first;
  size_t bytes = 0;
  for (int threads : {1, 2}) {
    auto model = qwen3::load_folder_model(path, open_tensor_file(path),
                                          {.threads = threads, .kv_cache = KvType::f16});
    for (size_t piece : {size_t{300}, size_t{1}, size_t{77}}) {
      KvCache cache = model->new_cache(), other = model->new_cache();
      EXPECT_EQ(cache.type(), KvType::f16);
      std::vector<float> last;
      for (size_t at = 0; at < ids.size(); at += piece) {
        auto part = std::span(ids).subspan(at, std::min(piece, ids.size() - at));
        LanguageModel::Input inputs[] = {{&other, std::span(ids).first(2)}, {&cache, part}};
        last = model->step(inputs)[1];
      }
      if (first.empty()) first = last;
      EXPECT_EQ(last, first) << threads << " threads, pieces of " << piece;
      bytes = cache.block_bytes();
    }
    Generator generator(*model, {});
    std::vector<int32_t> greedy = ids_of(expect["greedy_ids"]), got;
    GenerationResult result = generator.run(
        {.prompt = ids_of(expect["ids"]), .max_tokens = std::ssize(greedy), .ignore_eos = true});
    for (const auto& t : result.tokens) got.push_back(t.id);
    EXPECT_EQ(got, greedy);
  }
  EXPECT_LE(distance(expected, first), 2e-3);
  auto full = load(path);
  KvCache cache = full->new_cache();
  EXPECT_EQ(cache.block_bytes(), 2 * bytes);
  LanguageModel::Input input{&cache, ids};
  EXPECT_NE(full->step({&input, 1})[0], first) << "or it was not in f16";
}

// A copy of the weights in memory computes what the mapped file does.
TEST(Qwen3, WeightsInMemoryGiveTheSameLogits) {
  std::vector<int32_t> ids = {1, 5, 9, 2, 7};
  for (const char* name : {"dense-tied", "mlx-4bit-g64", "mlx-mixed-3-6"}) {
    std::vector<std::vector<float>> logits;
    std::string path = folder(name) + "/checkpoint";
    for (bool map : {true, false}) {
      LoadParams params;
      params.map_weights = map;
      auto model = qwen3::load_folder_model(path, open_tensor_file(path), params);
      KvCache cache = model->new_cache();
      LanguageModel::Input input{&cache, ids};
      logits.push_back(model->step({&input, 1})[0]);
    }
    EXPECT_EQ(logits[0], logits[1]) << name;
  }
}

TEST(Qwen3, BatchedGenerationGivesTheOfficialTokens) {
  Json expect = expectations("decode");
  auto model = load(folder("dense-tied") + "/checkpoint");
  Generator generator(*model, {.sequences = 3});
  std::vector<std::shared_ptr<Generation>> running;
  for (const Json& p : expect["prompts"]) {
    running.push_back(
        generator.add({.prompt = ids_of(p["ids"]), .max_tokens = 96, .ignore_eos = true}));
  }
  while (generator.step()) {
  }
  for (size_t i = 0; i < running.size(); ++i) {
    const Json& p = expect["prompts"][i];
    ASSERT_TRUE(running[i]->done());
    std::vector<int32_t> ids;
    for (const auto& t : running[i]->result().tokens) ids.push_back(t.id);
    EXPECT_EQ(ids, ids_of(p["greedy_ids"])) << "prompt " << i;

    GenerationResult stopped = generator.run({.prompt = ids_of(p["ids"]), .max_tokens = 96});
    if (p["stops_at"].is_null()) {
      EXPECT_EQ(stopped.finish, Finish::length);
      EXPECT_EQ(stopped.tokens.size(), 96u);
    } else {
      EXPECT_EQ(stopped.finish, Finish::stop);
      EXPECT_EQ(stopped.tokens.size(), p["stops_at"].get<size_t>());
    }
  }
}

TEST(Qwen3, LogProbabilitiesOfGivenTokens) {
  auto model = load(folder("dense-tied") + "/checkpoint");
  auto reference = open_tensor_file(folder("decode") + "/stages.safetensors");
  Json prompt = expectations("decode")["prompts"][0];
  std::vector<int32_t> ids = ids_of(prompt["ids"]), greedy = ids_of(prompt["greedy_ids"]);
  ids.insert(ids.end(), greedy.begin(), greedy.begin() + 16);
  Generator generator(*model, {});
  GenerationResult result = generator.run({.prompt = ids,
                                           .max_tokens = 0,
                                           .top_log_probabilities = 5,
                                           .prompt_log_probabilities = true});
  std::vector<float> expected = to_f32(reference->require("prompt0:logprobs_of_given_tokens"));
  std::vector<int64_t> top_ids = to_i64(reference->require("prompt0:top5_ids"));
  std::vector<float> top = to_f32(reference->require("prompt0:top5_logprobs"));
  ASSERT_EQ(result.prompt_tokens.size(), ids.size());
  ASSERT_EQ(expected.size(), ids.size() - 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    const GeneratedToken& t = result.prompt_tokens[i + 1];
    EXPECT_NEAR(t.log_probability, expected[i], 1e-4);
    for (size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(t.top[k].first, top_ids[i * 5 + k]);
      EXPECT_NEAR(t.top[k].second, top[i * 5 + k], 1e-4);
    }
  }
}

std::vector<float> last_logits(LanguageModel& model, std::span<const int32_t> ids) {
  KvCache cache = model.new_cache();
  LanguageModel::Input input{&cache, ids};
  return model.step({&input, 1})[0];
}

std::vector<int32_t> reference_ids(const TensorFile& reference) {
  std::vector<int64_t> wide = to_i64(reference.require("ids"));
  return {wide.begin(), wide.end()};
}

std::vector<int32_t> greedy_tokens(LanguageModel& model, std::vector<int32_t> prompt,
                                   size_t count) {
  Generator generator(model, {});
  GenerationResult result = generator.run(
      {.prompt = std::move(prompt), .max_tokens = static_cast<int64_t>(count), .ignore_eos = true});
  std::vector<int32_t> ids;
  for (const GeneratedToken& t : result.tokens) ids.push_back(t.id);
  return ids;
}

// A folder for what a test writes.
class Qwen3Rewrite : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "speech-qwen3-XXXXXX").string();
    work_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(work_); }
  std::string out(const std::string& name) const { return (work_ / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(work_), {}));
  }
  const std::string base_ = folder("dense-tied") + "/checkpoint";
  fs::path work_;
};

TEST_F(Qwen3Rewrite, QuantizesAsMlxDoes) {
  Json expect = expectations("quantize");
  auto reference = open_tensor_file(folder("quantize") + "/stages.safetensors");
  std::vector<int32_t> ids = reference_ids(*reference);
  for (int bits : {4, 8}) {
    std::string setting = fmt::format("int{}_g64", bits);
    std::vector<float> expected = to_f32(reference->require("logits_last:" + setting + ":bf16"));
    std::vector<int32_t> greedy = ids_of(expect["logits"][setting + ":bf16"]["greedy_ids"]);
    // While loading, and into a folder that is loaded then.
    LoadParams params{.threads = 2, .quantize_bits = bits, .quantize_group = 64};
    auto loaded = qwen3::load_folder_model(base_, open_tensor_file(base_), params);
    EXPECT_EQ(loaded->info().weight_type, fmt::format("int{}-g64", bits));
    EXPECT_LE(distance(expected, last_logits(*loaded, ids)), kFastTolerance) << setting;
    EXPECT_EQ(greedy_tokens(*loaded, ids, greedy.size()), greedy) << setting;

    qwen3::quantize_folder(base_, out(setting), bits, 64);
    auto written = load(out(setting));
    EXPECT_EQ(last_logits(*written, ids), last_logits(*loaded, ids));
    auto file = open_tensor_file(out(setting));
    for (const auto& [module, unused] : expect["matrices"].items()) {
      for (const char* part : {"words", "bf16:scales", "bf16:biases"}) {
        const TensorEntry& want = reference->require(module + ":" + setting + ":" + part);
        std::string name = std::string(part) == "words" ? "weight" : std::string(part).substr(5);
        const TensorEntry& got = file->require(module + "." + name);
        EXPECT_TRUE(
            std::equal(want.bytes.begin(), want.bytes.end(), got.bytes.begin(), got.bytes.end()))
            << module << " " << part;
      }
    }
  }
  EXPECT_EQ(entries(), 2u);
}

TEST_F(Qwen3Rewrite, RefusalsLeaveNothingBehind) {
  EXPECT_THROW(qwen3::quantize_folder(folder("mlx-4bit-g64") + "/checkpoint", out("a"), 4, 64),
               Error);
  EXPECT_THROW(qwen3::quantize_folder(base_, out("b"), 7, 64), Error);
  EXPECT_THROW(qwen3::bake_lora(folder("mlx-4bit-g64") + "/checkpoint",
                                folder("lora") + "/mlx-lora", out("c")),
               Error);
  EXPECT_THROW(qwen3::bake_lora(base_, base_, out("d")), Error);
  EXPECT_THROW(qwen3::quantize_folder(base_, base_, 4, 64), Error);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(Qwen3Rewrite, BakesAdaptersAsTheirLibrariesDo) {
  Json expect = expectations("lora");
  auto reference = open_tensor_file(folder("lora") + "/stages.safetensors");
  std::vector<int32_t> ids = reference_ids(*reference);
  ASSERT_GE(expect["adapters"].size(), 6u);
  for (const auto& [name, adapter] : expect["adapters"].items()) {
    qwen3::bake_lora(base_, folder("lora") + "/" + name, out(name));
    auto model = load(out(name));
    std::vector<float> expected = to_f32(reference->require("logits_last:" + name + ":baked_bf16"));
    // A weight whose f32 sum falls on the other side of a rounding border moves by a bf16 step.
    EXPECT_LE(distance(expected, last_logits(*model, ids)), 2 * kTolerance) << name;
    std::vector<int32_t> greedy = ids_of(adapter["greedy_ids"]);
    EXPECT_EQ(greedy_tokens(*model, ids, greedy.size()), greedy) << name;

    // First rows of a changed matrix: f32 in the reference, rounded to bf16 in the file.
    auto file = open_tensor_file(out(name));
    for (const TensorEntry& t : reference->tensors()) {
      std::string prefix = "baked_rows:" + name + ":";
      if (!t.name.starts_with(prefix)) continue;
      std::vector<float> rows = to_f32(t);
      std::vector<float> baked = to_f32(file->require(t.name.substr(prefix.size())));
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_NEAR(baked[i], rows[i], std::abs(rows[i]) * 0x1.01p-8 + 1e-6) << t.name;
      }
    }
    // Bake first, then quantize.
    LoadParams params{.threads = 2, .quantize_bits = 8, .quantize_group = 64};
    auto quantized = qwen3::load_folder_model(out(name), open_tensor_file(out(name)), params);
    expected = to_f32(reference->require("logits_last:" + name + ":baked_bf16_int8_g64"));
    // bf16 ties that fall the other way move a code: hence the wider bound.
    EXPECT_LE(distance(expected, last_logits(*quantized, ids)), 2e-3) << name;
  }
}

TEST_F(Qwen3Rewrite, AnAdapterAddedWhileLoadingIsTheBakedOne) {
  auto reference = open_tensor_file(folder("lora") + "/stages.safetensors");
  std::vector<int32_t> ids = reference_ids(*reference);
  std::vector<float> base = last_logits(*load(base_), ids);
  std::set<std::string> fingerprints{load(base_)->fingerprint()};
  for (const char* name :
       {"mlx-lora", "mlx-dora", "mlx-lora-all", "peft-lora", "peft-dora", "peft-rslora"}) {
    LoadParams params{.threads = 2, .adapter = folder("lora") + "/" + name};
    auto model = qwen3::load_folder_model(base_, open_tensor_file(base_), params);
    std::vector<float> logits = last_logits(*model, ids);
    qwen3::bake_lora(base_, params.adapter, out(name));
    EXPECT_EQ(logits, last_logits(*load(out(name)), ids)) << name;
    EXPECT_NE(logits, base) << name;
    EXPECT_TRUE(fingerprints.insert(model->fingerprint()).second) << name;
  }
}

// The scale of model.layers.0.mlp.up_proj, of rank 2, under changed settings; or the error.
std::string up_proj_scale(const char* adapter, const Json& changes) {
  std::string path = folder("lora") + "/" + adapter;
  Json config = Json::parse(read_text_file(path + "/adapter_config.json"));
  config.update(changes);
  bool peft = config.contains("peft_type");
  auto file =
      open_tensor_file(path + (peft ? "/adapter_model.safetensors" : "/adapters.safetensors"));
  try {
    qwen3::Adapter read(config.dump(), *file);
    const qwen3::Delta* d = read.find("model.layers.0.mlp.up_proj.weight");
    return d ? fmt::format("{:.4f}", d->scale) : "none";
  } catch (const Error& e) {
    return fmt::format("{}: {}", status_name(e.status()), e.what());
  }
}

TEST(Qwen3, AdapterPatternsMatchAsInPeft) {
  auto scale = [](const Json& alpha) {
    return up_proj_scale("peft-rslora", {{"alpha_pattern", alpha}, {"lora_alpha", 4}});
  };
  // lora_alpha / sqrt(2) where nothing matches.
  EXPECT_EQ(scale(nullptr), "2.8284");
  EXPECT_EQ(scale({{"up_proj", 6}}), "4.2426");
  EXPECT_EQ(scale({{"layers\\.\\d\\.mlp\\.(?:up|down)_proj", 6}}), "4.2426");
  EXPECT_EQ(scale({{"model.layers.0.mlp.up_proj", 6}}), "4.2426");
  EXPECT_EQ(scale({{"p_proj", 6}}), "2.8284");     // begins behind a dot
  EXPECT_EQ(scale({{"mlp", 6}}), "2.8284");        // ends with the path
  EXPECT_EQ(scale({{"x)|(model", 6}}), "2.8284");  // as text in r"(.*\.)?({key})$"
  EXPECT_EQ(scale({{"x)|(.*proj", 6}}), "4.2426");
  for (const char* key : {"(", "a{1111111111111111111}", "(\\w+\\.?)+[^a-z]"}) {
    std::string text = scale({{key, 6}});
    EXPECT_TRUE(text.starts_with("model_file: ")) << text;
    EXPECT_NE(text.find(std::string("alpha_pattern: \"") + key), std::string::npos) << text;
  }
}

TEST(Qwen3, AdapterSettingsOfAWrongTypeAreNamed) {
  auto expect = [](const char* adapter, const char* key, const Json& value) {
    std::string text = up_proj_scale(adapter, {{key, value}});
    EXPECT_TRUE(text.starts_with("model_file: ")) << text;
    EXPECT_NE(text.find(key), std::string::npos) << text;
  };
  expect("mlx-lora", "fine_tune_type", 3);
  expect("mlx-lora", "lora_parameters", "x");
  expect("mlx-lora", "lora_parameters", {{"scale", "x"}});
  for (const char* key : {"use_dora", "use_rslora", "r", "lora_alpha", "rank_pattern"}) {
    expect("peft-rslora", key, "x");
  }
  expect("peft-rslora", "alpha_pattern", {{"up_proj", nullptr}});
}

TEST(Qwen3, AnAdapterNeedsADenseFolder) {
  auto refusal = [](const std::string& path, const std::string& adapter, int bits = 0) {
    LoadParams params{.threads = 1, .quantize_bits = bits, .adapter = adapter};
    try {
      if (path.ends_with(".gguf")) {
        qwen3::load_gguf_model(GgufFile::open(path), params);
      } else {
        qwen3::load_folder_model(path, open_tensor_file(path), params);
      }
      return std::string("loaded");
    } catch (const Error& e) {
      return fmt::format("{} ({}): {}", status_name(e.status()), e.option(), e.what());
    }
  };
  std::string adapter = folder("lora") + "/mlx-lora", dense = folder("dense-tied") + "/checkpoint";
  for (int bits : {4, 8}) {
    std::string text = refusal(dense, adapter, bits);
    EXPECT_TRUE(text.starts_with("unsupported (lora): ")) << text;
    EXPECT_NE(text.find("speech lora bake"), std::string::npos) << text;
  }
  EXPECT_TRUE(refusal(folder("mlx-4bit-g64") + "/checkpoint", adapter).starts_with("unsupported"));
  EXPECT_TRUE(refusal(folder("gguf") + "/dup-f32.gguf", adapter).starts_with("unsupported (lora)"));
  // Of another model, and no adapter at all.
  EXPECT_TRUE(
      refusal(folder("dense-odd-sharded") + "/checkpoint", adapter).starts_with("model_file"));
  EXPECT_TRUE(refusal(dense, dense).starts_with("io"));
}

TEST_F(Qwen3Rewrite, ConvertsToTheGgufOfLlamaCpp) {
  // The reference file was written with the keys, order and names of llama.cpp's converter.
  auto expected = GgufFile::open(folder("gguf") + "/dup-f32.gguf");
  std::string source = folder("dense-dup-head") + "/checkpoint";
  std::string path = out("dup.gguf");
  {
    OutputFile file(path);
    GgufWriter writer;
    auto tensors = open_tensor_file(source);
    qwen3::convert(source, *tensors, {}, writer, file);
    writer.finish();
    file.commit();
  }
  auto written = GgufFile::open(path);
  std::vector<std::string> expected_keys, keys;
  for (const auto& pair : expected->metadata()) expected_keys.push_back(pair.key);
  for (const auto& pair : written->metadata()) keys.push_back(pair.key);
  EXPECT_EQ(keys, expected_keys);
  for (const auto& pair : expected->metadata()) {
    if (pair.key == "general.name" || pair.key == "general.size_label") continue;
    const GgufValue* value = written->find_value(pair.key);
    ASSERT_TRUE(value) << pair.key;
    EXPECT_EQ(value->type_text(), pair.value.type_text()) << pair.key;
    EXPECT_TRUE(std::equal(value->bytes.begin(), value->bytes.end(), pair.value.bytes.begin(),
                           pair.value.bytes.end()))
        << pair.key;
  }
  // A tied model's copy of the embedding is left out; everything else is there and equal.
  for (const TensorEntry& t : expected->tensors()) {
    if (t.name == "output.weight") continue;
    const TensorEntry& w = written->require(t.name);
    EXPECT_EQ(w.shape, t.shape) << t.name;
    EXPECT_EQ(to_f32(w), to_f32(t)) << t.name;
  }
  EXPECT_EQ(written->tensors().size() + 1, expected->tensors().size());

  std::vector<int32_t> ids = ids_of(expectations("dense-dup-head")["ids"]);
  EXPECT_EQ(last_logits(*load(path), ids), last_logits(*load(source), ids));
}

TEST_F(Qwen3Rewrite, ConvertsPackedFoldersAndQuantizesTheResult) {
  std::string source = folder("dense-tied") + "/checkpoint";
  const Family known[] = {qwen3::qwen3_family};
  convert(known, source, out("f32.gguf"), {}, {});
  std::vector<int32_t> ids = ids_of(expectations("dense-tied")["ids"]);
  std::vector<float> dense = last_logits(*load(source), ids);
  EXPECT_EQ(last_logits(*load(out("f32.gguf")), ids), dense);
  for (WeightType type :
       {WeightType::f16, WeightType::q8_0, WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    std::string path = out(std::string(facts(type).name) + ".gguf");
    quantize(known, out("f32.gguf"), path, {.type = type}, {});
    auto model = load(path);
    EXPECT_EQ(model->info().weight_type, facts(type).label);
    EXPECT_LT(distance(dense, last_logits(*model, ids)), 0.6) << facts(type).name;
  }
  std::string packed = folder("mlx-4bit-g64") + "/checkpoint";
  convert(known, packed, out("packed.gguf"), {}, {});
  std::vector<int32_t> packed_ids = ids_of(expectations("mlx-4bit-g64")["ids"]);
  EXPECT_LE(distance(last_logits(*load(packed), packed_ids),
                     last_logits(*load(out("packed.gguf")), packed_ids)),
            kFastTolerance);
}

TEST_F(Qwen3Rewrite, BrokenFoldersAreNamed) {
  auto refusal = [](const std::string& path, LoadParams params) {
    try {
      load_model(path, params);
      return std::string("loaded");
    } catch (const Error& e) {
      return fmt::format("{} ({}): {}", status_name(e.status()), e.option(), e.what());
    }
  };
  // Packed weights are not packed again.
  std::string text = refusal(folder("mlx-4bit-g64") + "/checkpoint", {.quantize_bits = 8});
  EXPECT_TRUE(text.starts_with("unsupported (quantize): ")) << text;
  EXPECT_NE(text.find("int4-g64"), std::string::npos) << text;

  fs::copy(base_, out("ints"), fs::copy_options::recursive);
  std::string file = out("ints") + "/model.safetensors";
  std::string bytes = read_text_file(file);
  size_t name = bytes.find("\"model.norm.weight\""), type = bytes.find("\"BF16\"", name);
  ASSERT_NE(type, std::string::npos);
  bytes.replace(type, 6, "\"I16\" ");
  std::ofstream(file, std::ios::binary) << bytes;
  text = refusal(out("ints"), {});
  EXPECT_TRUE(text.starts_with("model_file")) << text;
  EXPECT_NE(text.find("model.norm.weight has type I16"), std::string::npos) << text;

  std::ofstream(out("ints") + "/config.json") << "{\"model_type\": \"qwen3\",}";
  text = refusal(out("ints"), {});
  EXPECT_TRUE(text.starts_with("model_file")) << text;
  EXPECT_NE(text.find("config.json is not valid JSON"), std::string::npos) << text;
}

TEST(Qwen3, InformationSaysWhatIsStored) {
  for (auto [name, type] : {std::pair{"dense-tied/checkpoint", "BF16"},
                            std::pair{"mlx-4bit-g64/checkpoint", "int4-g64"},
                            std::pair{"gguf/odd-q8_0.gguf", "Q8_0"}}) {
    EXPECT_EQ(read_model_info(folder(name)).weight_type, type);
    EXPECT_EQ(load_model(folder(name), {})->info().weight_type, type);
  }
}

TEST(Qwen3, SamplingDefaultsAreThoseOfTheFolder) {
  std::string config = read_text_file(folder("dense-tied") + "/checkpoint/config.json");
  auto read = [&](const Json& generation) {
    return qwen3::parse_config(config, generation.dump(), "folder").sampling;
  };
  SamplingDefaults d = read({{"do_sample", true},
                             {"temperature", 0.5},
                             {"top_k", 7},
                             {"top_p", 0.75},
                             {"min_p", 0.25},
                             {"repetition_penalty", 1.5},
                             {"suppress_tokens", {3, 5}}});
  EXPECT_TRUE(d.sample);
  EXPECT_EQ(d.temperature, 0.5);
  EXPECT_EQ(d.top_k, 7);
  EXPECT_EQ(d.top_p, 0.75);
  EXPECT_EQ(d.min_p, 0.25);
  EXPECT_EQ(d.repetition_penalty, 1.5);
  EXPECT_EQ(d.suppressed, (std::vector<int32_t>{3, 5}));
  d = read(Json::object());
  EXPECT_EQ(d.repetition_penalty, 1);
  EXPECT_TRUE(d.suppressed.empty());
  EXPECT_THROW(read({{"repetition_penalty", 0}}), Error);
  EXPECT_THROW(read({{"min_p", 1.5}}), Error);
  EXPECT_THROW(read({{"suppress_tokens", {608}}}), Error);
}

TEST(Qwen3, RefusesWhatItCannotRun) {
  std::string good = read_text_file(folder("dense-tied") + "/checkpoint/config.json");
  auto message = [&](const std::string& from, const std::string& to) -> std::string {
    std::string text = good;
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      qwen3::parse_config(text, "", "folder");
      return "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::model_file);
      return e.what();
    }
  };
  auto names = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  EXPECT_TRUE(names(message("\"qwen3\"", "\"llama\""), "llama"));
  EXPECT_TRUE(names(message("\"head_dim\": 64", "\"head_dim\": 63"), "head_dim"));
  EXPECT_TRUE(names(message("\"head_dim\": 64,", ""), "head_dim"));
  EXPECT_TRUE(names(message("\"hidden_size\": 256", "\"hidden_size\": -1"), "hidden_size"));
  EXPECT_TRUE(names(message("\"rope_scaling\": null",
                            "\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2}"),
                    "longrope"));
  EXPECT_TRUE(names(message("\"silu\"", "\"gelu\""), "hidden_act"));
  EXPECT_TRUE(names(message("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"), "heads"));
  EXPECT_TRUE(names(message("\"use_cache\": true",
                            "\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}"),
                    "awq"));
  EXPECT_EQ(message("\"rope_scaling\": null",
                    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
                    "\"original_max_position_embeddings\": 32768}"),
            "accepted");
  EXPECT_THROW(qwen3::parse_config("[]", "", "folder"), Error);
  EXPECT_THROW(qwen3::parse_config("{", "", "folder"), Error);
}

}  // namespace
}  // namespace speech
