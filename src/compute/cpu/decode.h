// One row of a weight matrix as floats.
#pragma once

#include <cstdint>

#include "compute/tensor.h"

namespace speech::cpu {

// out[0 .. w.cols) = row `row` of w. The row is in range.
void decode_weight_row(const Weight& w, int64_t row, float* out);

}  // namespace speech::cpu
