// PyTorch archives: checkpoints of torch.save (.pt, .ckpt, .pth) and TorchScript (.jit), zip files
// with a pickle and one member per storage. Nothing in them is run.
// Format: pytorch, torch/serialization.py and torch/csrc/jit/serialization.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "formats/pickle.h"
#include "formats/tensor_file.h"
#include "formats/zip.h"

namespace speech {

// Tensors have the names of the state dict: of a checkpoint with an entry "state_dict" (or
// "model_state_dict") those inside it; of other dicts and lists the keys and indices joined by
// dots; of modules, scripted or not, their attributes' paths. A lone tensor is called "tensor".
class TorchFile : public TensorFile {
 public:
  // Errors: io, model_file. Tensors of kinds that are no plain strided arrays are refused; other
  // Python objects are passed over.
  static std::shared_ptr<const TorchFile> open(const std::string& path);
  static std::shared_ptr<const TorchFile> parse(std::shared_ptr<const MappedFile> file);
  // An archive inside a file, such as the weights of a .nemo; `name` is used in messages.
  static std::shared_ptr<const TorchFile> parse(std::shared_ptr<const MappedFile> file,
                                                std::span<const std::byte> archive,
                                                std::string name);

  std::string_view format() const override { return script_ ? "torchscript" : "torch"; }

  void check_contents() const override;

  // The plain values of a checkpoint beside its tensors (hyperparameters, versions ...); null if
  // there are none. Error(model_file) if they are too many or nested too deep.
  nlohmann::ordered_json metadata() const;

 private:
  class Walker;

  std::unique_ptr<ZipArchive> zip_;
  std::unique_ptr<Pickle> pickle_;
  bool script_ = false;
};

}  // namespace speech
