#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "formats/format_testing.h"

namespace speech {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::from_string;
using testing::TempFolder;

// Builds GGUF bytes by hand, so that broken ones can be made.
struct Builder {
  std::string pairs, infos, data;
  uint64_t pair_count = 0, tensor_count = 0;
  uint32_t version = 3;
  uint64_t alignment = 32;

  static std::string text(std::string_view value) {
    return bytes_of<uint64_t>(value.size()) + std::string(value);
  }
  Builder& pair(std::string_view key, uint32_t type, std::string value) {
    pairs += text(key) + bytes_of(type) + value;
    ++pair_count;
    return *this;
  }
  Builder& tensor(std::string_view name, std::vector<uint64_t> ne, uint32_t type, uint64_t offset) {
    infos += text(name) + bytes_of<uint32_t>(ne.size());
    for (uint64_t n : ne) infos += bytes_of(n);
    infos += bytes_of(type) + bytes_of(offset);
    ++tensor_count;
    return *this;
  }
  std::string build() const {
    std::string out =
        "GGUF" + bytes_of(version) + bytes_of(tensor_count) + bytes_of(pair_count) + pairs + infos;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
  std::string error() const {
    std::string bytes = build();
    return error_of([&] { GgufFile::parse(from_string(bytes)); });
  }
};

TEST(Gguf, RoundTripOfEveryType) {
  TempFolder folder;
  std::string path = folder / "all.gguf";
  std::vector<std::string> strings = {"", "a", "日本"};
  std::vector<int32_t> i32s = {-1, 2};
  std::vector<uint32_t> u32s = {7};
  std::vector<float> f32s = {0.5f, -3};
  std::vector<double> f64s = {0.1};
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<std::byte> q(2 * 34, std::byte{1});
  {
    GgufWriter writer;
    writer.add_string("general.architecture", "test");
    writer.add_u8("u8", 200);
    writer.add_u32("u32", 4000000000u);
    writer.add_i32("i32", -5);
    writer.add_u64("u64", ~uint64_t{0});
    writer.add_i64("i64", INT64_MIN);
    writer.add_f32("f32", 1.5f);
    writer.add_f64("f64", 0.35);
    writer.add_bool("bool", true);
    writer.add_strings("strings", strings);
    writer.add_i32s("i32s", i32s);
    writer.add_u32s("u32s", u32s);
    writer.add_f32s("f32s", f32s);
    writer.add_f64s("f64s", f64s);
    writer.add_bools("bools", {true, false, true});
    writer.add_strings("none", {});
    std::vector<int64_t> shape_a = {2, 3}, shape_q = {2, 32}, shape_empty = {0, 4};
    writer.add_tensor("empty", shape_empty, *ggml_type(DType::f32));
    writer.add_tensor("a", shape_a, *ggml_type(DType::f32));
    writer.add_tensor("q", shape_q, *ggml_type(DType::q8_0));
    OutputFile out(path);
    writer.begin(out);
    writer.write(std::as_bytes(std::span(a)).first(5));
    writer.write(std::as_bytes(std::span(a)).subspan(5));
    writer.write(q);
    writer.finish();
    EXPECT_EQ(out.size(), writer.file_size());
    out.commit();
  }
  auto file = GgufFile::open(path);
  EXPECT_EQ(file->get_string("general.architecture"), "test");
  EXPECT_EQ(file->find_value("u8")->as_integer(), 200);
  EXPECT_EQ(file->get_u32("u32"), 4000000000u);
  EXPECT_EQ(file->get_i32("i32"), -5);
  EXPECT_EQ(file->get_u64("u64"), ~uint64_t{0});
  EXPECT_EQ(file->get_i64("i64"), INT64_MIN);
  EXPECT_EQ(file->get_f32("f32"), 1.5f);
  EXPECT_EQ(file->get_f64("f64"), 0.35);
  EXPECT_TRUE(file->get_bool("bool"));
  EXPECT_EQ(file->get_strings("strings"), strings);
  EXPECT_EQ(file->get_i32s("i32s"), i32s);
  EXPECT_EQ(file->get_u32s("u32s"), u32s);
  EXPECT_EQ(file->get_f32s("f32s"), f32s);
  EXPECT_EQ(file->get_f64s("f64s"), f64s);
  EXPECT_EQ(file->get_bools("bools"), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(file->get_strings("none").empty());
  EXPECT_FALSE(file->has("absent"));
  EXPECT_EQ(to_f32(file->require("a")), a);
  EXPECT_EQ(file->require("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file->require("q").type, DType::q8_0);
  EXPECT_EQ(file->require("q").bytes.size(), q.size());
  EXPECT_EQ(file->require("empty").elements(), 0);

  // Copied pair by pair, the metadata keeps its bytes.
  GgufWriter copy;
  for (const auto& pair : file->metadata()) copy.add_pair(pair);
  std::string copy_path = folder / "copy.gguf";
  OutputFile out(copy_path);
  copy.begin(out);
  copy.finish();
  out.commit();
  auto copied = GgufFile::open(copy_path);
  EXPECT_TRUE(std::ranges::equal(copied->metadata_bytes(), file->metadata_bytes()));
}

TEST(Gguf, GettersNameKeyAndTypes) {
  Builder b;
  b.pair("x", 5, bytes_of<int32_t>(1));
  b.pair("list", 9, bytes_of<uint32_t>(5) + bytes_of<uint64_t>(0));
  std::string bytes = b.build();
  auto file = GgufFile::parse(from_string(bytes));
  EXPECT_EQ(error_of([&] { file->get_u32("x"); }),
            "model_file: memory: key x must be u32, but is i32");
  EXPECT_EQ(error_of([&] { file->get_u32("y"); }), "model_file: memory: key y (u32) is missing");
  EXPECT_EQ(error_of([&] { file->get_strings("list"); }),
            "model_file: memory: key list must be array of string, but is array of i32");
  EXPECT_EQ(error_of([&] { file->get_i32("list"); }),
            "model_file: memory: key list must be i32, but is array of i32");
  EXPECT_EQ(error_of([&] { file->require("w"); }), "model_file: tensor w is missing from memory");
}

TEST(Gguf, NestedArrays) {
  std::string inner =
      bytes_of<uint32_t>(8) + bytes_of<uint64_t>(2) + Builder::text("a") + Builder::text("bc");
  Builder b;
  b.pair("n", 9, bytes_of<uint32_t>(9) + bytes_of<uint64_t>(2) + inner + inner);
  std::string bytes = b.build();
  auto elements = GgufFile::parse(from_string(bytes))->find_value("n")->elements();
  ASSERT_EQ(elements.size(), 2u);
  auto strings = elements[1].elements();
  ASSERT_EQ(strings.size(), 2u);
  EXPECT_EQ(strings[1].as_string(), "bc");

  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += bytes_of<uint32_t>(9) + bytes_of<uint64_t>(1);
  Builder d;
  d.pair("n", 9, deep);
  EXPECT_NE(d.error().find("nests arrays more than 8 deep"), std::string::npos) << d.error();
}

TEST(Gguf, AlignmentFromMetadata) {
  Builder b;
  b.alignment = 64;
  b.pair("general.alignment", 4, bytes_of<uint32_t>(64));
  b.tensor("t", {1}, 0, 64);
  b.data = std::string(64, 'x') + bytes_of(2.5f);
  std::string bytes = b.build();
  auto file = GgufFile::parse(from_string(bytes));
  EXPECT_EQ(file->alignment(), 64u);
  EXPECT_EQ(to_f32(file->require("t")), std::vector<float>{2.5f});
}

TEST(Gguf, UnsupportedTypesAreListed) {
  Builder b;
  b.tensor("t", {256}, 10, 0);
  b.data = std::string(84, 0);
  std::string bytes = b.build();
  auto file = GgufFile::parse(from_string(bytes));
  EXPECT_EQ(file->require("t").type, DType::other);
  EXPECT_EQ(file->require("t").type_name, "Q2_K");
  EXPECT_NE(error_of([&] { to_f32(file->require("t")); }), "");
}

TEST(Gguf, BrokenFilesAreRefused) {
  auto expect = [](const Builder& b, std::string_view part) {
    EXPECT_NE(b.error().find(part), std::string::npos) << b.error() << " lacks " << part;
  };
  Builder good;
  good.pair("k", 4, bytes_of<uint32_t>(1)).tensor("t", {4}, 0, 0);
  good.data = std::string(16, 0);
  EXPECT_EQ(good.error(), "");

  Builder b = good;
  b.version = 2;
  expect(b, "GGUF version 2");
  b.version = 3 << 24;
  expect(b, "big-endian");
  b = good;
  b.pair_count = ~uint64_t{0};
  expect(b, "announces");
  b = good;
  b.tensor_count = uint64_t{1} << 60;
  expect(b, "announces");
  b = good;
  b.pair("k", 4, bytes_of<uint32_t>(1));
  expect(b, "key k occurs twice");
  b = good;
  b.pair("z", 13, "0");
  expect(b, "value type 13");
  b = good;
  b.pair("z", 7, "\x02");
  expect(b, "neither 0 nor 1");
  b = good;
  b.pair("z", 8, bytes_of(~uint64_t{0}));
  expect(b, "a string at byte");
  b = good;
  b.pair("z", 9, bytes_of<uint32_t>(12) + bytes_of(uint64_t{1} << 61));
  expect(b, "an array of 2305843009213693952 elements");
  b = good;
  b.pair("general.alignment", 4, bytes_of<uint32_t>(24));
  expect(b, "not a power of two");
  b = good;
  b.pair("general.alignment", 5, bytes_of<int32_t>(32));
  expect(b, "must be u32, but is i32");
  b = good;
  b.tensor("t", {4}, 0, 0);
  expect(b, "occurs twice");
  b = good;
  b.tensor("u", {4}, 0, 0);
  expect(b, "tensors t and u overlap");
  b = good;
  b.tensor("t", {0}, 0, 0);
  expect(b, "tensor t occurs twice");
  b = good;
  b.tensor("u", {4}, 0, 1);
  expect(b, "not a multiple of 32");
  b = good;
  b.tensor("u", {4}, 0, 32);
  expect(b, "past the end");
  b = good;
  b.tensor("u", {4}, 0, ~uint64_t{31});
  expect(b, "past the end");
  b = good;
  b.tensor("u", {uint64_t{1} << 33, uint64_t{1} << 33}, 0, 0);
  expect(b, "too many values");
  b = good;
  b.tensor("u", {uint64_t{1} << 62}, 0, 0);
  expect(b, "too many values");
  b = good;
  b.tensor("u", {~uint64_t{0}}, 0, 0);
  expect(b, "is 18446744073709551615 long");
  b = good;
  b.tensor("u", {33}, 8, 0);
  expect(b, "multiples of 32");
  b = good;
  b.tensor("u", {1, 1, 1, 1, 1}, 0, 0);
  expect(b, "5 axes");
  b = good;
  b.tensor("u", {1}, 4, 0);
  expect(b, "type number 4");
  b = good;
  b.tensor("", {1}, 0, 0);
  expect(b, "0 bytes long");

  // Cut anywhere, it is an error and never a crash.
  std::string bytes = good.build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string cut = bytes.substr(0, size);
    EXPECT_NE(error_of([&] { GgufFile::parse(from_string(cut)); }), "") << size;
  }
}

TEST(Gguf, WriterRefusesMisuse) {
  TempFolder folder;
  GgufWriter writer;
  writer.add_u32("k", 1);
  EXPECT_NE(error_of([&] { writer.add_u32("k", 1); }), "");
  std::vector<int64_t> shape = {33}, wide = {1, 1, 1, 1, 1}, two = {2};
  EXPECT_NE(error_of([&] { writer.add_tensor("t", shape, *ggml_type(DType::q8_0)); }), "");
  EXPECT_NE(error_of([&] { writer.add_tensor("w", wide, *ggml_type(DType::f32)); }), "");
  writer.add_tensor("ok", two, *ggml_type(DType::f32));
  OutputFile out(folder / "x.gguf");
  writer.begin(out);
  std::vector<std::byte> bytes(9);
  EXPECT_NE(error_of([&] { writer.write(bytes); }), "");
  EXPECT_NE(error_of([&] { writer.finish(); }), "");
}

}  // namespace
}  // namespace speech
