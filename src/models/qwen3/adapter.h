// LoRA and DoRA adapters of mlx-lm and PEFT, added to the matrices of a dense Qwen3 model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "formats/tensor_file.h"
#include "models/qwen3/config.h"

namespace speech::qwen3 {

// What an adapter does to one matrix W[out, in]: W + scale * B A, of which DoRA gives each row the
// length `magnitude`.
struct Delta {
  std::vector<float> a;          // [rank, in]
  std::vector<float> b;          // [out, rank]
  std::vector<float> magnitude;  // [out], DoRA
  int64_t in = 0, out = 0, rank = 0;
  double scale = 0;
};

class Adapter {
 public:
  // Reads the folder of an adapter: mlx-lm (adapters.safetensors) or PEFT
  // (adapter_model.safetensors). Error(model_file) or Error(unsupported) for what cannot be added
  // exactly: embedding adapters, modules_to_save, layer_replication, biases, ...
  explicit Adapter(const std::string& folder);
  // The same of the text of its adapter_config.json and of its tensors.
  Adapter(std::string_view config, const TensorFile& file);

  // Whether every entry has its matrix in `base`, whose configuration is `config`:
  // Error(model_file), or Error(unsupported) for a packed base or the head of a tied model.
  void check(const TensorFile& base, const Config& config) const;

  // The change of a weight ("model.layers.0.mlp.up_proj.weight"); null if there is none.
  const Delta* find(const std::string& weight) const;

  // Writes the bytes of the matrix `t`, F32, F16 or BF16, with `delta` in it: summed in double and
  // rounded to the stored type.
  static void apply(const Delta& delta, const TensorEntry& t, std::span<std::byte> out,
                    ThreadPool& pool);

 private:
  std::string path_;
  std::map<std::string, Delta> deltas_;  // by module ("model.layers.0.mlp.up_proj")
};

}  // namespace speech::qwen3
