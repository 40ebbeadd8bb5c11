// The tensors of a FastConformer file: names, shapes and how each may be stored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/fastconformer/config.h"
#include "models/registry.h"

namespace speech::fastconformer {

// Sizes that no key holds; they are read from tensors.
struct Widths {
  int64_t window = 0;        // samples under the analysis window
  int64_t channels = 0;      // of the subsampling convolutions
  int64_t feed_forward = 0;  // inner width
  int64_t prediction = 0;    // LSTM and embedding
  int64_t joint = 0;
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // rows first
};

// Every tensor of the layout, in the order of published files.
std::vector<TensorSpec> layout_tensors(const Config& config, const Widths& widths);

// matrix or full.
StorageClass storage_class(std::string_view tensor_name);

// Checks that the file holds exactly the layout's tensors, in shapes and types that it allows, and
// returns the widths. Error(model_file) naming the tensor, what was expected and what was found.
Widths check_tensors(const GgufFile& file, const Config& config);

}  // namespace speech::fastconformer
