#include "compute/cpu/kernels.h"

#if defined(__x86_64__)

#include "compute/cpu/avx2/simd.h"
// Each builds on those before.
// clang-format off
#include "compute/cpu/vector/math.h"
#include "compute/cpu/vector/rows.h"
#include "compute/cpu/vector/attention.h"
#include "compute/cpu/vector/conv.h"
#include "compute/cpu/vector/table.h"
// clang-format on

namespace speech::cpu {

constexpr Kernels kAvx2Kernels = kTable;

}  // namespace speech::cpu

#endif
