#include "models/fastconformer/convert.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "models/fastconformer/checkpoint.h"

namespace speech::fastconformer {
namespace {

// The general.* keys of a file.
struct General {
  std::string name, organization, basename, size_label, finetune, version, license, repository,
      revision;
  std::vector<std::string> languages;
};

const std::vector<General>& published() {
  static const std::vector<General> list = {
      {"parakeet-tdt-0.6b-v3",
       "nvidia",
       "parakeet-tdt",
       "0.6B",
       "",
       "v3",
       "CC-BY-4.0",
       "https://huggingface.co/nvidia/parakeet-tdt-0.6b-v3",
       "6d590f77001d318fb17a0b5bf7ee329a91b52598",
       {"bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "hr", "hu", "it",
        "lt", "lv", "mt", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "uk"}},
      {"parakeet-tdt_ctc-0.6b-ja",
       "nvidia",
       "parakeet-tdt_ctc",
       "0.6B",
       "ja",
       "",
       "CC-BY-4.0",
       "https://huggingface.co/nvidia/parakeet-tdt_ctc-0.6b-ja",
       "44edb27eea9317daf89333e75eb830db4b1cc298",
       {"ja"}},
      {"reazonspeech-nemo-v2",
       "reazon-research",
       "reazonspeech-nemo",
       "619M",
       "",
       "v2",
       "Apache-2.0",
       "https://huggingface.co/reazon-research/reazonspeech-nemo-v2",
       "33693408be76b7cba9fd4a7546a0a8772430211b",
       {"ja"}},
      // This repository's own (training/).
      {"tiny-en", "speech", "tiny-en", "6.5M", "", "", "Apache-2.0", "", "", {"en"}},
  };
  return list;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "619M" for 619,190,169 values.
std::string size_label(int64_t values) {
  if (values >= 1'000'000'000) return fmt::format("{:.1f}B", static_cast<double>(values) / 1e9);
  if (values >= 1'000'000) return fmt::format("{}M", (values + 500'000) / 1'000'000);
  return fmt::format("{}K", std::max<int64_t>(1, (values + 500) / 1000));
}

// "0.6b" or "110M" in a name.
bool is_size(const std::string& word) {
  if (word.size() < 2 || !std::isdigit(static_cast<unsigned char>(word[0]))) return false;
  const char unit = static_cast<char>(std::tolower(static_cast<unsigned char>(word.back())));
  return (unit == 'b' || unit == 'm' || unit == 'k') &&
         word.find_first_not_of("0123456789.") == word.size() - 1;
}

bool is_version(const std::string& word) {
  return word.size() > 1 && (word[0] == 'v' || word[0] == 'V') &&
         word.find_first_not_of("0123456789.", 1) == word.npos;
}

// Japanese when any piece has kana; else what language marks ("<|en|>") the pieces hold.
std::vector<std::string> languages_of(const std::vector<std::string>& pieces) {
  std::set<std::string> marks;
  for (const std::string& piece : pieces) {
    for (size_t i = 0; i + 2 < piece.size(); ++i) {  // U+3041 to U+30FF
      const auto a = static_cast<unsigned char>(piece[i]),
                 b = static_cast<unsigned char>(piece[i + 1]);
      if (a == 0xe3 && b >= 0x81 && b <= 0x83) return {"ja"};
    }
    if (piece.size() == 6 && piece.starts_with("<|") && piece.ends_with("|>") &&
        std::islower(static_cast<unsigned char>(piece[2])) &&
        std::islower(static_cast<unsigned char>(piece[3]))) {
      marks.insert(piece.substr(2, 2));
    }
  }
  return {marks.begin(), marks.end()};
}

// A name for a checkpoint: its folder's or file's, or the folder around a file called "model".
std::string name_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path full = fs::weakly_canonical(fs::path(path), error);
  std::string name =
      fs::is_directory(full, error) ? full.filename().string() : full.stem().string();
  if (name == "model" || name == "hf") name = full.parent_path().filename().string();
  return name.empty() ? "model" : name;
}

// What is published of a known name; for another, what its name and its tensors say.
General general_of(const std::string& name, int64_t values,
                   const std::vector<std::string>& pieces) {
  for (const General& known : published()) {
    if (lower(name) == known.name) return known;
  }
  General g;
  g.name = name;
  g.organization = "unknown";
  g.license = "unknown";
  bool after_size = false;
  std::string* part = &g.basename;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('-', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    begin = end + 1;
    if (!after_size && is_size(word)) {
      g.size_label = word;
      std::transform(word.begin(), word.end(), g.size_label.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      after_size = true;
      part = &g.finetune;
    } else if (is_version(word) && !g.basename.empty()) {
      g.version = word;
    } else {
      *part += (part->empty() ? "" : "-") + word;
    }
  }
  if (g.basename.empty()) g.basename = name;
  if (g.size_label.empty()) g.size_label = size_label(values);
  g.languages = languages_of(pieces);
  return g;
}

void write_general(const General& g, const Config& config, GgufWriter& w) {
  const auto optional = [&](const char* key, const std::string& value) {
    if (!value.empty()) w.add_string(key, value);
  };
  w.add_string("general.architecture", kArchitecture);
  w.add_string("general.name", g.name);
  w.add_string("general.organization", g.organization);
  w.add_string("general.basename", g.basename);
  w.add_string("general.size_label", g.size_label);
  optional("general.finetune", g.finetune);
  optional("general.version", g.version);
  w.add_string("general.license", g.license);
  w.add_string("general.source.repo_url", g.repository);
  w.add_string("general.source.url",
               g.repository.empty() ? "" : g.repository + "/tree/" + g.revision);
  w.add_u32("general.file_type", 0);
  w.add_strings("general.languages", g.languages);
  w.add_u32("speech.layout", kLayout);
  w.add_string("speech.requires", "0.8.0");
  w.add_string("speech.task", "recognition");
  w.add_u32("speech.sample_rate", static_cast<uint32_t>(config.frontend.sample_rate));
  w.add_string("speech.language_use", "checked");
}

}  // namespace

bool recognizes(const std::string& source_path, const TensorFile& source) {
  if (const auto* nemo = dynamic_cast<const NemoFile*>(&source)) {
    return nemo_target(*nemo).find("nemo.collections.asr.") != std::string::npos;
  }
  return source.format() == "safetensors" && transformers_type(source_path).starts_with("parakeet");
}

void convert(const std::string& source_path, const TensorFile& source,
             const ConvertOptions& options, GgufWriter& writer, OutputFile& out) {
  const auto* nemo = dynamic_cast<const NemoFile*>(&source);
  Checkpoint checkpoint = nemo ? read_nemo(*nemo) : read_transformers(source_path, source);
  Config& config = checkpoint.config;
  if (options.extra_heads && !checkpoint.ctc) {
    fail_option(Status::unsupported, "extra_heads", "{} has no head that the layout leaves out",
                source_path);
  }
  config.decoder.ctc = options.extra_heads && checkpoint.ctc;
  const std::vector<TensorSpec> specs = layout_tensors(config, read_widths(checkpoint));
  int64_t values = 0;
  for (const TensorSpec& spec : specs) {
    int64_t count = 1;
    for (int64_t n : spec.shape) count *= n;
    values += count;
  }

  const General general = general_of(options.name.empty() ? name_of(source_path) : options.name,
                                     values, config.text.pieces);
  if (config.text.separators.empty()) config.text.separators = {".", "?", "!"};
  if (general.languages == std::vector<std::string>{"ja"}) {
    config.text.breaks = {"\u3002", "\uff1f", "\uff01", "?", "!"};
  }
  write_general(general, config, writer);
  write_config(config, writer);
  const GgmlType& f32 = *ggml_type(DType::f32);
  for (const TensorSpec& spec : specs) writer.add_tensor(spec.name, spec.shape, f32);
  writer.begin(out);
  for (const TensorSpec& spec : specs) {
    const std::vector<float> tensor = layout_values(checkpoint, spec);
    writer.write(std::as_bytes(std::span(tensor)));
  }
  checkpoint.state.check_all_used(checkpoint.ignored);
}

}  // namespace speech::fastconformer
