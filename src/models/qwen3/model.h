// Qwen3 causal language models (arXiv:2505.09388; transformers, modeling_qwen3.py).
#pragma once

#include <memory>
#include <string>

#include "models/language_model.h"
#include "models/qwen3/weights.h"

namespace speech::qwen3 {

// Loads a Hugging Face or MLX folder, or a GGUF file with llama.cpp's `qwen3` keys.
std::unique_ptr<LanguageModel> load_folder_model(const std::string& path,
                                                 std::shared_ptr<const TensorFile> source,
                                                 const LoadParams& params);
std::unique_ptr<LanguageModel> load_gguf_model(std::shared_ptr<const GgufFile> file,
                                               const LoadParams& params);

ModelInfo folder_info(const std::string& path, const TensorFile& source);
ModelInfo gguf_info(const GgufFile& file);

// What the configuration files of a folder say.
Config folder_config(const std::string& path);

// Whether a checkpoint is a folder of this family: its config.json says so.
bool recognizes(const std::string& path, const TensorFile& source);

}  // namespace speech::qwen3
