#include "models/quantize.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>

#include "formats/format_testing.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "quant/codec.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TempFolder;

StorageClass test_storage(std::string_view name) {
  if (name.starts_with("codec.")) return StorageClass::half;
  return name.ends_with(".weight") ? StorageClass::matrix : StorageClass::full;
}

const Family kFamilies[] = {
    {.architecture = "test-net",
     .read_info = nullptr,
     .load = nullptr,
     .storage = test_storage,
     .requires_for_q8_0 = "0.7.3"},
    {.architecture = "test-f32", .read_info = nullptr, .load = nullptr},
};

struct Source {
  std::string architecture = "test-net", requires_release = "0.7.0";
  uint32_t file_type = 0;
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"a.weight", {8, 512}},           // K blocks fit
      {"b.weight", {4, 640}},           // rows of 640: Q8_0
      {"c.weight", {2, 1996}},          // not even blocks of 32: F16
      {"kernel.weight", {1, 64, 768}},  // ggml's [768, 64, 1] keeps three axes
      {"codec.conv", {3, 5, 7}},        // F16 in every quantized file
      {"a.bias", {8}},
      {"norm.scale", {512}},
      {"scalar", {}},
  };
  std::function<void(const std::string& name, std::vector<float>&)> edit;
};

std::vector<float> values_of(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  std::vector<float> values(static_cast<size_t>(size));
  uint32_t state = static_cast<uint32_t>(name.size() * 7919 + name[0]);
  for (float& v : values) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
  }
  return values;
}

void write_source(const std::string& path, const Source& source = {}) {
  GgufWriter writer;
  writer.add_string("general.architecture", source.architecture);
  writer.add_string("general.basename", "Test-Net");
  writer.add_string("general.size_label", "7K");
  writer.add_string("general.finetune", "ja");
  writer.add_string("general.version", "v2");
  writer.add_u32("general.file_type", source.file_type);
  writer.add_strings("general.languages", std::vector<std::string>{"en", "ja"});
  writer.add_string("speech.requires", source.requires_release);
  writer.add_f32s("test.floats", std::vector<float>{1, -0.0f, std::nanf("")});
  writer.add_bool("test.flag", true);
  for (const auto& [name, shape] : source.tensors) {
    writer.add_tensor(name, shape, *ggml_type(DType::f32));
  }
  OutputFile out(path);
  writer.begin(out);
  for (const auto& [name, shape] : source.tensors) {
    auto values = values_of(name, shape);
    if (source.edit) source.edit(name, values);
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.finish();
  out.commit();
}

int files_in(const std::string& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), {}));
}

std::string types_of(const FilePlan& plan) {
  std::string text;
  for (const auto& tensor : plan.tensors) text += tensor.name + " " + tensor.type + "; ";
  return text;
}

FilePlan run(const std::string& in, const std::string& out, WeightType type, int threads = 2) {
  QuantizeOptions options;
  options.type = type;
  options.threads = threads;
  return quantize(kFamilies, in, out, options, Control());
}

TEST(Quantize, StoresEachTensorByTheTable) {
  TempFolder folder;
  write_source(folder / "in.gguf");
  auto types = [&](WeightType type) {
    return types_of(
        plan_quantize(kFamilies, folder / "in.gguf", folder / "out.gguf", {type, 1, "", {}}));
  };
  const std::string full = "a.bias F32; norm.scale F32; scalar F32; ";
  EXPECT_EQ(types(WeightType::f16),
            "a.weight F16; b.weight F16; c.weight F16; kernel.weight F16; codec.conv F16; " + full);
  EXPECT_EQ(
      types(WeightType::q8_0),
      "a.weight Q8_0; b.weight Q8_0; c.weight F16; kernel.weight Q8_0; codec.conv F16; " + full);
  EXPECT_EQ(
      types(WeightType::q6_k),
      "a.weight Q6_K; b.weight Q8_0; c.weight F16; kernel.weight Q6_K; codec.conv F16; " + full);
  EXPECT_EQ(
      types(WeightType::q4_k),
      "a.weight Q4_K; b.weight Q8_0; c.weight F16; kernel.weight Q4_K; codec.conv F16; " + full);
  EXPECT_EQ(files_in(folder.path()), 1);  // a plan writes nothing
}

