#include "quant/codec.h"

#include "base/error.h"
#include "quant/rows.h"

namespace speech {

void decode_row(WeightType type, const std::byte* src, float* dst, int64_t cols) {
  row_bytes(type, cols);  // whole blocks
  switch (type) {
    case WeightType::f32:
      return quant::decode_f32(src, dst, cols);
    case WeightType::f16:
      return quant::decode_f16(src, dst, cols);
    case WeightType::bf16:
      return quant::decode_bf16(src, dst, cols);
    case WeightType::q8_0:
      return quant::decode_q8_0(src, dst, cols);
    case WeightType::q6_k:
      return quant::decode_q6_k(src, dst, cols);
    case WeightType::q5_k:
      return quant::decode_q5_k(src, dst, cols);
    case WeightType::q4_k:
      return quant::decode_q4_k(src, dst, cols);
    case WeightType::affine:
      break;
  }
  fail(Status::internal, "decode_row of affine weights");
}

void encode_row(WeightType type, const float* src, std::byte* dst, int64_t cols,
                const float* importance) {
  row_bytes(type, cols);
  switch (type) {
    case WeightType::f32:
      return quant::encode_f32(src, dst, cols);
    case WeightType::f16:
      return quant::encode_f16(src, dst, cols);
    case WeightType::bf16:
      return quant::encode_bf16(src, dst, cols);
    case WeightType::q8_0:
      return quant::encode_q8_0(src, dst, cols);
    case WeightType::q6_k:
      return quant::encode_q6_k(src, dst, cols, importance);
    case WeightType::q5_k:
      return quant::encode_q5_k(src, dst, cols, importance);
    case WeightType::q4_k:
      return quant::encode_q4_k(src, dst, cols, importance);
    case WeightType::affine:
      break;
  }
  fail(Status::internal, "encode_row of affine weights");
}

float largest_value(WeightType type) {
  constexpr float kHalf = 65504;
  switch (type) {
    case WeightType::f16:
      return 65519.996f;  // rounds to 65504
    case WeightType::bf16:
      return 3.3895314e38f;
    case WeightType::q8_0:
      return kHalf * 127;
    case WeightType::q6_k:  // scale -128, code -32
      return kHalf * 128 * 32;
    case WeightType::q5_k:  // of both ends the minimum reaches less far: dmin * 63
    case WeightType::q4_k:
      return kHalf * 63;
    case WeightType::f32:
    case WeightType::affine:
      break;
  }
  return 3.4028235e38f;
}

}  // namespace speech
