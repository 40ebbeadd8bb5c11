// .nemo, .npy and ONNX files, recognition by contents, and descriptions.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/describe.h"
#include "formats/format_testing.h"
#include "formats/gguf.h"
#include "formats/nemo_file.h"
#include "formats/npy_file.h"
#include "formats/onnx_file.h"
#include "formats/safetensors.h"
#include "test_data.h"

namespace speech {
namespace {

using testing::bytes_of;
using testing::data_path;
using testing::error_of;
using testing::from_string;
using testing::TempFolder;
using testing::write_file;

std::string data(const std::string& name) {
  return data_path("formats/" + name);
}

void expect_error(const std::string& error, std::string_view part) {
  EXPECT_NE(error.find(part), std::string::npos) << error << " lacks " << part;
}

TEST(Nemo, PlainAndGzipped) {
  auto expected = SafetensorsFile::open(data("module.safetensors"));
  for (const char* name : {"plain.nemo", "gzip.nemo"}) {
    auto file = NemoFile::open(data(name));
    EXPECT_EQ(file->config(), "sample_rate: 16000\n");
    EXPECT_EQ(file->require_member("nemo:0123_tokenizer.model").text(), "tokens");
    std::string long_name;
    for (int i = 0; i < 40; ++i) long_name += "long_";
    EXPECT_EQ(file->require_member(long_name + ".txt").text(), "long");
    EXPECT_EQ(file->find_member("absent"), nullptr);
    ASSERT_EQ(file->tensors().size(), expected->tensors().size());
    for (const TensorEntry& tensor : expected->tensors()) {
      EXPECT_EQ(to_f32(file->require(tensor.name)), to_f32(tensor)) << tensor.name;
    }
  }
}

TEST(Nemo, BrokenArchivesAreRefused) {
  std::string plain = read_text_file(data("plain.nemo"));
  auto error = [](const std::string& bytes) {
    return error_of([&] { NemoFile::parse(from_string(bytes)); });
  };
  EXPECT_EQ(error(plain), "");
  std::string damaged = plain;
  damaged[600] ^= 1;
  expect_error(error(damaged), "tar header at byte 512 is damaged");
  for (size_t size = 0; size < 5000; size += 100) EXPECT_NE(error(plain.substr(0, size)), "");
  expect_error(error(std::string(1024, '\0')), "model_weights.ckpt is missing");
  std::string gzip = read_text_file(data("gzip.nemo"));
  for (size_t size = 2; size < gzip.size(); size += 50) {
    expect_error(error(gzip.substr(0, size)), "cut short or damaged");
  }
}

TEST(Npy, EveryVersionAndOrder) {
  auto file = NpyFile::open(data("f32.npy"));
  EXPECT_EQ(file->require("array").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(to_f32(file->require("array")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(to_i64(NpyFile::open(data("fortran.npy"))->require("array")),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(to_f32(NpyFile::open(data("scalar.npy"))->require("array")),
            (std::vector<float>{2.5f}));
  EXPECT_EQ(to_f32(NpyFile::open(data("f16.npy"))->require("array")),
            (std::vector<float>{1.5f, -2.f}));
  EXPECT_EQ(to_i64(NpyFile::open(data("version3.npy"))->require("array")),
            (std::vector<int64_t>{1, 0}));
  expect_error(error_of([] { NpyFile::open(data("record.npy")); }), "arrays of records");
  expect_error(error_of([] { NpyFile::open(data("big_endian.npy")); }), "big-endian");
}

TEST(Npy, BrokenFilesAreRefused) {
  auto error = [](const std::string& header, const std::string& values = "") {
    std::string bytes =
        std::string("\x93NUMPY\x01\x00", 8) + bytes_of<uint16_t>(header.size()) + header + values;
    return error_of([&] { NpyFile::parse(from_string(bytes)); });
  };
  auto of_shape = [](const std::string& shape) {
    return "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
  };
  EXPECT_EQ(error(of_shape("(1,)"), "1234"), "");
  expect_error(error(of_shape("(2,)"), "1234"), "do not take");
  expect_error(error(of_shape("(1,)"), "12345"), "do not take");
  expect_error(error(of_shape("(-1,)")), "an axis is not a number");
  expect_error(error(of_shape("(99999999999999999999,)")), "an axis is not a number");
  expect_error(error(of_shape("(4611686018427387904, 4)")), "do not take");
  expect_error(error(of_shape("(4611686018427387904,)")), "do not take");
  expect_error(error(of_shape("(1,)") + "x", "1234"), "something follows");
  expect_error(error("{'descr': '<f4'}"), "lacks descr");
  expect_error(error("{'descr': '<U4', 'fortran_order': False, 'shape': ()}"), "not supported");
  expect_error(error("{'descr': '<f4', 'descr': '<f4'}"), "occurs twice");
  expect_error(error("{'descr"), "does not end");
  expect_error(error(""), "'{' is missing");
}

TEST(Onnx, EveryFieldAndSubgraph) {
  auto file = OnnxFile::open(data("model.onnx"));
  EXPECT_EQ(to_f32(file->require("raw_f32")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file->require("raw_f32").shape, (std::vector<int64_t>{2, 3}));
  for (const char* name : {"float_data", "half_data", "bf16_data"}) {
    EXPECT_EQ(to_f32(file->require(name)), (std::vector<float>{1.5f, -2.f})) << name;
  }
  EXPECT_EQ(to_i64(file->require("int64_data")), (std::vector<int64_t>{int64_t{1} << 40, -1}));
  for (const char* name : {"int32_data", "int8_data"}) {
    EXPECT_EQ(to_i64(file->require(name)), (std::vector<int64_t>{7, -8})) << name;
  }
  EXPECT_EQ(to_i64(file->require("bool_data")), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(to_f32(file->require("double_data")), (std::vector<float>{0.1f}));
  EXPECT_EQ(to_i64(file->require("uint64_data")), (std::vector<int64_t>{int64_t{1} << 40}));
  EXPECT_EQ(to_i64(file->require("uint32_data")), (std::vector<int64_t>{4294967295}));
  EXPECT_EQ(file->find("text"), nullptr);
  // The branches of the If, in the order of the file.
  EXPECT_EQ(to_f32(file->require("weight")), (std::vector<float>{2}));
  EXPECT_EQ(to_f32(file->require("If_0.then_branch/weight")), (std::vector<float>{1}));
}

// One field of a protobuf message that holds bytes.
std::string field(int number, const std::string& bytes) {
  std::string text(1, static_cast<char>(number << 3 | 2));
  size_t size = bytes.size();
  for (; size >= 128; size >>= 7) text += static_cast<char>(size | 128);
  return text + static_cast<char>(size) + bytes;
}

TEST(Onnx, BrokenFilesAreRefused) {
  auto error = [](const std::string& graph) {
    std::string bytes = "\x08\x08" + field(7, graph);
    return error_of([&] { OnnxFile::parse(from_string(bytes)); });
  };
  auto tensor = [&](const std::string& body) { return error(field(5, body)); };
  const std::string raw = field(9, "1234"), name = field(8, "t");
  EXPECT_EQ(tensor("\x08\x01\x10\x01" + name + raw), "");
  expect_error(tensor("\x08\x02\x10\x01" + name + raw), "has 4 bytes");
  expect_error(tensor("\x08\x01\x10\x63" + name + raw), "type number 99");
  expect_error(tensor("\x08\x01\x10\x01" + raw), "has no name");
  expect_error(tensor("\x08\x01\x10\x01\x70\x01" + name), "separate file");
  expect_error(
      error(field(5, "\x08\x01\x10\x01" + name + raw) + field(5, "\x08\x01\x10\x01" + name + raw)),
      "occurs twice");
  std::string deep = "";
  for (int i = 0; i < 100; ++i) deep = field(1, field(5, field(6, deep)));
  expect_error(error(deep), "nested more than");
  std::string no_graph = "\x08\x08\x12\x01x";
  expect_error(error_of([&] { OnnxFile::parse(from_string(no_graph)); }), "no graph");
  std::string bytes = read_text_file(data("model.onnx"));
  for (size_t size = 0; size < 500; ++size) {
    std::string cut = bytes.substr(0, size);
    EXPECT_NE(error_of([&] { OnnxFile::parse(from_string(cut)); }), "") << size;
  }
}

TEST(OpenTensorFile, GoesByTheContents) {
  for (auto [name, format] : {std::pair("python.gguf", "gguf"),
                              {"module.safetensors", "safetensors"},
                              {"state_dict.pt", "torch"},
                              {"script.jit", "torchscript"},
                              {"plain.nemo", "nemo"},
                              {"gzip.nemo", "nemo"},
                              {"f32.npy", "npy"},
                              {"model.onnx", "onnx"}}) {
    TempFolder folder;
    std::string path = folder / "renamed";
    write_file(path, read_text_file(data(name)));
    EXPECT_EQ(open_tensor_file(path)->format(), format) << name;
  }
  TempFolder folder;
  write_file(folder / "empty", "");
  expect_error(error_of([&] { open_tensor_file(folder / "empty"); }), "is empty");
  write_file(folder / "text", "some text that is long enough");
  expect_error(error_of([&] { open_tensor_file(folder / "text"); }), "none of the files");
  expect_error(error_of([&] { open_tensor_file(folder / "absent"); }), "io: cannot open");
}

TEST(Gguf, FileOfTheOfficialWriter) {
  std::string bytes = read_text_file(data("python.gguf"));
  auto file = GgufFile::parse(from_string(bytes));
  EXPECT_EQ(file->find_value("t.u8")->as_integer(), 200);
  EXPECT_EQ(file->find_value("t.i8")->as_integer(), -3);
  EXPECT_EQ(file->find_value("t.u16")->as_integer(), 60000);
  EXPECT_EQ(file->find_value("t.i16")->as_integer(), -300);
  EXPECT_EQ(file->get_u64("t.u64"), uint64_t{1} << 63);
  EXPECT_EQ(file->get_i64("t.i64"), INT64_MIN);
  EXPECT_EQ(file->get_string("t.string"), "日本");
  EXPECT_EQ(file->get_strings("t.strings"), (std::vector<std::string>{"a", "", "bc"}));
  EXPECT_EQ(file->require("d.weight").shape, (std::vector<int64_t>{1, 1, 3}));

  // Written again, it is the same file.
  TempFolder folder;
  GgufWriter writer;
  for (const auto& pair : file->metadata()) writer.add_pair(pair);
  for (size_t i = 0; i < file->tensors().size(); ++i) {
    const TensorEntry& tensor = file->tensors()[i];
    writer.add_tensor(tensor.name, tensor.shape, file->tensor_type(i));
  }
  OutputFile out(folder / "again.gguf");
  writer.begin(out);
  for (const TensorEntry& tensor : file->tensors()) writer.write(tensor.bytes);
  writer.finish();
  out.commit();
  EXPECT_EQ(read_text_file(folder / "again.gguf"), bytes);
}

TEST(Describe, TextAndJson) {
  auto file = open_tensor_file(data("python.gguf"));
  auto json = describe_json(*file, true);
  EXPECT_EQ(json["format"], "gguf");
  EXPECT_EQ(json["tensor_count"], 4);
  EXPECT_EQ(json["parameters"], 6 + 3 + 64 + 3);
  EXPECT_EQ(json["identity"]["general.architecture"], "testarch");
  EXPECT_EQ(json["tensors"][2].dump(),
            R"({"name":"c.weight","type":"Q8_0","shape":[2,32],"bytes":68})");
  EXPECT_EQ(json["meta"]["t.u64"], uint64_t{1} << 63);
  EXPECT_EQ(json["meta"]["t.strings"].dump(), R"(["a","","bc"])");
  EXPECT_FALSE(describe_json(*file, false).contains("meta"));
  std::string text = describe_text(*file, false);
  EXPECT_NE(text.find("c.weight  Q8_0     [2, 32]"), std::string::npos) << text;
  EXPECT_EQ(text.find("t.u64"), std::string::npos);
  EXPECT_NE(describe_text(*file, true).find("t.u64"), std::string::npos);

  auto nemo = open_tensor_file(data("plain.nemo"));
  EXPECT_EQ(describe_json(*nemo, true)["meta"]["model_config.yaml"], "sample_rate: 16000\n");
  EXPECT_EQ(describe_json(*nemo, false)["identity"]["model_config.yaml"], 19);
  auto onnx = open_tensor_file(data("model.onnx"));
  EXPECT_EQ(describe_json(*onnx, false)["identity"]["language"], "en");
}

TEST(Describe, TextsThatAreNotUtf8) {
  std::string pairs = bytes_of<uint64_t>(9) + "general.x" + bytes_of<uint32_t>(8) +
                      bytes_of<uint64_t>(2) + "\xff\x1b";
  std::string bytes =
      "GGUF" + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(0) + bytes_of<uint64_t>(1) + pairs;
  auto file = GgufFile::parse(from_string(bytes));
  EXPECT_EQ(describe_json(*file, true)["meta"]["general.x"], "\xef\xbf\xbd\x1b");
  EXPECT_EQ(describe_text(*file, true).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace speech
