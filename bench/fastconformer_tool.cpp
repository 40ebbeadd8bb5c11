// Measures a FastConformer model.
//
//   fastconformer_tool profile MODEL.gguf AUDIO [--threads N] [--runs N]
//       Where the time of a transcription goes, by kind of operation, and what the same matrix
//       products take alone.
//   fastconformer_tool fidelity F32.gguf AUDIO...
//       How far each weight type moves the encoder's output, the logits of the joint network and
//       the tokens: the table of docs/fidelity.md.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "audio/read.h"
#include "base/error.h"
#include "compute/timed_backend.h"
#include "formats/gguf.h"
#include "models/fastconformer/family.h"
#include "models/quantize.h"

namespace speech {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::unique_ptr<Recognizer> load(const std::string& path, const LoadParams& params) {
  auto model = fastconformer_family.load(GgufFile::open(path), params);
  return std::unique_ptr<Recognizer>(static_cast<Recognizer*>(model.release()));
}

// The same products on inputs of the same sizes, without what follows them.
double products_alone(const OpTimes& times, Backend& backend) {
  Workspace workspace;
  double seconds = 0;
  for (const OpTimes::Product& p : times.products) {
    Workspace::Scope scope(workspace);
    Tensor x = workspace.tensor({p.rows, p.weight.cols}),
           out = workspace.tensor({p.rows, p.weight.rows});
    std::vector<float> values(static_cast<size_t>(x.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    }
    backend.write(x, values);
    backend.fill(out, 0);
    const double begin = now();
    backend.matmul(out, x, p.weight);
    seconds += now() - begin;
  }
  return seconds;
}

void profile(const std::string& path, const std::string& audio, int threads, int runs) {
  OpTimes times;
  LoadParams params;
  params.threads = threads;
  params.wrap_backend = [&](std::unique_ptr<Backend> b) {
    return make_timed_backend(std::move(b), times);
  };
  const double start = now();
  auto model = load(path, params);
  fmt::print("{} {}, {} threads, load {:.1f} ms\n", model->info().name, model->info().weight_type,
             model->threads(), 1e3 * (now() - start));
  const AudioFile file = read_audio(audio);
  const AudioView view{file.samples, file.rate};
  const double length = static_cast<double>(file.samples.size()) / file.rate;
  double best = 0;
  OpTimes best_times;
  for (int i = 0; i < runs; ++i) {
    times = {};
    const double begin = now();
    model->transcribe({&view, 1}, {}, {});
    const double seconds = now() - begin;
    if (i == 0 || seconds < best) {
      best = seconds;
      best_times = times;
    }
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto plain = make_cpu_backend(threads);
  double alone = 0;
  for (int i = 0; i < runs; ++i) {
    const double seconds = products_alone(best_times, *plain);
    if (i == 0 || seconds < alone) alone = seconds;
  }
  fmt::print("{:.2f} s of audio in {:.3f} s (RTF {:.4f}), peak {:.1f} MB, file {:.1f} MB\n", length,
             best, best / length, static_cast<double>(usage.ru_maxrss) / 1024,
             static_cast<double>(model->info().file_bytes) / 1048576);
  std::vector<std::pair<std::string, OpTimes::Entry>> sorted(best_times.entries.begin(),
                                                             best_times.entries.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("{:<20} {:>7} {:>10} {:>7} {:>8}\n", "operation", "calls", "ms", "share", "GOPS");
  for (const auto& [name, e] : sorted) {
    fmt::print("{:<20} {:>7} {:>10.2f} {:>6.1f}% {:>8}\n", name, e.calls, 1e3 * e.seconds,
               100 * e.seconds / best,
               e.operations > 0 ? fmt::format("{:.1f}", e.operations / e.seconds / 1e9) : "");
  }
  fmt::print("{:<20} {:>7} {:>10.2f} {:>6.1f}%\n", "the rest", "",
             1e3 * (best - best_times.total()), 100 * (best - best_times.total()) / best);
  fmt::print("its products alone: {:.2f} ms = {:.2f} of the whole\n", 1e3 * alone, alone / best);
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
    auto model = load(path, {});
    for (const auto& file : files) reference.push_back(run(*model, file));
    fmt::print("{}: {}\n\n", model->info().name,
               "relative RMS difference from F32, and tokens that change");
  }
  fmt::print("| type | encoder output | joint logits | tokens changed |\n|---|---|---|---|\n");
  const std::string temporary =
      (std::filesystem::temp_directory_path() / fmt::format("fidelity-{}.gguf", getpid())).string();
  for (const char* name : {"f16", "q8_0", "q6_k", "q5_k", "q4_k"}) {
    quantize({&fastconformer_family, 1}, path, temporary, {.type = quantize_type(name)}, {});
    auto model = load(temporary, {});
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
  std::vector<std::string> names;
  int threads = 0, runs = 3;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--threads" && i + 1 < arguments.size()) {
      threads = std::atoi(arguments[++i].c_str());
    } else if (arguments[i] == "--runs" && i + 1 < arguments.size()) {
      runs = std::atoi(arguments[++i].c_str());
    } else {
      names.push_back(arguments[i]);
    }
  }
  if (!arguments.empty() && arguments[0] == "profile" && names.size() == 2) {
    profile(names[0], names[1], threads, std::max(1, runs));
  } else if (!arguments.empty() && arguments[0] == "fidelity" && names.size() >= 2) {
    fidelity(names[0], {names.begin() + 1, names.end()});
  } else {
    fmt::print(stderr,
               "usage: fastconformer_tool profile MODEL.gguf AUDIO [--threads N] [--runs N]\n"
               "       fastconformer_tool fidelity F32.gguf AUDIO...\n");
    return 2;
  }
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
