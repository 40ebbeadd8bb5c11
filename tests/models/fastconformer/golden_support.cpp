#include "models/fastconformer/golden_support.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "audio/read.h"
#include "base/error.h"
#include "base/file.h"
#include "models/convert.h"
#include "models/fastconformer/family.h"
#include "models/quantize.h"
#include "test_data.h"

namespace speech::testing {

namespace fs = std::filesystem;

TempFile::TempFile(const std::string& suffix) {
  static int number = 0;
  path_ = (fs::temp_directory_path() /
           ("speech_test_" + std::to_string(::getpid()) + "_" + std::to_string(number++) + suffix))
              .string();
}

TempFile::~TempFile() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::vector<std::string> golden_folders() {
  std::vector<std::string> out;
  std::vector<std::string> parents{data_path("fastconformer")};
  if (const char* more = std::getenv("SPEECH_GOLDENS")) parents.push_back(more);
  for (const auto& parent : parents) {
    for (const auto& entry : fs::directory_iterator(parent)) {
      if (fs::exists(entry.path() / "model.nemo")) out.push_back(entry.path().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

void convert_checkpoint(const std::string& source, const std::string& out,
                        const ConvertOptions& options) {
  convert({&fastconformer_family, 1}, source, out, options, {});
}

void quantize_gguf(const std::string& source, const std::string& out, WeightType type) {
  quantize({&fastconformer_family, 1}, source, out, {.type = type, .threads = 1}, {});
}

void rewrite_gguf(const std::string& source, const std::string& out, const Changes& changes,
                  const std::function<bool(const TensorEntry&)>& keep) {
  auto file = GgufFile::open(source);
  OutputFile output(out);
  GgufWriter writer;
  for (const GgufKeyValue& pair : file->metadata()) {
    const auto change = changes.find(pair.key);
    if (change == changes.end()) {
      writer.add_pair(pair);
    } else if (change->second) {
      change->second(writer);
    }
  }
  std::vector<const TensorEntry*> kept;
  for (const TensorEntry& t : file->tensors()) {
    if (!keep || keep(t)) kept.push_back(&t);
  }
  for (const TensorEntry* t : kept) writer.add_tensor(t->name, t->shape, *ggml_type(t->type));
  writer.begin(output);
  for (const TensorEntry* t : kept) writer.write(t->bytes);
  writer.finish();
  output.commit();
}

std::unique_ptr<Recognizer> load_recognizer(const std::string& gguf, int threads) {
  LoadParams params;
  params.threads = threads;
  auto model = fastconformer_family.load(GgufFile::open(gguf), params);
  return std::unique_ptr<Recognizer>(dynamic_cast<Recognizer*>(model.release()));
}

std::vector<float> golden_input(const std::string& folder, const nlohmann::json& input) {
  const std::string name = input["file"];
  const std::string base = fs::path(name).stem().string();
  fs::path path = fs::path(folder).parent_path() / name;
  if (!name.starts_with("inputs/")) {
    path = data_path("audio/" + base + ".flac");
    if (!fs::exists(path)) path = data_path("audio/" + base + ".wav");
    if (const char* more = std::getenv("SPEECH_GOLDENS_AUDIO"); more && !fs::exists(path)) {
      path = fs::path(more) / (base + ".wav");
    }
  }
  std::vector<float> samples = read_audio(path.string()).samples;
  if (!input.contains("first_sample")) return samples;
  const auto first = samples.begin() + input["first_sample"].get<std::ptrdiff_t>();
  return {first, first + input["samples"].get<std::ptrdiff_t>()};
}

std::string compare_stages(const std::string& expected, const Trace& trace, double tolerance,
                           const std::vector<std::string>& missing) {
  std::string report;
  auto file = SafetensorsFile::open(expected);
  for (const TensorEntry& want : file->tensors()) {
    const auto got = std::find_if(trace.entries().begin(), trace.entries().end(),
                                  [&](const auto& e) { return e.name == want.name; });
    if (got == trace.entries().end()) {
      const bool known = std::any_of(missing.begin(), missing.end(), [&](const std::string& name) {
        return want.name.find(name) != std::string::npos;
      });
      if (!known) report += want.name + " is missing\n";
      continue;
    }
    if (got->shape != want.shape) {
      report += want.name + " has another shape than " + want.shape_text() + "\n";
      continue;
    }
    if (!got->ints.empty() || got->floats.empty()) {
      const std::vector<int64_t> values = to_i64(want);
      if (!std::equal(values.begin(), values.end(), got->ints.begin(), got->ints.end())) {
        report += want.name + " differs\n";
      }
      continue;
    }
    const std::vector<float> values = to_f32(want);
    double square = 0, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isinf(values[i]) && values[i] == got->floats[i]) continue;
      square += static_cast<double>(values[i]) * values[i];
      difference += std::pow(static_cast<double>(values[i]) - got->floats[i], 2);
    }
    const double relative = std::sqrt(difference / square);
    if (!(relative <= tolerance)) {
      report += want.name + " departs by " + std::to_string(relative * 1e6) + "e-6\n";
    }
  }
  return report;
}

}  // namespace speech::testing
