// A Hugging Face or MLX folder written as the GGUF file llama.cpp's converter would make.
#pragma once

#include <string>

#include "formats/tensor_file.h"
#include "models/registry.h"

namespace speech::qwen3 {

void convert(const std::string& path, const TensorFile& source, const ConvertOptions& options,
             GgufWriter& writer, OutputFile& out);

}  // namespace speech::qwen3
