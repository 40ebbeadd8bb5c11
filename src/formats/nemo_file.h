// .nemo archives: a tar file, plain or gzipped, with model_config.yaml, model_weights.ckpt (a
// PyTorch archive) and the files that the configuration names.
// Format: NVIDIA/NeMo, nemo/core/connectors/save_restore_connector.py; POSIX.1-2001 pax.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_file.h"
#include "formats/torch_file.h"

namespace speech {

struct NemoMember {
  std::string name;  // without the leading "./"
  std::span<const std::byte> bytes;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

class NemoFile : public TensorFile {
 public:
  // Members of a plain tar are used where they lie. A gzipped one is unpacked into a temporary file
  // (in TMPDIR or /tmp) that vanishes with the object; its size may be 64 MiB + 64 times that of
  // the archive. Errors: io, model_file.
  static std::shared_ptr<const NemoFile> open(const std::string& path);
  static std::shared_ptr<const NemoFile> parse(std::shared_ptr<const MappedFile> file);

  // True if the file begins like a tar archive, or like a gzipped file.
  static bool is_archive(std::span<const std::byte> bytes);

  std::string_view format() const override { return "nemo"; }

  void check_contents() const override { weights_->check_contents(); }

  const std::vector<NemoMember>& members() const { return members_; }
  // By name, with or without "./" or NeMo's prefix "nemo:"; null if absent.
  const NemoMember* find_member(std::string_view name) const;
  // The same, or Error(model_file) that names the archive and the member.
  const NemoMember& require_member(std::string_view name) const;
  // model_config.yaml.
  std::string_view config() const { return require_member("model_config.yaml").text(); }
  const TorchFile& weights() const { return *weights_; }

 private:
  void read_tar(std::span<const std::byte> tar);

  std::vector<NemoMember> members_;
  std::shared_ptr<const TorchFile> weights_;
};

}  // namespace speech
