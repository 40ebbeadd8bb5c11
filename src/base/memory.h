// Memory of this process.
#pragma once

#include <cstdint>

namespace speech {

// Bytes that are resident now, pages of mapped files included as far as they were touched; 0 where
// the system does not say.
uint64_t resident_bytes();

// Gives memory that was freed back to the system, where the C library keeps it.
void trim_memory();

}  // namespace speech
