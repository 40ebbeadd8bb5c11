// `speech quantize`: the F32 file of a model rewritten in another weight type.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/file_plan.h"
#include "models/model.h"
#include "models/registry.h"
#include "quant/weight_type.h"

namespace speech {

struct QuantizeOptions {
  WeightType type = WeightType::q8_0;  // f16, q8_0, q6_k, q5_k or q4_k
  int threads = 0;                     // 0: default_threads(); the file does not depend on it
  // A file of importance weights for the K types, or empty. A tensor of the same name as the
  // model's (or with ".in_sum2" after it, as llama.cpp's imatrix files have it) holds one weight
  // >= 0 per column; tensors without one count every column alike.
  std::string importance_path;
  // Inputs like those the model will get (audio files for recognizers, text files for language
  // models), or empty. The F32 model runs on them, and the codes of the block types are chosen for
  // what its matrices were multiplied with (quant/input_metric.h); a matrix that entered no product
  // is stored as without. Not together with importance_path, nor for f16.
  std::vector<std::string> calibration;
};

// The type of --type. Error(out_of_range, "type") that lists the choices.
WeightType quantize_type(std::string_view name);

// The type in which a quantized file of `target` stores a tensor with rows of `cols` values
// (product 6.5: a K type needs rows in blocks of 256, Q8_0 in blocks of 32).
WeightType stored_type(StorageClass storage, WeightType target, int64_t cols);

// What quantize() would write, without writing. `known`: families().
FilePlan plan_quantize(std::span<const Family> known, const std::string& model_path,
                       const std::string& out_path, const QuantizeOptions& options);

// Writes the quantized file and returns its plan. `out_path` is a file, or a folder in which the
// file gets the name <basename>-<size_label>[-<finetune>][-<version>]-<TYPE>.gguf. Every key and
// tensor keeps its place; all metadata but general.file_type, general.quantization_version and
// speech.requires is copied to the byte. The weights are streamed: memory stays at a few MB beside
// the pages of one tensor. Calibration adds the run of the model and 4 * cols^2 bytes per matrix,
// up to 1 GiB at a time: a larger model runs over the inputs once for each GiB. An existing file is
// replaced at the end; a failed or stopped run leaves nothing behind.
// Errors: invalid_argument (model_path: not an F32 file, or a family that exists in F32 alone;
// out_path), model_file (also for a weight that is NaN, infinite or too large for its type, naming
// the tensor), io, cancelled.
FilePlan quantize(std::span<const Family> known, const std::string& model_path,
                  const std::string& out_path, const QuantizeOptions& options,
                  const Control& control);

}  // namespace speech
