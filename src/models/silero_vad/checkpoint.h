// The files that snakers4/silero-vad publishes: TorchScript, ONNX in several exports, safetensors.
//
// All generations since v5 have the same shapes, so what a file holds is told by the SHA-256 of its
// values alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/tensor_file.h"
#include "models/silero_vad/weights.h"

namespace speech {

class GgufWriter;
class OutputFile;

namespace silero_vad {

// Sample rates of the models in a file, 16000 first; empty if it is no Silero VAD checkpoint.
std::vector<int> checkpoint_rates(const TensorFile& file);

struct Checkpoint {
  Weights weights;
  bool published = false;  // the values are known to be Silero's own
  std::string version;     // "v6.2"; empty for values of no release
  std::string source_url;  // of the release; empty with it
};

// The model for `rate`, or the first one if 0. Error(model_file); Error(invalid_argument) if there
// is none for that rate.
Checkpoint read_checkpoint(const TensorFile& file, int rate = 0);

// Names and origin as a GGUF file has them, and the file itself: metadata, tensors, data.
void write_gguf(const Checkpoint& checkpoint, const std::string& name, GgufWriter& writer,
                OutputFile& out);

inline constexpr char kName[] = "silero-vad", kOrganization[] = "snakers4", kLicense[] = "MIT",
                      kRepository[] = "https://github.com/snakers4/silero-vad";
std::string size_label(const Weights& weights);  // "309K": parameters of the GGUF file

}  // namespace silero_vad
}  // namespace speech
