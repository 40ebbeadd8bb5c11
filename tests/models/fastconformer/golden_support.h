// The tiny official checkpoints of tests/data/fastconformer: what they hold and what NeMo gives.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "models/model.h"
#include "models/registry.h"
#include "quant/weight_type.h"

namespace speech::testing {

// A file that is removed with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& suffix);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Folders with a model.nemo: those of tests/data/fastconformer, and those of the folder that the
// environment variable SPEECH_GOLDENS names.
std::vector<std::string> golden_folders();

// speech convert and speech quantize.
void convert_checkpoint(const std::string& source, const std::string& out,
                        const ConvertOptions& options = {});
void quantize_gguf(const std::string& source, const std::string& out, WeightType type);

// A copy of a GGUF file with some keys written anew (by what is called in their place; nothing:
// left out), and without the tensors that `keep` says no to.
using Changes = std::map<std::string, std::function<void(GgufWriter&)>>;
void rewrite_gguf(const std::string& source, const std::string& out, const Changes& changes,
                  const std::function<bool(const TensorEntry&)>& keep = {});

std::unique_ptr<Recognizer> load_recognizer(const std::string& gguf, int threads = 1);

// Mono 16 kHz samples of an "input" object of expect.json.
std::vector<float> golden_input(const std::string& folder, const nlohmann::json& input);

// One line per stage of `expected` (a stages file) that departs from `trace` by more than
// `tolerance` of its RMS, or is not in it and not among `missing`; integers must be equal.
std::string compare_stages(const std::string& expected, const Trace& trace, double tolerance,
                           const std::vector<std::string>& missing);

}  // namespace speech::testing
