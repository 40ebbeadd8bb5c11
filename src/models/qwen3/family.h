// The registry entry of Qwen3 language models.
#pragma once

#include "models/registry.h"

namespace speech::qwen3 {

// GGUF files as llama.cpp writes them, and Hugging Face or MLX folders as they are.
extern const Family qwen3_family;

}  // namespace speech::qwen3
