#include "base/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace speech {

std::optional<uint64_t> proc_bytes(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string key; file >> key;) {
    uint64_t kilobytes = 0;
    if (key == name && file >> kilobytes) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

uint64_t peak_resident_bytes() {
  if (auto bytes = proc_bytes("/proc/self/status", "VmHWM:")) return *bytes;
  // It would also count the program that started this one.
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

uint64_t resident_file_bytes() {
  return proc_bytes("/proc/self/status", "RssFile:").value_or(0);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void trim_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

namespace {

constexpr size_t kHugePage = size_t{1} << 21, kLine = 64;

size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

}  // namespace

std::byte* allocate_large(size_t size, const char* what) {
  auto refuse = [&] { fail(Status::out_of_memory, "no memory for {} bytes of {}", size, what); };
  if (size > SIZE_MAX / 2) refuse();
  if (size < kHugePage) {
    void* data = std::aligned_alloc(kLine, round_up(size, kLine));
    if (!data) refuse();
    return static_cast<std::byte*>(std::memset(data, 0, size));
  }
  // Whole huge pages from an aligned address; what was mapped around them goes back.
  size_t used = round_up(size, kHugePage), mapped = used + kHugePage;
  void* map = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) refuse();
  auto* begin = static_cast<std::byte*>(map);
  size_t before =
      round_up(reinterpret_cast<uintptr_t>(map), kHugePage) - reinterpret_cast<uintptr_t>(map);
  if (before > 0) ::munmap(begin, before);
  std::byte* data = begin + before;
  if (before < kHugePage) ::munmap(data + used, kHugePage - before);
#ifdef MADV_HUGEPAGE
  ::madvise(data, used, MADV_HUGEPAGE);  // failure changes nothing
#endif
  return data;
}

void free_large(std::byte* memory, size_t size) {
  if (size < kHugePage) {
    std::free(memory);
  } else {
    ::munmap(memory, round_up(size, kHugePage));
  }
}

LargeArena::~LargeArena() {
  for (auto block : blocks_) free_large(block.data(), block.size());
}

std::byte* LargeArena::take(size_t size) {
  constexpr size_t kBlock = size_t{1} << 25;  // what is not used of it is never touched
  if (size > SIZE_MAX / 2) fail(Status::out_of_memory, "no memory for {} bytes of {}", size, what_);
  size = round_up(size, kLine);
  if (left_.size() < size) {
    size_t bytes = std::max(size, kBlock);
    blocks_.reserve(blocks_.size() + 1);
    left_ = {allocate_large(bytes, what_), bytes};
    blocks_.push_back(left_);
  }
  std::byte* data = left_.data();
  left_ = left_.subspan(size);
  return data;
}

}  // namespace speech
