// Memory of this process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace speech {

// Bytes that are resident now, pages of mapped files included as far as they were touched; 0 where
// the system does not say.
uint64_t resident_bytes();

// Gives memory that was freed back to the system, where the C library keeps it.
void trim_memory();

// Zeros, 64-byte aligned; from 2 MiB on pages of their own, huge ones where the system grants them,
// so that streams through them are not slowed by address translation, and taken from the system
// only when they are touched. Error(out_of_memory) says that `what` needed it.
std::byte* allocate_large(size_t size, const char* what);
void free_large(std::byte* memory, size_t size);

}  // namespace speech
