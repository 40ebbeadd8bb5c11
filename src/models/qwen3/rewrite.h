// Writing a changed copy of a Hugging Face folder: quantized the way MLX does, or with an adapter
// baked in.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "quant/weight_type.h"

namespace speech::qwen3 {

using Progress = std::function<void(double done)>;

// Whether `type` names an affine format: "int4", "int4-g64", "int8-g32", ...; group 64 unless
// named. Error(out_of_range, "type") for one that MLX does not have.
bool affine_type(std::string_view type, int& bits, int& group);

// Writes the folder `mlx_lm.convert -q` would: every matrix whose width is a multiple of the group
// packed by MLX's algorithm, scales in the stored type, config.json with the two quantization
// blocks. Memory: one tensor. Errors: model_file (not a dense Qwen3 folder, a weight that is not
// finite), io (OUT exists and is not empty).
void quantize_folder(const std::string& source, const std::string& out, int bits, int group,
                     const Progress& progress = {});

// Adds a LoRA or DoRA adapter of mlx-lm (adapters.safetensors) or PEFT (adapter_model.safetensors)
// to the base's matrices in f32 and rounds back to the stored type. Whatever cannot be baked
// exactly (packed base, embedding adapters, modules_to_save, layer_replication, biases, an entry
// without a target) is refused with Error(model_file) or Error(unsupported).
void bake_lora(const std::string& base, const std::string& adapter, const std::string& out,
               const Progress& progress = {});

}  // namespace speech::qwen3
