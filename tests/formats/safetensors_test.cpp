#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include "formats/format_testing.h"

namespace speech {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::from_string;
using testing::TempFolder;
using testing::write_file;

std::string file_of(const std::string& header, const std::string& data) {
  return bytes_of<uint64_t>(header.size()) + header + data;
}

std::string parse_error(const std::string& header, const std::string& data) {
  std::string bytes = file_of(header, data);
  return error_of([&] { SafetensorsFile::parse(from_string(bytes)); });
}

std::string tensor_of(const std::string& name, float value) {
  return file_of(R"({")" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                 bytes_of(value));
}

TEST(Safetensors, UnalignedDataInAnyOrder) {
  // As MLX writes it: null metadata, no padding, keys sorted while data lies in another order.
  std::string bytes =
      file_of(R"({"__metadata__":null,"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
              R"("b":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}})",
              std::string("\x01") + bytes_of(1.5f) + bytes_of(-2.f));
  auto file = SafetensorsFile::parse(from_string(bytes));
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(to_f32(file->require("a")), (std::vector<float>{1.5f, -2.f}));
  EXPECT_EQ(to_i64(file->require("b")), std::vector<int64_t>{1});
  EXPECT_TRUE(file->metadata().empty());
}

TEST(Safetensors, RoundTrip) {
  TempFolder folder;
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<uint8_t> b = {9};
  std::vector<int64_t> shape_a = {2, 3}, shape_b = {}, shape_e = {3, 0};
  SafetensorsWriter writer;
  writer.add_metadata("format", "pt");
  writer.add_metadata("quote", "\"\n");
  writer.add_tensor("b", DType::u8, shape_b);
  writer.add_tensor("e", DType::bf16, shape_e);
  writer.add_tensor("a", DType::f32, shape_a);
  OutputFile out(folder / "x.safetensors");
  writer.begin(out);
  EXPECT_EQ(out.size() % 8, 0u);
  writer.write(std::as_bytes(std::span(b)));
  EXPECT_NE(error_of([&] { writer.finish(); }), "");
  writer.write(std::as_bytes(std::span(a)));
  EXPECT_NE(error_of([&] { writer.write(std::as_bytes(std::span(b))); }), "");
  writer.finish();
  out.commit();
  auto file = SafetensorsFile::open(folder / "x.safetensors");
  ASSERT_EQ(file->metadata().size(), 2u);
  EXPECT_EQ(file->metadata()[1].second, "\"\n");
  EXPECT_EQ(to_f32(file->require("a")), a);
  EXPECT_EQ(file->require("a").shape, shape_a);
  EXPECT_EQ(to_i64(file->require("b")), std::vector<int64_t>{9});
  EXPECT_EQ(file->require("e").shape, shape_e);
}

TEST(Safetensors, EveryFloatType) {
  std::string data = bytes_of(0.1) + bytes_of<uint16_t>(0x3e00) + bytes_of<uint16_t>(0x0001) +
                     bytes_of<uint16_t>(0xfc00) + bytes_of<uint16_t>(0xc040) +
                     std::string("\x38\x08\x01\x7e\xff\x80", 6) +
                     std::string("\x3c\x01\x7b\xfc\x7f\x80", 6);
  std::string bytes = file_of(R"({"f64":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                              R"("f16":{"dtype":"F16","shape":[3],"data_offsets":[8,14]},)"
                              R"("bf16":{"dtype":"BF16","shape":[1],"data_offsets":[14,16]},)"
                              R"("e4":{"dtype":"F8_E4M3","shape":[6],"data_offsets":[16,22]},)"
                              R"("e5":{"dtype":"F8_E5M2","shape":[6],"data_offsets":[22,28]}})",
                              data);
  auto file = SafetensorsFile::parse(from_string(bytes));
  EXPECT_EQ(to_f32(file->require("f64")), std::vector<float>{0.1f});
  EXPECT_EQ(to_f32(file->require("f16")),
            (std::vector<float>{1.5f, std::ldexp(1.f, -24), -INFINITY}));
  EXPECT_EQ(to_f32(file->require("bf16")), std::vector<float>{-3.f});
  auto e4 = to_f32(file->require("e4"));
  EXPECT_EQ(std::vector<float>(e4.begin(), e4.begin() + 4),
            (std::vector<float>{1.f, std::ldexp(1.f, -6), std::ldexp(1.f, -9), 448.f}));
  EXPECT_TRUE(std::isnan(e4[4]));
  EXPECT_TRUE(e4[5] == 0 && std::signbit(e4[5]));
  auto e5 = to_f32(file->require("e5"));
  EXPECT_EQ(std::vector<float>(e5.begin(), e5.begin() + 4),
            (std::vector<float>{1.f, std::ldexp(1.f, -16), 57344.f, -INFINITY}));
  EXPECT_TRUE(std::isnan(e5[4]));
  EXPECT_NE(error_of([&] { to_i64(file->require("f64")); }), "");
}

TEST(Safetensors, IntegerTypes) {
  std::string bytes =
      file_of(R"({"i8":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
              R"("u16":{"dtype":"U16","shape":[1],"data_offsets":[1,3]},)"
              R"("i32":{"dtype":"I32","shape":[1],"data_offsets":[3,7]},)"
              R"("u32":{"dtype":"U32","shape":[1],"data_offsets":[7,11]},)"
              R"("u64":{"dtype":"U64","shape":[1],"data_offsets":[11,19]},)"
              R"("i64":{"dtype":"I64","shape":[1],"data_offsets":[19,27]},)"
              R"("f4":{"dtype":"F4","shape":[2],"data_offsets":[27,28]}})",
              bytes_of<int8_t>(-3) + bytes_of<uint16_t>(65535) + bytes_of<int32_t>(-7) +
                  bytes_of<uint32_t>(4294967295u) + bytes_of<uint64_t>(~uint64_t{0}) +
                  bytes_of<int64_t>(INT64_MIN) + "\x11");
  auto file = SafetensorsFile::parse(from_string(bytes));
  EXPECT_EQ(to_i64(file->require("i8"))[0], -3);
  EXPECT_EQ(to_f32(file->require("u16"))[0], 65535.f);
  EXPECT_EQ(to_i64(file->require("i32"))[0], -7);
  EXPECT_EQ(to_i64(file->require("u32"))[0], 4294967295);
  EXPECT_EQ(to_i64(file->require("i64"))[0], INT64_MIN);
  EXPECT_EQ(to_f32(file->require("u64"))[0], 18446744073709551615.f);
  EXPECT_NE(error_of([&] { to_i64(file->require("u64")); }).find("more than an int64"),
            std::string::npos);
  EXPECT_EQ(file->require("f4").type, DType::other);
  EXPECT_EQ(file->require("f4").type_name, "F4");
}

TEST(Safetensors, BrokenFilesAreRefused) {
  auto expect = [](const std::string& header, const std::string& data, std::string_view part) {
    std::string error = parse_error(header, data);
    EXPECT_NE(error.find(part), std::string::npos) << error << " lacks " << part;
  };
  const std::string four(4, 0);
  auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  EXPECT_EQ(parse_error(entry("F32", "[1]", "[0,4]"), four), "");
  expect("", "", "not valid JSON");
  expect("[]", "", "not a JSON object");
  expect("{", "", "not valid JSON");
  expect(std::string(200000, '['), "", "not a JSON object");
  expect(R"({"a":)" + std::string(200000, '['), "", "not an object");
  expect(R"({"a":{"dtype":"F32"}})", "", "lacks dtype, shape");
  expect(R"({"a":3})", "", "not an object");
  expect(R"({"__metadata__":{"a":3}})", "", "unexpected value: 3");
  expect(entry("F33", "[1]", "[0,4]"), four, "type F33");
  expect(entry("F32", "[-1]", "[0,4]"), four, "unexpected value: -1");
  expect(entry("F32", "[1.0]", "[0,4]"), four, "unexpected value: 1.0");
  expect(entry("F32", "[[1]]", "[0,4]"), four, "an array");
  expect(entry("F32", "[2]", "[0,4]"), four, "needs 8 bytes");
  expect(entry("F32", "[1]", "[4,0]"), four, "needs 4 bytes");
  expect(entry("F32", "[1]", "[0]"), four, "two data_offsets");
  expect(entry("F32", "[1]", "[0,4]"), "", "cut short");
  expect(entry("F32", "[1]", "[0,4]"), four + "x", "1 bytes at the end");
  expect(entry("F32", "[1]", "[1,5]"), four + "x", "gap");
  expect(entry("F32", "[4611686018427387904,4]", "[0,0]"), "", "impossible shape");
  expect(entry("F32", "[18446744073709551615]", "[0,0]"), "", "impossible shape");
  expect(entry("F32", "[2305843009213693952]", "[0,0]"), "", "impossible shape");
  expect(entry("F32", "[18446744073709551616]", "[0,0]"), "", "unexpected value");
  expect(entry("F4", "[1]", "[0,1]"), "x", "impossible shape");
  expect(R"({"a":{"dtype":"F32","dtype":"F32"}})", "", "dtype of a occurs twice");
  expect(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      "xx", "tensor a occurs twice");
  expect(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      "xxx", "overlapping");
  std::string huge = bytes_of<uint64_t>(100'000'001) + "{}";
  EXPECT_NE(error_of([&] { SafetensorsFile::parse(from_string(huge)); }), "");
  std::string tiny = "abc";
  EXPECT_NE(error_of([&] { SafetensorsFile::parse(from_string(tiny)); }), "");
}

TEST(Safetensors, FolderWithIndex) {
  TempFolder folder;
  write_file(folder / "model-00001-of-00002.safetensors", tensor_of("a", 1));
  write_file(folder / "adapter_model.safetensors", tensor_of("a", 5));
  write_file(folder / "model.safetensors.index.json",
             R"({"metadata":{"total_size":8},"weight_map":{)"
             R"("a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  auto open = [&] { return SafetensorsFile::open(folder.path()); };
  EXPECT_NE(error_of(open).find("are missing: model-00002-of-00002.safetensors"),
            std::string::npos);
  write_file(folder / "model-00002-of-00002.safetensors", tensor_of("c", 2));
  EXPECT_NE(error_of(open).find("tensor b is missing from model-00002"), std::string::npos);
  write_file(folder / "model-00002-of-00002.safetensors", tensor_of("b", 2));
  EXPECT_EQ(to_f32(open()->require("b")), std::vector<float>{2});
  EXPECT_EQ(to_f32(open_tensor_file(folder.path())->require("a")), std::vector<float>{1});
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map":{"a":"../model-00001-of-00002.safetensors"}})");
  EXPECT_NE(error_of(open).find("not a file name"), std::string::npos);
  write_file(folder / "model.safetensors.index.json", "[]");
  EXPECT_NE(error_of(open).find("weight_map"), std::string::npos);
}

TEST(Safetensors, FolderWithoutIndex) {
  TempFolder folder;
  EXPECT_NE(error_of([&] { SafetensorsFile::open(folder.path()); }).find("holds neither"),
            std::string::npos);
  write_file(folder / "adapters.safetensors", tensor_of("a", 5));
  EXPECT_FALSE(SafetensorsFile::is_model_folder(folder.path()));
  write_file(folder / "model.safetensors", tensor_of("a", 1));
  write_file(folder / "model-2.safetensors", tensor_of("b", 2));
  EXPECT_TRUE(SafetensorsFile::is_model_folder(folder.path()));
  auto file = SafetensorsFile::open(folder.path());
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(to_f32(file->require("a")), std::vector<float>{1});
  write_file(folder / "model-2.safetensors", tensor_of("a", 2));
  EXPECT_NE(error_of([&] { SafetensorsFile::open(folder.path()); }).find("tensor a occurs twice"),
            std::string::npos);
}

}  // namespace
}  // namespace speech
