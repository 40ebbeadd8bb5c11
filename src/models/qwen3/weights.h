// Weights of a Qwen3 language model, multiplied where they lie in the mapped files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "formats/tensor_file.h"
#include "models/qwen3/config.h"
#include "nn/decoder.h"

namespace speech::qwen3 {

// Quantization done while loading (--quantize int4): every dense matrix whose width is a multiple
// of the group becomes affine, by MLX's algorithm, with scales in the type the matrix is stored in.
struct LoadQuantization {
  int bits = 0;  // 0: none
  int group = 64;
};

class Adapter;

struct Weights {
  Decoder decoder;
  Weight embedding;   // [vocabulary, hidden]
  Tensor final_norm;  // [hidden]
  Weight head;        // [vocabulary, hidden]; the embedding when tied
  // "BF16", "int4-g64", "Q4_K": what most matrix bytes are.
  std::string type;
  uint64_t bytes = 0;  // of all weights as they are in memory

  // What the views above point into.
  std::shared_ptr<const TensorFile> file;
  std::vector<std::unique_ptr<float[]>> vectors;
  LargeArena memory{"weights"};
};

// How a float tensor of the file at `path` is stored; Error(model_file) if it is no F32, F16 or
// BF16.
WeightType float_type(const TensorEntry& tensor, const std::string& path);

// What most bytes of the matrices in a file are, as Weights::type names it; "" where there are
// none.
std::string stored_type(const TensorFile& file, const Config& config);

// A Hugging Face or MLX folder. Every tensor the configuration calls for must be there with its
// exact shape; others are refused, but for `lm_head.*` of a tied model, which is ignored.
// Error(model_file) names the tensor. The matrices that `adapter` changes are made anew in memory;
// null: none. Without `mapped` the others are copied into memory too.
Weights load_folder(std::shared_ptr<const TensorFile> file, const Config& config,
                    const LoadQuantization& quantization, bool mapped = true,
                    const Adapter* adapter = nullptr,
                    const std::function<void(double)>& progress = {});

// A GGUF file with llama.cpp's names.
Weights load_gguf(std::shared_ptr<const TensorFile> file, const Config& config, bool mapped = true,
                  const std::function<void(double)>& progress = {});

}  // namespace speech::qwen3
