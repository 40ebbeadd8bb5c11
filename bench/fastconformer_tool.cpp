// Compares the weight types of a FastConformer model.
//
//   fastconformer_tool fidelity F32.gguf AUDIO...
//       How far each weight type moves the encoder's output, the logits of the joint network and
//       the tokens: the table of docs/fidelity.md.
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

// Relative RMS difference of a stage, or of its first `rows` rows.
double drift(const Trace& reference, const Trace& other, const std::string& stage,
             int64_t rows = INT64_MAX) {
  const auto find = [&](const Trace& t) {
    return std::find_if(t.entries().begin(), t.entries().end(),
                        [&](const auto& e) { return e.name == stage; });
  };
  const auto a = find(reference), b = find(other);
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

void fidelity(const std::string& path, const std::vector<std::string>& audio) {
  std::vector<AudioFile> files;
  for (const auto& name : audio) files.push_back(read_audio(name));
  std::vector<Result> reference;
  {
    auto model = load(path);
    for (const auto& file : files) reference.push_back(run(*model, file));
    fmt::print("{}: {}\n\n", model->info().name,
               "relative RMS difference from F32, and tokens that change");
  }
  fmt::print("| type | encoder output | joint logits | tokens changed |\n|---|---|---|---|\n");
  const std::string temporary =
      (std::filesystem::temp_directory_path() / fmt::format("fidelity-{}.gguf", getpid())).string();
  for (const char* name : {"f16", "q8_0", "q6_k", "q5_k", "q4_k"}) {
    quantize({&fastconformer_family, 1}, path, temporary, {.type = quantize_type(name)}, {});
    auto model = load(temporary);
    double encoded = 0, logits = 0;
    size_t changed = 0, tokens = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      const Result got = run(*model, files[i]);
      encoded = std::max(encoded, drift(reference[i].trace, got.trace, "60_encoded"));
      // Only the first call sees the same frame and the same prediction for certain.
      logits = std::max(logits, drift(reference[i].trace, got.trace, "80_joint_logits", 1));
      changed += edits(reference[i].transcript.tokens, got.transcript.tokens);
      tokens += reference[i].transcript.tokens.size();
    }
    fmt::print("| {} | {:.2e} | {:.2e} | {} of {} |\n", name, encoded, logits, changed, tokens);
    model.reset();
    std::filesystem::remove(temporary);
  }
}

int main(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3 || arguments[0] != "fidelity") {
    fmt::print(stderr, "usage: fastconformer_tool fidelity F32.gguf AUDIO...\n");
    return 2;
  }
  fidelity(arguments[1], {arguments.begin() + 2, arguments.end()});
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
