// The instruction sets, apart from isa.h so that kernels need no inline code of the library.
#pragma once

#include <cstdint>

namespace speech::cpu {

// Ordered: each includes what stands before it for the same kind of processor.
enum class Isa : uint8_t {
  scalar,   // the reference: what the compiler's baseline allows
  avx2,     // AVX2 + FMA + F16C + BMI2
  avx512,   // the above + AVX-512 F, BW, DQ, VL, VNNI
  amx,      // the above + AMX INT8: whole tiles of the matrix product, nothing else
  neon,     // what every aarch64 processor has
  dotprod,  // the above + dot products of bytes (Armv8.2): the matrix product alone
  i8mm,     // the above + products of matrices of bytes (Armv8.6): the matrix product alone
};

}  // namespace speech::cpu
