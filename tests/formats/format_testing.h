// What the tests of file formats share.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace speech::testing {

// A value's bytes as they lie in memory.
template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The string must outlive the file.
inline std::shared_ptr<const MappedFile> from_string(const std::string& bytes) {
  return MappedFile::from_memory(std::as_bytes(std::span(bytes)));
}

// "STATUS: MESSAGE" of the Error that `call` throws, or "" if it throws none.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(status_name(error.status())) + ": " + error.what();
  }
  return "";
}

// A folder of one test, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "speech_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view text) {
  OutputFile out(path);
  out.write(text);
  out.commit();
}

}  // namespace speech::testing
