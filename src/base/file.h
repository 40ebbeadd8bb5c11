// Files: read-only memory maps, and output that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace speech {

// A file mapped for reading. Copies of the pointer keep the mapping alive.
class MappedFile {
 public:
  // Maps `path` (UTF-8). Throws Error(io) with the path and the system's reason; a directory, or
  // something that is not a regular file, is refused. An empty file gives an empty span.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  // Takes bytes that are in memory already (tests, fuzzers) as if they were a file.
  static std::shared_ptr<const MappedFile> from_memory(std::span<const std::byte> bytes,
                                                       std::string name = "memory");

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Tells the system that pages of this range (inside bytes()) are not needed any more, so that a
  // pass over a large file does not count as resident memory. No effect on contents.
  void release(std::span<const std::byte> range) const;

 private:
  MappedFile() = default;

  std::span<const std::byte> bytes_;
  std::string path_;
  bool mapped_ = false;
};

// Writes to `<path>.<random>.part` beside the target and renames it over `path` in commit().
// Without a commit (exception, or SIGINT/SIGTERM/SIGHUP once remove_partial_files_on_signals() was
// called) the partial file is removed and an older `path` stays as it was.
class OutputFile {
 public:
  OutputFile() = default;  // no file: for a pass that ends before it writes
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throws Error(io), for example when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Bytes at an offset already written (headers patched at the end).
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void pad_to(uint64_t alignment);
  uint64_t size() const { return size_; }

  // Flushes to disk and renames.
  void commit();

 private:
  void write_all(const std::byte* data, size_t size, uint64_t offset);

  std::string path_, partial_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Makes a folder that appears whole or not at all: files are written into `<path>.<random>.part`,
// which commit() renames to `path`. Without a commit, or on a signal as above, it is removed with
// everything that file() named.
class OutputFolder {
 public:
  // Error(io) if `path` exists and is not an empty folder.
  explicit OutputFolder(std::string path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write a file of this name.
  const std::string& file(const std::string& name);
  void commit();

 private:
  std::string path_, partial_;
  std::deque<std::string> files_;  // their addresses are known to the signal handler
  bool committed_ = false;
};

// Installs handlers for SIGINT, SIGTERM and SIGHUP that remove the partial files of this process
// and end it with the signal's usual status. For programs; the library never calls it by itself.
void remove_partial_files_on_signals();

// The whole file as a string; Error(io) names the path.
std::string read_text_file(const std::string& path);

}  // namespace speech
