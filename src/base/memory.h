// Memory of this process and of its system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace speech {

// Bytes that are resident now, pages of mapped files included as far as they were touched; 0 where
// the system does not say.
uint64_t resident_bytes();

// The most that was resident so far. The system's figure may fall by a few pages from one reading
// to the next.
uint64_t peak_resident_bytes();

// Of what is resident now, pages of mapped files: the program, its libraries, mapped weights; 0
// where the system does not say.
uint64_t resident_file_bytes();

// A size in a file of /proc, in bytes, by its whole name: ("/proc/self/status", "VmHWM:"). Nothing
// where there is none.
std::optional<uint64_t> proc_bytes(const char* path, std::string_view name);

// Gives memory that was freed back to the system, where the C library keeps it.
void trim_memory();

// Zeros, 64-byte aligned; from 2 MiB on pages of their own, huge ones where the system grants them,
// so that streams through them are not slowed by address translation, and taken from the system
// only when they are touched. Error(out_of_memory) says that `what` needed it.
std::byte* allocate_large(size_t size, const char* what);
void free_large(std::byte* memory, size_t size);

// Pieces of such memory that live as long as the arena, without the rounding of pages for each.
class LargeArena {
 public:
  explicit LargeArena(const char* what) : what_(what) {}
  LargeArena(LargeArena&& other) noexcept
      : what_(other.what_), blocks_(std::exchange(other.blocks_, {})), left_(other.left_) {}
  LargeArena& operator=(LargeArena&&) = delete;
  ~LargeArena();

  // Zeros, 64-byte aligned. Error(out_of_memory).
  std::byte* take(size_t size);

 private:
  const char* what_;
  std::vector<std::span<std::byte>> blocks_;
  std::span<std::byte> left_;  // of the last block
};

}  // namespace speech
