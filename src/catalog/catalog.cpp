#include "catalog/catalog.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace speech {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTen = "de en es fr it ja ko pt ru zh";
constexpr std::string_view kThirty =
    "ar cs da de el en es fa fi fil fr hi hu id it ja ko mk ms nl pl pt ro ru sv th tr vi yue zh";
constexpr std::string_view kEurope =
    "bg cs da de el en es et fi fr hr hu it lt lv mt nl pl pt ro ru sk sl sv uk";

#include "catalog/tiny_en.inc"

constexpr std::array kCatalog = {
    CatalogModel{"qwen3-tts-0.6b",
                 "sakasegawa/Qwen3-TTS-12Hz-0.6B-CustomVoice-GGUF",
                 "2d4d7aea381798737778af3a375e007050029689",
                 Task::synthesis,
                 kTen,
                 {"q8_0", "Qwen3-TTS-12Hz-0.6B-CustomVoice-Q8_0.gguf", 1213534464,
                  "f606ea3981aa42762b16db9a94826d2d560eb60f0b102001618f40d5a2f78cc6"}},
    CatalogModel{"qwen3-tts-1.7b",
                 "sakasegawa/Qwen3-TTS-12Hz-1.7B-CustomVoice-GGUF",
                 "0e6b15bd7e51aaee4363ccb128c89730addc5942",
                 Task::synthesis,
                 kTen,
                 {"q8_0", "Qwen3-TTS-12Hz-1.7B-CustomVoice-Q8_0.gguf", 2287780352,
                  "1bc0ef69547c003507b6536639a6080c8856382f4d0963b15d4475528330592d"}},
    CatalogModel{"irodori-tts-mf",
                 "sakasegawa/Irodori-TTS-v4.1-Small-MF-GGUF",
                 "69d307a472a1708c5637edcfe376d31c2685829d",
                 Task::synthesis,
                 "ja",
                 {"f16", "Irodori-TTS-866M-MF-v4.1-F16.gguf", 1920321792,
                  "e237dc3eefe469b8bba87872beacf12fb7fe00dbdf85767edca8ec04ab910d13"}},
    CatalogModel{"irodori-tts",
                 "sakasegawa/Irodori-TTS-v4.1-Small-GGUF",
                 "3ebbd5ad88a3847c52f9e158d9dbe35178de5b98",
                 Task::synthesis,
                 "ja",
                 {"f16", "Irodori-TTS-859M-v4.1-F16.gguf", 1905903936,
                  "f334932bdf166579bada0a3c8bdabb7199af85682fdcefb6f1cb7e444f5c75b3"}},
    CatalogModel{"qwen3-asr-0.6b",
                 "sakasegawa/Qwen3-ASR-0.6B-GGUF",
                 "450483d7e7ffc6ddb47048094247db782f7dda04",
                 Task::recognition,
                 kThirty,
                 {"q8_0", "Qwen3-ASR-0.6B-Q8_0.gguf", 841502336,
                  "416e10c15b4a3d9002bd337d18fc450233fdf68502b6e10d1379d2789838afd0"}},
    CatalogModel{"qwen3-asr-1.7b",
                 "sakasegawa/Qwen3-ASR-1.7B-GGUF",
                 "d1b1ebcc7569cae80209262a5fc147d65bebd7bd",
                 Task::recognition,
                 kThirty,
                 {"q8_0", "Qwen3-ASR-1.7B-Q8_0.gguf", 2176109216,
                  "5f219b78a1d9c3b9e97da27708b36f8a0bc1bfc1650b541c0a6dbaf87c9a62d0"}},
    CatalogModel{"reazonspeech-v2",
                 "sakasegawa/reazonspeech-nemo-v2-GGUF",
                 "cb9e436cf3f9d9563c610cb5318adcfc5c0fe098",
                 Task::recognition,
                 "ja",
                 {"f16", "reazonspeech-nemo-619M-v2-F16.gguf", 1240465696,
                  "1492147d7d18fbb0503db2cbbb05df4932cb3451e391524c6a2411632e4823bf"}},
    CatalogModel{"parakeet-tdt_ctc-0.6b-ja",
                 "sakasegawa/parakeet-tdt_ctc-0.6b-ja-GGUF",
                 "48060c6e292b01c84edac8988db0163fd41d3fe2",
                 Task::recognition,
                 "ja",
                 {"f16", "parakeet-tdt_ctc-0.6B-ja-F16.gguf", 1240656832,
                  "71ddc10381a9d3b59e18fbc51422059293f1268676b1ca62adb45b791df05497"}},
    CatalogModel{"parakeet-tdt-0.6b-v3",
                 "sakasegawa/parakeet-tdt-0.6b-v3-GGUF",
                 "304eaf83fc16e3087425b61b6652c4eafe003dc4",
                 Task::recognition,
                 kEurope,
                 {"f16", "parakeet-tdt-0.6B-v3-F16.gguf", 1255370688,
                  "7b74de31ac48427934104f0d074613f8d759d7d108777c114476346789d94426"}},
    CatalogModel{"tiny-en", "", "", Task::recognition, "en", kTinyEn[0],
                 std::span(kTinyEn).subspan(1)},
    CatalogModel{"silero-vad",
                 "sakasegawa/silero-vad-GGUF",
                 "7fcb7aa2a70c312f8579fc987b3e1cdecf9321ca",
                 Task::detection,
                 "",
                 {"f32", "silero-vad-309K-v6.2-F32.gguf", 1238624,
                  "2fc312514e5fc4fa4ffd02b25c76a4853fa4130e8fb9777d01502183b01238cb"}},
};

