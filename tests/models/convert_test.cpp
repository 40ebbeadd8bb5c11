#include "models/convert.h"

#include <gtest/gtest.h>

#include "formats/format_testing.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TempFolder;

const Family kFamilies[] = {
    {.architecture = "unreadable", .read_info = nullptr, .load = nullptr},
    {.architecture = "test-net",
     .read_info = nullptr,
     .load = nullptr,
     .recognizes = [](const std::string&,
                      const TensorFile& source) { return source.find("w") != nullptr; },
     .convert =
         [](const std::string&, const TensorFile& source, const ConvertOptions& options,
            GgufWriter& writer, OutputFile& out) {
           const auto& w = source.require("w");
           writer.add_string("general.architecture", "test-net");
           writer.add_string("general.name", options.name);
           writer.add_tensor("weight", w.shape, *ggml_type(DType::f32));
           source.require("needed");
           writer.begin(out);
           auto values = to_f32(w);
           writer.write(std::as_bytes(std::span(values)));
         }},
};

void write_checkpoint(const std::string& path, std::vector<std::string> names) {
  SafetensorsWriter writer;
  std::vector<int64_t> shape = {2, 2};
  for (const auto& name : names) writer.add_tensor(name, DType::f32, shape);
  OutputFile out(path);
  writer.begin(out);
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<float> values = {1, 2, 3, 4};
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.finish();
  out.commit();
}

int files_in(const std::string& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(Convert, PlansAndWrites) {
  TempFolder folder;
  write_checkpoint(folder / "in.safetensors", {"w", "needed"});
  ConvertOptions options;
  options.name = "a name";
  auto plan = plan_convert(kFamilies, folder / "in.safetensors", folder / "out.gguf", options);
  EXPECT_EQ(files_in(folder.path()), 1);
  EXPECT_EQ(plan.architecture, "test-net");
  EXPECT_EQ(plan.weight_type, "F32");
  ASSERT_EQ(plan.tensors.size(), 1u);
  EXPECT_EQ(plan.tensors[0].bytes, 16u);
  double last = -1;
  Control control;
  control.progress = [&](double done) {
    last = done;
    return false;
  };
  auto done = convert(kFamilies, folder / "in.safetensors", folder / "out.gguf", options, control);
  EXPECT_EQ(last, 1);
  EXPECT_EQ(done.file_bytes, plan.file_bytes);
  EXPECT_EQ(fs::file_size(folder / "out.gguf"), plan.file_bytes);
  auto file = GgufFile::open(folder / "out.gguf");
  EXPECT_EQ(file->get_string("general.name"), "a name");
  EXPECT_EQ(to_f32(file->require("weight")), (std::vector<float>{1, 2, 3, 4}));
}

TEST(Convert, FailsWithoutATrace) {
  TempFolder folder;
  write_checkpoint(folder / "strange.safetensors", {"x"});
  auto error = error_of([&] {
    convert(kFamilies, folder / "strange.safetensors", folder / "out.gguf", {}, Control());
  });
  EXPECT_EQ(error.substr(0, 11), "model_file:") << error;
  EXPECT_NE(error.find("test-net"), std::string::npos) << error;
  EXPECT_EQ(error.find("unreadable"), std::string::npos) << error;

  write_checkpoint(folder / "short.safetensors", {"w"});
  error = error_of([&] {
    convert(kFamilies, folder / "short.safetensors", folder / "out.gguf", {}, Control());
  });
  EXPECT_NE(error.find("needed"), std::string::npos) << error;

  write_checkpoint(folder / "in.safetensors", {"w", "needed"});
  Control control;
  control.progress = [](double) { return true; };
  error = error_of(
      [&] { convert(kFamilies, folder / "in.safetensors", folder / "out.gguf", {}, control); });
  EXPECT_EQ(error.substr(0, 10), "cancelled:") << error;
  EXPECT_EQ(files_in(folder.path()), 3);
  error = error_of(
      [&] { convert(kFamilies, folder / "in.safetensors", folder / "in.safetensors", {}, {}); });
  EXPECT_EQ(error.substr(0, 17), "invalid_argument:") << error;
}

}  // namespace
}  // namespace speech
