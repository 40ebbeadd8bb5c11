// Loops of f32 multiply-adds in registers: the peak that products are compared with.
#pragma once

#include <cstdint>

#include "compute/cpu/isa_enum.h"

namespace speech::cpu {

// Runs chains of `count` multiply-adds each, as many as hide the latency and as wide as the
// registers of `isa` that f32 products use, on the calling thread. Returns the operations, 2 per
// multiply-add.
double multiply_adds(Isa isa, int64_t count);

// Makes the compiler compute a value that nothing stores.
template <typename T>
inline void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

}  // namespace speech::cpu
