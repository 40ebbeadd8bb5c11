#include "compute/cpu/decode.h"

#include <cstring>

#include "base/error.h"

namespace speech::cpu {

void decode_weight_row(const Weight& w, int64_t row, float* out) {
  const std::byte* data = w.data + row * w.row_bytes;
  switch (w.type) {
    case WeightType::f32:
      std::memcpy(out, data, w.cols * sizeof(float));
      return;
    default:
      fail(Status::internal, "weight type {} has no decoder yet", static_cast<int>(w.type));
  }
}

}  // namespace speech::cpu
