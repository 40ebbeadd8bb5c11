// What quantizing and converting share: the plan of a file to be written, and where it may go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speech {

class GgufWriter;

// The table of --dry-run.
struct FilePlan {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // outermost axis first
    std::string type;            // "Q8_0"
    uint64_t bytes = 0;
  };

  std::string path;          // of the file
  std::string architecture;  // of the model in it
  std::string weight_type;   // the type that holds most bytes
  std::vector<Tensor> tensors;
  uint64_t file_bytes = 0;
};

// Tensors and size of what the writer has been told.
void describe(const GgufWriter& writer, FilePlan& plan);

// Error(invalid_argument, "out_path") if `out` cannot be written from `source` (a file or folder):
// it is the source itself, is something else than a regular
// file, or does not end in ".gguf".
void check_out_path(const std::string& source, const std::string& out);

}  // namespace speech