// Extensions that make an argument a path.
constexpr std::array<std::string_view, 11> kExtensions = {".gguf", ".safetensors", ".nemo", ".onnx",
                                                          ".jit",  ".pt",          ".pth",  ".ckpt",
                                                          ".bin",  ".npy",         ".json"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string names() {
  std::string out;
  for (const auto& model : kCatalog) {
    for (const auto& file : model.files()) {
      out += fmt::format("{}{}:{}", out.empty() ? "" : ", ", model.name, file.type);
    }
  }
  return out;
}

}  // namespace

std::vector<CatalogFile> CatalogModel::files() const {
  std::vector<CatalogFile> out{file};
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

std::string CatalogModel::url(const CatalogFile& of) const {
  if (repository.empty()) return {};
  return fmt::format("https://huggingface.co/{}/resolve/{}/{}", repository, revision, of.file);
}

std::span<const CatalogModel> catalog() {
  return kCatalog;
}

std::optional<CatalogChoice> find_in_catalog(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  if (name.empty()) return std::nullopt;
  for (const auto& model : kCatalog) {
    if (name != model.name && name != model.repository) continue;
    if (name.size() == text.size()) return CatalogChoice{&model, model.file};
    for (const auto& file : model.files()) {
      if (text.substr(name.size() + 1) == file.type) return CatalogChoice{&model, file};
    }
  }
  return std::nullopt;
}

std::string cache_folder() {
  std::string folder = environment("SPEECH_MODEL_DIR");
  if (!folder.empty() && folder[0] == '/') return folder;
  folder = environment("XDG_CACHE_HOME");
  if (folder.empty() || folder[0] != '/') folder = environment("HOME") + "/.cache";
  return folder + "/speech.cpp/models";
}

std::vector<std::string> model_folders() {
  std::vector<std::string> folders;
  auto add = [&](const std::string& folder) {
    if (!folder.empty() && std::find(folders.begin(), folders.end(), folder) == folders.end()) {
      folders.push_back(folder);
    }
  };
  std::string given = environment("SPEECH_MODELS");
  for (size_t begin = 0; begin < given.size();) {
    size_t end = std::min(given.find(':', begin), given.size());
    add(given.substr(begin, end - begin));
    begin = end + 1;
  }
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) add((program.parent_path().parent_path() / "share/speech/models").string());
  add(SPEECH_INSTALLED_MODELS);
  add(SPEECH_SOURCE_MODELS);
  add(cache_folder());
  return folders;
}

std::optional<std::string> locate_model(const CatalogModel& model, const CatalogFile& file) {
  std::vector<fs::path> places{file.file, fs::path(model.name) / file.file};
  if (!model.repository.empty()) {
    std::string repository(model.repository);
    repository.replace(repository.find('/'), 1, "--");
    places.push_back(fs::path(repository) / file.sha256 / file.file);
  }
  for (const fs::path folder : model_folders()) {
    for (const fs::path& place : places) {
      const fs::path path = folder / place;
      std::error_code error;
      if (fs::file_size(path, error) == file.bytes && !error) return path.string();
    }
  }
  return std::nullopt;
}

bool is_model_path(std::string_view text) {
  if (find_in_catalog(text)) return false;
  std::string name = lower(text);
  return text.find('/') != std::string_view::npos || text == "." || text == ".." ||
         std::any_of(kExtensions.begin(), kExtensions.end(),
                     [&](std::string_view extension) { return name.ends_with(extension); });
}

bool is_model(std::string_view text) {
  return is_model_path(text) || find_in_catalog(text).has_value();
}

std::string resolve_model(const std::string& text) {
  if (is_model_path(text)) return text;
  const auto choice = find_in_catalog(text);
  if (!choice) {
    fail_option(Status::invalid_argument, "model_path",
                "\"{}\" is neither a path of a model file nor one of the names {}", text, names());
  }
  const auto& [model, file] = *choice;
  if (auto path = locate_model(*model, file)) return *path;
  std::string folders;
  for (const auto& folder : model_folders()) folders += "\n  " + folder;
  const std::string url = model->url(file);
  const std::string source =
      !url.empty() ? url
                   : fmt::format("{}, which comes with the source of this program,", file.file);
  fail_option(Status::io, "model_path",
              "{} is not on this machine. This version downloads nothing: put {} into one of these "
              "folders, or give its path:{}",
              text, source, folders);
}

}  // namespace speech
