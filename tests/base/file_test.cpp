#include "base/file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace speech {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "speech-file-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder_), {})); }
  fs::path folder_;
};

TEST_F(FileTest, OutputAppearsOnCommitOnly) {
  std::string path = (folder_ / "out").string();
  {
    OutputFile out(path);
    out.write("lost");
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(files(), 0);
  OutputFile out(path);
  out.write("abc");
  out.pad_to(32);
  out.write_at(1, std::as_bytes(std::span("X", 1)));
  out.commit();
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(read_text_file(path), std::string("aXc") + std::string(29, '\0'));
}

TEST_F(FileTest, FailedOutputKeepsTheOlderFile) {
  std::string path = (folder_ / "out").string();
  OutputFile first(path);
  first.write("old");
  first.commit();
  {
    OutputFile second(path);
    second.write("new");
  }
  EXPECT_EQ(read_text_file(path), "old");
}

TEST_F(FileTest, ErrorsNameThePath) {
  try {
    MappedFile::open((folder_ / "none").string());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::io);
    EXPECT_NE(std::string(e.what()).find("none"), std::string::npos);
  }
  EXPECT_THROW(MappedFile::open(folder_.string()), Error);
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  std::string path = (folder_ / "empty").string();
  OutputFile(path).commit();
  EXPECT_EQ(MappedFile::open(path)->bytes().size(), 0u);
}

}  // namespace
}  // namespace speech
