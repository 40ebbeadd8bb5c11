#if defined(__aarch64__)

#include "compute/cpu/neon/matmul_vector.h"
// Needs V.
#include "compute/cpu/vector/matmul_tiles.h"

namespace speech::cpu {

const MatmulKernels kNeonMatmul = kTable;

}  // namespace speech::cpu

#endif
