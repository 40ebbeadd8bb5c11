// Compares the weight types of a FastConformer model.
//
//   fastconformer_tool fidelity F32.gguf AUDIO... [--calibrate AUDIO...]
//       How far each weight type moves the encoder's output, the logits of the joint network and of
//       a CTC head, and the tokens: the tables of docs/fidelity.md. With --calibrate also the block
//       types calibrated on those other files: the tables of docs/calibration.md.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "audio/read.h"
#include "base/error.h"
#include "formats/gguf.h"
#include "models/fastconformer/family.h"
#include "models/quantize.h"

namespace speech {
namespace {

std::unique_ptr<Recognizer> load(const std::string& path) {
  auto model = fastconformer_family.load(GgufFile::open(path), {});
  return std::unique_ptr<Recognizer>(static_cast<Recognizer*>(model.release()));
}

// Relative RMS difference of a stage, or of its first `rows` rows; NaN where there is no such
// stage.
double drift(const Trace& reference, const Trace& other, const std::string& stage,
             int64_t rows = INT64_MAX) {
  const auto find = [&](const Trace& t) {
    return std::find_if(t.entries().begin(), t.entries().end(),
                        [&](const auto& e) { return e.name == stage; });
  };
  const auto a = find(reference), b = find(other);
  if (a == reference.entries().end() || b == other.entries().end()) return NAN;
  double square = 0, difference = 0;
  const size_t n = std::min(a->floats.size(), b->floats.size()) / static_cast<size_t>(a->shape[0]) *
                   static_cast<size_t>(std::min(rows, a->shape[0]));
  for (size_t i = 0; i < n; ++i) {
    square += static_cast<double>(a->floats[i]) * a->floats[i];
    difference += std::pow(static_cast<double>(a->floats[i]) - b->floats[i], 2);
  }
  return std::sqrt(difference / square);
}

// Substitutions, insertions and deletions between two sequences.
size_t edits(const std::vector<Token>& a, const std::vector<Token>& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t same = diagonal + (a[i - 1].id == b[j - 1].id ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({same, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

struct Result {
  Transcript transcript;
  Trace trace;
};

Result run(Recognizer& model, const AudioFile& file) {
  Result out;
  const AudioView view{file.samples, file.rate};
  Options options;
  options.set(option::timestamps, true);
  Control control;
  control.trace = &out.trace;
  out.transcript = model.transcribe({&view, 1}, options, control)[0];
  return out;
}

void fidelity(const std::string& path, const std::vector<std::string>& audio,
              const std::vector<std::string>& calibration) {
  std::vector<AudioFile> files;
  for (const auto& name : audio) files.push_back(read_audio(name));
  std::vector<Result> reference;
  {
    auto model = load(path);
    for (const auto& file : files) reference.push_back(run(*model, file));
    fmt::print(
        "{}: relative RMS difference from F32 (mean of {} files), and tokens that change\n\n",
        model->info().name, files.size());
  }
  fmt::print("| type | encoder output | joint logits | CTC logits | tokens changed |\n");
  fmt::print("|---|---|---|---|---|\n");
  const std::string temporary =
      (std::filesystem::temp_directory_path() / fmt::format("fidelity-{}.gguf", getpid())).string();
  const auto row = [&](const std::string& name, const QuantizeOptions& options) {
    quantize({&fastconformer_family, 1}, path, temporary, options, {});
    auto model = load(temporary);
    double encoded = 0, joint = 0, ctc = 0;
    size_t changed = 0, tokens = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      const Result got = run(*model, files[i]);
      encoded += drift(reference[i].trace, got.trace, "60_encoded");
      // Only the first call sees the same frame and the same prediction for certain.
      joint += drift(reference[i].trace, got.trace, "80_joint_logits", 1);
      ctc += drift(reference[i].trace, got.trace, "65_ctc_logits");
      changed += edits(reference[i].transcript.tokens, got.transcript.tokens);
      tokens += reference[i].transcript.tokens.size();
    }
    const auto mean = [&](double sum) {
      const double value = sum / static_cast<double>(files.size());
      return std::isnan(value) ? std::string() : fmt::format("{:.2e}", value);
    };
    fmt::print("| {} | {} | {} | {} | {} of {} |\n", name, mean(encoded), mean(joint), mean(ctc),
               changed, tokens);
    model.reset();
    std::filesystem::remove(temporary);
  };
  for (const std::string name : {"f16", "q8_0", "q6_k", "q5_k", "q4_k"}) {
    QuantizeOptions options;
    options.type = quantize_type(name);
    row(name, options);
    if (calibration.empty() || options.type == WeightType::f16) continue;
    options.calibration = calibration;
    row(name + " calibrated", options);
  }
}

int main(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3 || arguments[0] != "fidelity") {
    fmt::print(stderr,
               "usage: fastconformer_tool fidelity F32.gguf AUDIO... [--calibrate AUDIO...]\n");
    return 2;
  }
  const auto end = arguments.end();
  const auto audio = std::find(arguments.begin(), end, "--calibrate");
  fidelity(arguments[1], {arguments.begin() + 2, audio}, {audio == end ? end : audio + 1, end});
  return 0;
}

}  // namespace
}  // namespace speech

int main(int argc, char** argv) {
  try {
    return speech::main({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
