#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"

namespace speech {
namespace {

std::string reason() {
  return std::strerror(errno);
}

// Partial files of this process, where a signal handler can find them without taking a lock: a slot
// is a pointer to a C string that is set before the file is created and cleared after it is gone.
constexpr int kSlots = 64;
std::array<std::atomic<const char*>, kSlots> partial_files{};

extern "C" void remove_partials_and_die(int signal_number) {
  for (auto& slot : partial_files) {
    if (const char* name = slot.load(std::memory_order_relaxed)) ::unlink(name);
  }
  for (auto& slot : partial_files) {  // folders, once they are empty
    if (const char* name = slot.load(std::memory_order_relaxed)) ::rmdir(name);
  }
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

void remember_partial(const char* name) {
  for (auto& slot : partial_files) {
    const char* empty = nullptr;
    if (slot.compare_exchange_strong(empty, name)) return;
  }
}

void forget_partial(const char* name) {
  for (auto& slot : partial_files) {
    const char* expected = name;
    if (slot.compare_exchange_strong(expected, nullptr)) return;
  }
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // not waiting for a fifo
  if (fd < 0) fail(Status::io, "cannot open {}: {}", path, reason());
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    std::string why = reason();
    ::close(fd);
    fail(Status::io, "cannot read {}: {}", path, why);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(Status::io, "cannot read {}: {}", path,
         S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
  }
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  auto size = static_cast<size_t>(info.st_size);
  if (size > 0) {
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      std::string why = reason();
      ::close(fd);
      fail(Status::io, "cannot map {}: {}", path, why);
    }
    file->bytes_ = {static_cast<const std::byte*>(data), size};
    file->mapped_ = true;
  }
  ::close(fd);
  return file;
}

std::shared_ptr<const MappedFile> MappedFile::from_memory(std::span<const std::byte> bytes,
                                                          std::string name) {
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->bytes_ = bytes;
  file->path_ = std::move(name);
  return file;
}

MappedFile::~MappedFile() {
  if (mapped_) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release(std::span<const std::byte> range) const {
  if (!mapped_ || range.empty()) return;
  auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(range.data());
  auto end = begin + range.size();
  begin = (begin + page - 1) / page * page;
  end = end / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  // The rename would put a file in the place of a device or of a link; a link's target is meant.
  std::error_code none;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path_, none); ++links) {
    auto target = std::filesystem::read_symlink(path_, none);
    if (none) break;
    path_ = (std::filesystem::path(path_).parent_path() / target).string();
  }
  auto status = std::filesystem::status(path_, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail(Status::io, "cannot write {}: it is not a regular file", path_);
  }
  std::random_device seed;
  for (int attempt = 0; attempt < 16 && fd_ < 0; ++attempt) {
    partial_ = fmt::format("{}.{:08x}.part", path_, seed());
    remember_partial(partial_.c_str());
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) {
      std::string why = reason();
      bool exists = errno == EEXIST;
      forget_partial(partial_.c_str());
      if (!exists) fail(Status::io, "cannot write {}: {}", path_, why);
    }
  }
  if (fd_ < 0) fail(Status::io, "cannot write {}: no free name for a partial file", path_);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
  forget_partial(partial_.c_str());
}

void OutputFile::write_all(const std::byte* data, size_t size, uint64_t offset) {
  while (size > 0) {
    ssize_t n = ::pwrite(fd_, data, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(Status::io, "cannot write {}: {}", path_, reason());
    data += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_all(bytes.data(), bytes.size(), size_);
  size_ += bytes.size();
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    fail(Status::internal, "write_at outside {}", path_);
  }
  write_all(bytes.data(), bytes.size(), offset);
}

void OutputFile::pad_to(uint64_t alignment) {
  static constexpr std::byte zeros[64] = {};
  while (size_ % alignment != 0) {
    write(std::span(zeros, std::min<uint64_t>(64, alignment - size_ % alignment)));
  }
}

void OutputFile::commit() {
  if (::fsync(fd_) != 0 && errno != EINVAL)
    fail(Status::io, "cannot write {}: {}", path_, reason());
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    fail(Status::io, "cannot write {}: {}", path_, reason());
  }
  forget_partial(partial_.c_str());
  ::close(fd_);
  fd_ = -1;
}

OutputFolder::OutputFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  std::error_code error;
  if (std::filesystem::exists(path_, error) &&
      !(std::filesystem::is_directory(path_, error) && std::filesystem::is_empty(path_, error))) {
    fail(Status::io, "cannot write the folder {}: it exists and is not an empty folder", path_);
  }
  partial_ = fmt::format("{}.{:08x}.part", path_, std::random_device()());
  remember_partial(partial_.c_str());
  if (::mkdir(partial_.c_str(), 0777) != 0) {
    std::string why = reason();
    forget_partial(partial_.c_str());
    fail(Status::io, "cannot make the folder {}: {}", path_, why);
  }
}

OutputFolder::~OutputFolder() {
  if (!committed_) {
    std::error_code ignored;
    std::filesystem::remove_all(partial_, ignored);
  }
  for (const std::string& name : files_) forget_partial(name.c_str());
  forget_partial(partial_.c_str());
}

const std::string& OutputFolder::file(const std::string& name) {
  files_.push_back(partial_ + "/" + name);
  remember_partial(files_.back().c_str());
  return files_.back();
}

void OutputFolder::commit() {
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    fail(Status::io, "cannot write the folder {}: {}", path_, reason());
  }
  committed_ = true;
}

void remove_partial_files_on_signals() {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = remove_partials_and_die;
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // Ignored by who started the program (nohup): it stays ignored.
    if (::sigaction(s, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(s, &action, nullptr);
  }
  // A limit on the size of files then fails the write, which is an error like any other.
  ::signal(SIGXFSZ, SIG_IGN);
}

std::string read_text_file(const std::string& path) {
  auto file = MappedFile::open(path);
  auto bytes = file->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace speech