TEST(Quantize, WritesWhatTheCodecsMakeAndKeepsTheMetadata) {
  TempFolder folder;
  write_source(folder / "in.gguf");
  auto before = GgufFile::open(folder / "in.gguf");
  for (auto type :
       {WeightType::f16, WeightType::q8_0, WeightType::q6_k, WeightType::q5_k, WeightType::q4_k}) {
    FilePlan plan = run(folder / "in.gguf", folder / "out.gguf", type);
    auto after = GgufFile::open(folder / "out.gguf");
    EXPECT_EQ(plan.file_bytes, fs::file_size(folder / "out.gguf"));
    EXPECT_EQ(plan.weight_type, facts(type).label);

    // Keys keep their order and bytes, but for the three that say what the file is.
    size_t at = 0;
    for (const auto& pair : before->metadata()) {
      const auto& copy = after->metadata()[at++];
      ASSERT_EQ(copy.key, pair.key);
      if (pair.key == "general.file_type") {
        EXPECT_EQ(copy.value.as_integer(), facts(type).gguf_file_type);
        if (type != WeightType::f16) {
          EXPECT_EQ(after->metadata()[at].key, "general.quantization_version");
          EXPECT_EQ(after->metadata()[at++].value.as_integer(), 2);
        }
      } else if (pair.key == "speech.requires") {
        bool k = facts(type).block == 256;
        EXPECT_EQ(copy.value.as_string(), k                          ? "0.8.0"
                                          : type == WeightType::q8_0 ? "0.7.3"
                                                                     : "0.7.0");
      } else {
        EXPECT_TRUE(std::ranges::equal(copy.bytes, pair.bytes)) << pair.key;
      }
    }
    EXPECT_EQ(after->metadata().size(), at);

    ASSERT_EQ(after->tensors().size(), before->tensors().size());
    for (size_t i = 0; i < before->tensors().size(); ++i) {
      const auto& from = before->tensors()[i];
      const auto& to = after->tensors()[i];
      EXPECT_EQ(to.name, from.name);
      EXPECT_EQ(to.shape, from.shape);
      EXPECT_EQ(to.type_name, plan.tensors[i].type);
      EXPECT_EQ(to.bytes.size(), plan.tensors[i].bytes);
      auto stored = *weight_type_from_name(to.type_name);
      int64_t cols = from.shape.empty() ? 1 : from.shape.back();
      auto values = to_f32(from);
      std::vector<std::byte> expected(to.bytes.size());
      for (int64_t r = 0; r * cols < from.elements(); ++r) {
        encode_row(stored, values.data() + r * cols, expected.data() + r * row_bytes(stored, cols),
                   cols);
      }
      EXPECT_TRUE(std::ranges::equal(to.bytes, expected)) << from.name;
    }
  }
}

TEST(Quantize, BytesDoNotDependOnThreads) {
  TempFolder folder;
  Source source;
  source.tensors = {{"big.weight", {300, 1024}}, {"b.weight", {33, 96}}};
  write_source(folder / "in.gguf", source);
  run(folder / "in.gguf", folder / "one.gguf", WeightType::q5_k, 1);
  run(folder / "in.gguf", folder / "three.gguf", WeightType::q5_k, 3);
  EXPECT_EQ(read_text_file(folder / "one.gguf"), read_text_file(folder / "three.gguf"));
}

TEST(Quantize, NamesTheFileInAFolder) {
  TempFolder folder;
  write_source(folder / "in.gguf");
  fs::create_directory(folder / "out");
  auto plan = run(folder / "in.gguf", folder / "out", WeightType::q4_k);
  EXPECT_EQ(plan.path, folder / "out/Test-Net-7K-ja-v2-Q4_K.gguf");
  EXPECT_TRUE(fs::exists(plan.path));

  GgufWriter writer;
  writer.add_string("general.architecture", "test-net");
  writer.add_string("general.basename", "../evil");
  writer.add_string("general.size_label", "1");
  writer.add_u32("general.file_type", 0);
  std::vector<int64_t> shape = {2, 32};
  writer.add_tensor("a.weight", shape, *ggml_type(DType::f32));
  OutputFile out(folder / "evil.gguf");
  writer.begin(out);
  auto values = values_of("a", shape);
  writer.write(std::as_bytes(std::span(values)));
  writer.finish();
  out.commit();
  EXPECT_NE(error_of([&] {
              run(folder / "evil.gguf", folder / "out", WeightType::q8_0);
            }).find("general.basename"),
            std::string::npos);
  run(folder / "evil.gguf", folder / "named.gguf", WeightType::q8_0);  // no requires key is needed
}

