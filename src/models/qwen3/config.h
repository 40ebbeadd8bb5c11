// Configuration of a Qwen3 language model, from config.json (Hugging Face, MLX) or a GGUF file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/language_model.h"
#include "nn/decoder.h"

namespace speech {

class GgufFile;

namespace qwen3 {

struct Config {
  DecoderConfig decoder;
  int64_t vocabulary = 0;  // rows of the embedding; ids past the tokenizer's last are padding
  int64_t max_positions = 0;
  bool tied = false;  // the head is the embedding
  std::vector<int32_t> eos;
  std::string name;

  // MLX quantization: what config.json says about one module ("model.layers.0.mlp.up_proj").
  struct Quantization {
    AffineFormat format;
    std::map<std::string, std::optional<AffineFormat>> modules;  // nullopt: dense
  };
  std::optional<Quantization> quantization;

  SamplingDefaults sampling;
};

// Parses config.json and generation_config.json (empty text when there is none). `path` names the
// folder in messages. Error(model_file) for a missing or malformed key or an unknown architecture,
// rope type or quantization method.
Config parse_config(std::string_view config_json, std::string_view generation_json,
                    const std::string& path);

// The same from llama.cpp's `qwen3.*` keys.
Config read_config(const GgufFile& file);

}  // namespace qwen3
}  // namespace speech
