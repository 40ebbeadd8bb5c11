// The weights in ONNX models, read without a protobuf library. Format: onnx/onnx, onnx/onnx.proto;
// protobuf wire format.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"

namespace speech {

// Tensors are the initializers, by name, and the values of Constant nodes, by the name of the
// node's output; those of subgraphs (branches of If, bodies of loops) too. A name that is taken
// already, as it may be in another branch, is prefixed by the subgraph's: "If_0.then_branch/name".
class OnnxFile : public TensorFile {
 public:
  // Errors: io, model_file. Data in separate files is refused.
  static std::shared_ptr<const OnnxFile> open(const std::string& path);
  static std::shared_ptr<const OnnxFile> parse(std::shared_ptr<const MappedFile> file);

  std::string_view format() const override { return "onnx"; }

  // ir_version, producer, opsets, metadata_props.
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  class Reader;

  std::vector<std::pair<std::string, std::string>> metadata_;
  std::deque<std::vector<std::byte>> decoded_;  // values that do not lie in the file as they are
};

}  // namespace speech