TEST(Quantize, FileTypeNamesTheTypeOfMostBytes) {
  TempFolder folder;
  Source source;
  source.tensors = {{"a.weight", {1, 256}}, {"b.weight", {64, 96}}};
  write_source(folder / "in.gguf", source);
  auto plan = run(folder / "in.gguf", folder / "out.gguf", WeightType::q4_k);
  EXPECT_EQ(plan.weight_type, "Q8_0");
  EXPECT_EQ(GgufFile::open(folder / "out.gguf")->get_u32("general.file_type"), 7u);
}

TEST(Quantize, RefusesWhatIsNoF32Model) {
  TempFolder folder;
  Source source;
  source.file_type = 1;
  write_source(folder / "f16.gguf", source);
  EXPECT_EQ(error_of([&] {
              run(folder / "f16.gguf", folder / "out.gguf", WeightType::q8_0);
            }).substr(0, 17),
            "invalid_argument:");

  source = {};
  source.architecture = "test-f32";
  write_source(folder / "only.gguf", source);
  EXPECT_NE(error_of([&] {
              run(folder / "only.gguf", folder / "out.gguf", WeightType::q8_0);
            }).find("invalid_argument: "),
            std::string::npos);

  source.architecture = "other";
  write_source(folder / "other.gguf", source);
  auto error = error_of([&] { run(folder / "other.gguf", folder / "out.gguf", WeightType::q8_0); });
  EXPECT_NE(error.find("model_file: "), std::string::npos);
  EXPECT_NE(error.find("test-net"), std::string::npos) << "lists the known ones";

  // A quantized file that claims to be F32.
  write_source(folder / "in.gguf");
  run(folder / "in.gguf", folder / "q.gguf", WeightType::q8_0);
  EXPECT_EQ(error_of([&] {
              run(folder / "q.gguf", folder / "out.gguf", WeightType::q4_k);
            }).substr(0, 17),
            "invalid_argument:");
  EXPECT_FALSE(fs::exists(folder / "out.gguf"));
}

TEST(Quantize, RefusesWeightsThatAreNoNumbersOrTooLarge) {
  TempFolder folder;
  write_source(folder / "good.gguf");
  run(folder / "good.gguf", folder / "out.gguf", WeightType::q8_0);
  std::string old = read_text_file(folder / "out.gguf");
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    const char* tensor;
    float value;
    WeightType type;
  };
  for (auto c :
       {Case{"a.weight", std::nanf(""), WeightType::q4_k}, Case{"b.weight", -inf, WeightType::q4_k},
        Case{"a.bias", inf, WeightType::f16}, Case{"c.weight", 70000, WeightType::q8_0},
        Case{"codec.conv", -65520, WeightType::q6_k}, Case{"a.weight", 1e8f, WeightType::q8_0}}) {
    Source source;
    source.edit = [&](const std::string& name, std::vector<float>& values) {
      if (name == c.tensor) values[5] = values[7] = c.value;
    };
    write_source(folder / "in.gguf", source);
    auto error = error_of([&] { run(folder / "in.gguf", folder / "out.gguf", c.type); });
    EXPECT_EQ(error.substr(0, 12), "model_file: ") << error;
    EXPECT_NE(error.find(std::string("tensor ") + c.tensor), std::string::npos) << error;
    EXPECT_NE(error.find("at value 5"), std::string::npos) << error;
    EXPECT_EQ(files_in(folder.path()), 3);
    EXPECT_EQ(read_text_file(folder / "out.gguf"), old);  // the older file stays
  }
}

TEST(Quantize, OutputIsAModelFileAndNotTheInput) {
  TempFolder folder;
  write_source(folder / "in.gguf");
  std::string before = read_text_file(folder / "in.gguf");
  fs::create_symlink(folder / "in.gguf", folder / "link.gguf");
  fs::create_directory(folder / "sub.gguf");
  for (std::string out :
       {folder / "in.gguf", folder / "link.gguf", folder / "out.bin", folder / "out"}) {
    auto error = error_of([&] { run(folder / "in.gguf", out, WeightType::q8_0); });
    EXPECT_EQ(error.substr(0, 17), "invalid_argument:") << out << " " << error;
  }
  EXPECT_EQ(error_of([&] {
              run(folder / "in.gguf", folder / "no/out.gguf", WeightType::q8_0);
            }).substr(0, 3),
            "io:");
  EXPECT_EQ(read_text_file(folder / "in.gguf"), before);
  EXPECT_EQ(files_in(folder.path()), 3);
}

