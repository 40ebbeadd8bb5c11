#include "catalog/catalog.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"

namespace speech {
namespace {

TEST(Catalog, NamesStandForFiles) {
  const auto bare = find_in_catalog("tiny-en");
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->model->name, "tiny-en");
  EXPECT_EQ(bare->model->task, Task::recognition);
  EXPECT_EQ(bare->model->languages, "en");
  for (const CatalogFile& file : bare->model->files()) {
    const auto typed = find_in_catalog("tiny-en:" + std::string(file.type));
    ASSERT_TRUE(typed) << file.type;
    EXPECT_EQ(typed->file.file, file.file);
  }
  EXPECT_EQ(find_in_catalog("sakasegawa/silero-vad-GGUF:f32")->model->name, "silero-vad");
  for (const char* none : {"", ":q8_0", "tiny-en:", "tiny-en:q1", "tiny", "/"}) {
    EXPECT_FALSE(find_in_catalog(none)) << none;
  }
}

TEST(Catalog, NamesAndFilesAreDistinct) {
  std::set<std::string_view> names, files;
  for (const CatalogModel& model : catalog()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_EQ(model.name.find_first_of(":/"), std::string_view::npos) << model.name;
    for (const CatalogFile& file : model.files()) {
      EXPECT_TRUE(files.insert(file.file).second) << file.file;
      EXPECT_EQ(file.sha256.size(), 64u) << file.file;
      EXPECT_EQ(model.url(file).empty(), model.repository.empty()) << file.file;
    }
  }
}

// What lies in the repository is what the catalog says.
TEST(Catalog, BundledFilesAreTheirs) {
  for (const char* name : {"tiny-en", "silero-vad"}) {
    const auto choice = find_in_catalog(name);
    ASSERT_TRUE(choice) << name;
    for (const CatalogFile& file : choice->model->files()) {
      const auto path = locate_model(*choice->model, file);
      ASSERT_TRUE(path) << file.file;
      const auto mapped = MappedFile::open(*path);
      EXPECT_EQ(mapped->bytes().size(), file.bytes);
      EXPECT_EQ(sha256_hex(mapped->bytes()), file.sha256) << *path;
    }
    EXPECT_EQ(resolve_model(name), *locate_model(*choice->model, choice->file));
  }
}

TEST(Catalog, ModelsThatAreNotHereSayWhereToGetThem) {
  try {
    resolve_model("qwen3-asr-1.7b");
    GTEST_SKIP() << "this machine has it";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::io);
    EXPECT_NE(std::string(error.what()).find("https://huggingface.co/sakasegawa/"),
              std::string::npos);
  }
  EXPECT_THROW(resolve_model("tiny-en:f64"), Error);
}

}  // namespace
}  // namespace speech
