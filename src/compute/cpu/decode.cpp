#include "compute/cpu/decode.h"

#include "quant/codec.h"

namespace speech::cpu {

void decode_weight_row(const Weight& w, int64_t row, float* out) {
  const std::byte* data = w.data + row * w.row_bytes;
  if (w.type == WeightType::affine) {
    int64_t scale_row = w.cols / w.affine.group * (w.affine.scale_type == WeightType::f32 ? 4 : 2);
    decode_affine_row(w.affine, data, w.scales + row * scale_row, w.biases + row * scale_row, out,
                      w.cols);
  } else {
    decode_row(w.type, data, out, w.cols);
  }
}

}  // namespace speech::cpu
