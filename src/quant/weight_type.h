// The types in which weights are stored, and their facts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace speech {

// q8_0 .. q4_k: block layouts of ggml (ggml-common.h), rows in whole blocks. affine: MLX's groups
// (packed u32 words, one scale and one bias per group), described further by AffineFormat.
enum class WeightType : uint8_t { f32, f16, bf16, q8_0, q6_k, q5_k, q4_k, affine };

// The shape of an affine-quantized matrix (mlx.core.quantize, mode "affine").
struct AffineFormat {
  int bits = 0;                             // 2, 3, 4, 5, 6 or 8
  int group = 0;                            // 32, 64 or 128 columns share a scale and a bias
  WeightType scale_type = WeightType::f32;  // type of scales and biases: f32, f16 or bf16
  bool operator==(const AffineFormat&) const = default;
};

struct WeightTypeFacts {
  WeightType type;
  std::string_view name;   // "q8_0": as given to --type
  std::string_view label;  // "Q8_0": as in file names and `weight_type`
  int block;               // values per block; 1 for the floats
  int block_bytes;         // bytes per block
  int ggml_type;           // tensor type number in a GGUF file
  int gguf_file_type;      // general.file_type of a file whose matrices have this type; -1 if none
};

// Facts of every type but affine (whose block depends on bits and group): Error(internal) for it.
const WeightTypeFacts& facts(WeightType type);

std::optional<WeightType> weight_type_from_name(std::string_view name);  // "q8_0", any letter case
std::optional<WeightType> weight_type_from_ggml(uint32_t ggml_type);

// Bytes of one row of `cols` values; cols must be a multiple of the block.
int64_t row_bytes(WeightType type, int64_t cols);

}  // namespace speech
