#include "compute/cpu/kernels.h"

#if defined(__aarch64__)

#include "compute/cpu/neon/simd.h"
// Each builds on those before.
// clang-format off
#include "compute/cpu/vector/math.h"
#include "compute/cpu/vector/rows.h"
#include "compute/cpu/vector/attention.h"
#include "compute/cpu/vector/conv.h"
#include "compute/cpu/vector/table.h"
// clang-format on

namespace speech::cpu {

constexpr Kernels kNeonKernels = kTable;

}  // namespace speech::cpu

#endif