TEST(Quantize, FullDiskAndCancellingLeaveNothing) {
  TempFolder folder;
  write_source(folder / "in.gguf");
  // A limit on file sizes acts as a full disk: the write fails part of the way.
  rlimit old{}, limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  limit = old;
  limit.rlim_cur = 8192;
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  auto error = error_of([&] { run(folder / "in.gguf", folder / "out.gguf", WeightType::q8_0); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.substr(0, 3), "io:") << error;
  EXPECT_NE(error.find("out.gguf"), std::string::npos) << error;
  EXPECT_EQ(files_in(folder.path()), 1);

  std::vector<double> seen;
  Control control;
  control.progress = [&](double done) {
    seen.push_back(done);
    return done > 0.5;
  };
  EXPECT_EQ(error_of([&] {
              quantize(kFamilies, folder / "in.gguf", folder / "out.gguf", {}, control);
            }).substr(0, 10),
            "cancelled:");
  EXPECT_EQ(files_in(folder.path()), 1);
  EXPECT_EQ(seen.front(), 0);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));

  control.progress = [&](double done) {
    seen.push_back(done);
    return false;
  };
  quantize(kFamilies, folder / "in.gguf", folder / "out.gguf", {}, control);
  EXPECT_EQ(seen.back(), 1);
}

TEST(Quantize, ImportanceSteersTheKTypes) {
  TempFolder folder;
  Source source;
  source.tensors = {{"a.weight", {16, 512}}, {"b.weight", {16, 512}}};
  write_source(folder / "in.gguf", source);
  std::vector<float> weights(512);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = i % 16 ? 0.05f : 4.0f;
  auto write = [&](const std::string& name, const std::vector<float>& values) {
    SafetensorsWriter writer;
    std::vector<int64_t> shape = {static_cast<int64_t>(values.size())};
    writer.add_tensor(name, DType::f32, shape);
    OutputFile out(folder / "importance.safetensors");
    writer.begin(out);
    writer.write(std::as_bytes(std::span(values)));
    writer.finish();
    out.commit();
  };
  QuantizeOptions options{WeightType::q4_k, 2, folder / "importance.safetensors", {}};
  auto quantized = [&](const std::string& path, const std::string& tensor) {
    auto file = GgufFile::open(path);
    const auto& entry = file->require(tensor);
    std::vector<float> values(16 * 512);
    decode_row(WeightType::q4_k, entry.bytes.data(), values.data(), 16 * 512);
    return values;
  };
  auto error = [&](const std::string& path, const std::string& tensor) {
    auto original = values_of(tensor, {16, 512}), decoded = quantized(path, tensor);
    double sum = 0;
    for (size_t i = 0; i < original.size(); ++i) {
      sum += weights[i % 512] * std::pow(decoded[i] - original[i], 2);
    }
    return sum;
  };
  run(folder / "in.gguf", folder / "plain.gguf", WeightType::q4_k);
  write("a.weight", weights);
  quantize(kFamilies, folder / "in.gguf", folder / "out.gguf", options, Control());
  EXPECT_LT(error(folder / "out.gguf", "a.weight"), 0.9 * error(folder / "plain.gguf", "a.weight"));
  EXPECT_EQ(quantized(folder / "out.gguf", "b.weight"),
            quantized(folder / "plain.gguf", "b.weight"));
  write("a.weight.in_sum2", weights);
  quantize(kFamilies, folder / "in.gguf", folder / "sums.gguf", options, Control());
  EXPECT_EQ(read_text_file(folder / "sums.gguf"), read_text_file(folder / "out.gguf"));

  auto refused = [&] {
    return error_of(
        [&] { plan_quantize(kFamilies, folder / "in.gguf", folder / "x.gguf", options); });
  };
  write("unknown.weight", weights);
  EXPECT_EQ(refused().substr(0, 11), "model_file:");
  write("a.weight", std::vector<float>(511, 1.0f));
  EXPECT_NE(refused().find("a.weight"), std::string::npos);
  weights[3] = -1;
  write("a.weight", weights);
  EXPECT_NE(refused().find("-1"), std::string::npos);
}

TEST(Quantize, TypeNames) {
  EXPECT_EQ(quantize_type("Q4_K"), WeightType::q4_k);
  for (std::string name : {"f32", "bf16", "q4_0", ""}) {
    EXPECT_EQ(error_of([&] { quantize_type(name); }).substr(0, 13), "out_of_range:");
  }
}

}  // namespace
}  // namespace speech
