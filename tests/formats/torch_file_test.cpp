#include "formats/torch_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "formats/safetensors.h"
#include "formats/zip_builder.h"
#include "test_data.h"

namespace speech {
namespace {

using testing::bytes_of;
using testing::data_path;
using testing::error_of;
using testing::from_string;
using testing::ZipBuilder;

std::string data(const std::string& name) {
  return data_path("formats/" + name);
}

// Every tensor of `expected` is in `file` with the same shape and values, and no others are.
void expect_same_tensors(const TensorFile& file, const TensorFile& expected) {
  EXPECT_EQ(file.tensors().size(), expected.tensors().size());
  for (const TensorEntry& want : expected.tensors()) {
    const TensorEntry* found = file.find(want.name);
    ASSERT_TRUE(found) << want.name;
    EXPECT_EQ(found->shape, want.shape) << want.name;
    EXPECT_EQ(found->type, want.type) << want.name;
    EXPECT_EQ(to_f32(*found), to_f32(want)) << want.name;
  }
}

TEST(Torch, StateDictOfEveryTypeAndStride) {
  auto file = TorchFile::open(data("state_dict.pt"));
  EXPECT_EQ(file->format(), "torch");
  expect_same_tensors(*file, *SafetensorsFile::open(data("state_dict.safetensors")));
  EXPECT_EQ(file->require("transposed").strides, (std::vector<int64_t>{1, 6}));
  EXPECT_TRUE(file->require("matrix").strides.empty());
  EXPECT_EQ(file->require("tied").bytes.data(), file->require("matrix").bytes.data());
  EXPECT_EQ(to_i64(file->require("long")), (std::vector<int64_t>{int64_t{1} << 40, -1}));
}

TEST(Torch, CheckpointWithMetadata) {
  for (const char* name : {"checkpoint.ckpt", "deflated.ckpt"}) {
    auto file = TorchFile::open(data(name));
    expect_same_tensors(*file, *SafetensorsFile::open(data("module.safetensors")));
    nlohmann::ordered_json metadata = file->metadata();
    EXPECT_EQ(metadata["epoch"], 3);
    EXPECT_EQ(metadata["hyper_parameters"].dump(),
              R"({"rates":[2,8],"name":"tiny","lr":0.001,"flag":true,"none":null})");
    EXPECT_FALSE(metadata.contains("state_dict"));
    EXPECT_FALSE(metadata.contains("optimizer_states"));
  }
}

TEST(Torch, PickledModuleAndScript) {
  auto expected = SafetensorsFile::open(data("module.safetensors"));
  expect_same_tensors(*TorchFile::open(data("module.pt")), *expected);
  auto script = TorchFile::open(data("script.jit"));
  EXPECT_EQ(script->format(), "torchscript");
  expect_same_tensors(*script, *expected);
}

TEST(Torch, Protocol4) {
  EXPECT_EQ(to_f32(TorchFile::open(data("protocol4.pt"))->require("w")),
            (std::vector<float>{0, 1, 2}));
}

TEST(Torch, UnsupportedTensorsAreRefused) {
  EXPECT_NE(error_of([] { TorchFile::open(data("sparse.pt")); }).find("_rebuild_sparse_tensor"),
            std::string::npos);
  EXPECT_NE(error_of([] { TorchFile::open(data("quantized.pt")); }).find("_rebuild_qtensor"),
            std::string::npos);
  EXPECT_NE(error_of([] { open_tensor_file(data("legacy.pt")); }).find("before 1.6"),
            std::string::npos);
}

std::string error_of_zip(const ZipBuilder& zip) {
  std::string bytes = zip.build();
  return error_of([&] { TorchFile::parse(from_string(bytes)); });
}

std::string error_of_pickle(const std::string& pickle) {
  return error_of_zip(
      ZipBuilder().add("m/data.pkl", pickle).add("m/data/0", std::string(16, '\0')));
}

std::string integer(int64_t value) {
  return "\x8a\x08" + bytes_of(value);  // LONG1
}
std::string tuple(const std::vector<int64_t>& values) {
  std::string text = "(";
  for (int64_t value : values) text += integer(value);
  return text + "t";
}
// A dict with one tensor "t" of 4 floats' storage.
std::string tensor_pickle(int64_t offset, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides, int64_t held = 4) {
  return "\x80\x02}U\x01tctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\n"
         "U\x01"
         "0U\x03"
         "cpu" +
         integer(held) + "tQ" + integer(offset) + tuple(shape) + tuple(strides) + "\x89}tRs.";
}

void expect_error(const std::string& error, std::string_view part) {
  EXPECT_NE(error.find(part), std::string::npos) << error << " lacks " << part;
}

TEST(Torch, ImpossibleTensorsAreRefused) {
  EXPECT_EQ(error_of_pickle(tensor_pickle(0, {2, 2}, {2, 1})), "");
  EXPECT_EQ(error_of_pickle(tensor_pickle(0, {2, 2}, {1, 2})), "");
  expect_error(error_of_pickle(tensor_pickle(1, {2, 2}, {2, 1})), "past the end of its storage");
  expect_error(error_of_pickle(tensor_pickle(-1, {2, 2}, {2, 1})), "at least 0");
  expect_error(error_of_pickle(tensor_pickle(0, {2, 2}, {-2, 1})), "at least 0");
  expect_error(error_of_pickle(tensor_pickle(0, {2, 2}, {2})), "impossible shape");
  expect_error(error_of_pickle(tensor_pickle(INT64_MAX, {1}, {1})), "past the end");
  expect_error(error_of_pickle(tensor_pickle(0, {2}, {INT64_MAX})), "past the end");
  expect_error(error_of_pickle(tensor_pickle(0, {3}, {INT64_MAX})), "past the end");
  expect_error(error_of_pickle(tensor_pickle(0, {INT64_MAX, 3}, {0, 0})), "impossible shape");
  expect_error(error_of_pickle(tensor_pickle(0, {int64_t{1} << 40}, {0})), "impossible shape");
  expect_error(error_of_pickle(tensor_pickle(0, {1}, {1}, 5)), "do not suffice");
  expect_error(error_of_pickle(tensor_pickle(0, {1}, {1}, INT64_MAX)), "do not suffice");
  expect_error(
      error_of_pickle(tensor_pickle(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))),
      "65 axes");
}

TEST(Torch, PicklesRunNothing) {
  // os.system("true") is passed over: a description of a call and no more.
  EXPECT_EQ(error_of_pickle("\x80\x02}U\x01xcos\nsystem\nU\x04true\x85Rs."), "");
}

TEST(Torch, BrokenPicklesAreRefused) {
  expect_error(error_of_pickle(""), "an opcode of a pickle");
  expect_error(error_of_pickle("."), "stack is empty");
  expect_error(error_of_pickle("\x80\x07N."), "protocol 7");
  expect_error(error_of_pickle("h\x01."), "not memoized");
  expect_error(error_of_pickle("t."), "no mark");
  expect_error(error_of_pickle("N(\x85."), "stack is empty");
  expect_error(error_of_pickle("}(Nu."), "a key has no value");
  expect_error(error_of_pickle("NNa."), "something that has none");
  expect_error(error_of_pickle("I1\n."), "opcode 0x49");
  expect_error(error_of_pickle("X\xff\xff\xff\xff."), "4294967295 bytes");
  // Lists within lists, each twice the one before: 2^40 leaves in a hundred bytes.
  std::string bomb = "]q" + std::string(1, '\0');
  for (char i = 1; i <= 40; ++i) {
    bomb += "](h" + std::string(1, i - 1) + "h" + std::string(1, i - 1) + "eq" + std::string(1, i);
  }
  expect_error(error_of_pickle("\x80\x02" + bomb + "."), "names of its tensors take more than");
  // A list that holds itself.
  expect_error(error_of_pickle("\x80\x02]q\x01h\x01"
                               "a."),
               "nested too deep");
}

TEST(Torch, BrokenArchivesAreRefused) {
  const std::string pickle = "\x80\x02}.";
  EXPECT_EQ(error_of_zip(ZipBuilder().add("m/data.pkl", pickle)), "");
  expect_error(error_of_zip(ZipBuilder().add("x", "y")), "no data.pkl");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle).add("n/data.pkl", pickle)),
               "holds two models");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle).add("m/data.pkl", pickle)),
               "occurs twice");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle).add("m/byteorder", "big")),
               "big-endian");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle, 14, 3, 0)), "method 14");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle, 0, 9, 0)),
               "cannot hold 9 bytes");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle, 8, 3, 0)), "cannot be unfolded");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle, 8, 4000000000u, 0)),
               "cannot hold");
  // A bomb within deflate's reach: 300 MB in 300 kB.
  expect_error(
      error_of_zip(ZipBuilder().add("m/data.pkl", std::string(300'000, 'x'), 8, 300'000'000, 0)),
      "unfolds to 300000000 bytes");
  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", tensor_pickle(0, {1}, {1}))),
               "storage 0, which is missing");

  expect_error(error_of_zip(ZipBuilder().add("m/data.pkl", pickle, 0, pickle.size(), 1)),
               "m/data.pkl does not have its checksum");
  // Storages are read when they are needed: check_contents() does.
  std::string damaged = ZipBuilder()
                            .add("m/data.pkl", tensor_pickle(0, {1}, {1}))
                            .add("m/data/0", std::string(16, 'a'), 0, 16, 1)
                            .build();
  auto opened = TorchFile::parse(from_string(damaged));
  expect_error(error_of([&] { opened->check_contents(); }), "m/data/0 does not have its checksum");

  std::string bytes = ZipBuilder().add("m/data.pkl", pickle).build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string cut = bytes.substr(0, size);
    EXPECT_NE(error_of([&] { TorchFile::parse(from_string(cut)); }), "") << size;
  }
}

}  // namespace
}  // namespace speech
