#include "models/qwen3/model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "formats/gguf.h"
#include "models/qwen3/adapter.h"
#include "text/chat_template.h"

namespace speech::qwen3 {
namespace {

namespace fs = std::filesystem;

// Prompt positions that go through the layers at once: enough rows for the products to run at full
// speed, few enough that activations stay small whatever the length of a prompt.
constexpr int64_t kPieceRows = 512;

class Qwen3 final : public LanguageModel {
 public:
  Qwen3(ModelInfo info, Config config, Weights weights,
        std::shared_ptr<const BpeTokenizer> tokenizer, std::string chat_template,
        std::string identity, const LoadParams& params)
      : config_(std::move(config)),
        weights_(std::move(weights)),
        tokenizer_(std::move(tokenizer)),
        chat_template_(std::move(chat_template)),
        identity_(std::move(identity)),
        kv_type_(params.kv_cache),
        backend_(make_cpu_backend(params.threads, params.precision)) {
    if (params.wrap_backend) backend_ = params.wrap_backend(std::move(backend_));
    info_ = std::move(info);
    info_.weight_type = weights_.type;
    info_.weight_bytes = weights_.bytes;
  }

  std::string device() const override { return backend_->name(); }
  int threads() const override { return backend_->threads(); }
  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t max_positions() const override { return config_.max_positions; }
  const std::shared_ptr<const BpeTokenizer>& tokenizer() const override { return tokenizer_; }
  const std::string& chat_template() const override { return chat_template_; }
  const std::vector<int32_t>& eos() const override { return config_.eos; }
  const SamplingDefaults& sampling() const override { return config_.sampling; }
  size_t workspace_bytes() const override { return workspace_.high_water(); }
  std::string fingerprint() const override { return identity_; }

  KvCache new_cache() const override {
    const DecoderConfig& d = config_.decoder;
    return KvCache(d.layers, d.kv_heads, d.head_dim, kv_type_);
  }

  std::vector<std::vector<float>> step(std::span<const Input> inputs, Trace* trace) override {
    std::lock_guard lock(mutex_);
    check(inputs);
    std::vector<std::vector<float>> logits(inputs.size());
    std::vector<size_t> done(inputs.size(), 0);
    // Long inputs go in pieces. A traced run is one piece, so that its stages are whole.
    int64_t limit = trace ? INT64_MAX : kPieceRows;
    while (true) {
      std::vector<Piece> pieces;
      int64_t rows = 0;
      for (size_t i = 0; i < inputs.size() && rows < limit; ++i) {
        auto left = static_cast<int64_t>(inputs[i].ids.size() - done[i]);
        int64_t take = std::min(left, limit - rows);
        if (take == 0) continue;
        pieces.push_back({i, done[i], take});
        rows += take;
      }
      if (pieces.empty()) break;
      run_pieces(inputs, pieces, rows, logits, trace);
      for (const Piece& p : pieces) done[p.input] += static_cast<size_t>(p.count);
    }
    return logits;
  }

 private:
  struct Piece {
    size_t input, begin;
    int64_t count;
  };

  void check(std::span<const Input> inputs) const {
    for (const Input& input : inputs) {
      if (!input.cache || input.ids.empty()) fail(Status::internal, "a step without ids or cache");
      for (int32_t id : input.ids) {
        if (id < 0 || id >= config_.vocabulary) {
          fail(Status::out_of_range, "token id {} is outside the vocabulary of {}", id,
               config_.vocabulary);
        }
      }
      int64_t end = input.cache->positions() + static_cast<int64_t>(input.ids.size());
      if (end > config_.max_positions) {
        fail(Status::out_of_range, "{} tokens are more than the {} positions of this model", end,
             config_.max_positions);
      }
    }
  }

  void run_pieces(std::span<const Input> inputs, const std::vector<Piece>& pieces, int64_t rows,
                  std::vector<std::vector<float>>& logits, Trace* trace_to) {
    Workspace::Scope scope(workspace_);
    Run run{*backend_, workspace_, trace_to};
    std::vector<int32_t> ids;
    std::vector<DecoderRows> sequences;
    for (const Piece& p : pieces) {
      auto piece = inputs[p.input].ids.subspan(p.begin, static_cast<size_t>(p.count));
      ids.insert(ids.end(), piece.begin(), piece.end());
      sequences.push_back({inputs[p.input].cache, p.count});
    }
    if (trace_to) trace_inputs(*trace_to, ids);

    Tensor x = run.tensor({rows, config_.decoder.hidden});
    backend_->gather(x, weights_.embedding, ids);
    trace(run, "01_embed", x);
    run_decoder(run, weights_.decoder, x, sequences);

    // Only rows that somebody reads go through the head, a large matrix.
    struct Wanted {
      size_t input;
      int64_t row, count;
    };
    std::vector<Wanted> wanted;
    int64_t row = 0, count = 0;
    for (const Piece& p : pieces) {
      const Input& input = inputs[p.input];
      bool last = p.begin + static_cast<size_t>(p.count) == input.ids.size();
      if (input.all_logits) {
        wanted.push_back({p.input, row, p.count});
        count += p.count;
      } else if (last) {
        wanted.push_back({p.input, row + p.count - 1, 1});
        ++count;
      }
      row += p.count;
    }
    if (count == 0) return;
    Tensor h = run.tensor({count, config_.decoder.hidden});
    int64_t to = 0;
    for (const Wanted& w : wanted) {
      backend_->rms_norm(h.slice(0, to, to + w.count), x.slice(0, w.row, w.row + w.count),
                         weights_.final_norm, config_.decoder.eps);
      to += w.count;
    }
    trace(run, "90_final_norm", h);
    // The head of many rows is computed a few at a time: a row of logits is as wide as the
    // vocabulary.
    constexpr int64_t kHeadRows = 64;
    int64_t width = config_.vocabulary, first = 0;
    std::vector<float> all;
    Tensor y = run.tensor({std::min(count, kHeadRows), width});
    std::vector<float> values(static_cast<size_t>(count * width));
    for (; first < count; first += kHeadRows) {
      int64_t n = std::min(kHeadRows, count - first);
      backend_->matmul(y.slice(0, 0, n), h.slice(0, first, first + n), weights_.head);
      backend_->read(y.slice(0, 0, n), std::span(values).subspan(static_cast<size_t>(first * width),
                                                                 static_cast<size_t>(n * width)));
    }
    if (trace_to) trace_to->add("91_logits", {count, width}, values);
    auto from = values.begin();
    for (const Wanted& w : wanted) {
      auto& out = logits[w.input];
      out.insert(out.end(), from, from + w.count * width);
      from += w.count * width;
    }
  }

  // Ids and the rotation of each position, as the official rotary module gives it.
  void trace_inputs(Trace& out, const std::vector<int32_t>& ids) const {
    auto n = static_cast<int64_t>(ids.size());
    out.add_ints("00_input_ids", {n}, ids);
    const RopeTable& rope = weights_.decoder.rope;
    auto half = rope.inverse_frequency.size();
    std::vector<float> cosines, sines;
    for (int64_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < 2 * half; ++j) {
        float angle = static_cast<float>(i) * rope.inverse_frequency[j % half];
        cosines.push_back(std::cos(angle) * rope.magnitude);
        sines.push_back(std::sin(angle) * rope.magnitude);
      }
    }
    std::vector<int64_t> shape{n, static_cast<int64_t>(2 * half)};
    out.add("02_rope_cos", shape, cosines);
    out.add("03_rope_sin", shape, sines);
  }

  Config config_;
  Weights weights_;
  std::shared_ptr<const BpeTokenizer> tokenizer_;
  std::string chat_template_;
  std::string identity_;
  KvType kv_type_;
  std::unique_ptr<Backend> backend_;
  Workspace workspace_;
  std::mutex mutex_;
};

std::string optional_text(const fs::path& path) {
  return fs::exists(path) ? read_text_file(path.string()) : std::string();
}

std::shared_ptr<const BpeTokenizer> gguf_tokenizer(const GgufFile& file) {
  std::shared_ptr<const BpeTokenizer> tokenizer;
  {
    std::vector<std::string> tokens = file.get_strings("tokenizer.ggml.tokens");
    std::vector<std::string> merges = file.get_strings("tokenizer.ggml.merges");
    std::vector<std::string_view> token_views(tokens.begin(), tokens.end());
    std::vector<std::string_view> merge_views(merges.begin(), merges.end());
    tokenizer = BpeTokenizer::from_gguf(
        file.get_string("tokenizer.ggml.model"), file.get_string("tokenizer.ggml.pre"), token_views,
        file.get_i32s("tokenizer.ggml.token_type"), merge_views, file.path());
  }
  trim_memory();  // of the lists: tens of megabytes
  return tokenizer;
}

ModelInfo base_info(const TensorFile& source, const Config& config, uint64_t file_bytes) {
  ModelInfo info;
  info.name = config.name;
  info.architecture = "qwen3";
  info.task = Task::language;
  info.weight_type = stored_type(source, config);
  for (const TensorEntry& t : source.tensors()) info.weight_bytes += t.bytes.size();
  info.file_bytes = file_bytes;
  return info;
}

// Name, size and time of change of the files of a folder that say what a model computes.
std::string file_identity(const std::string& path) {
  std::string text;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::string extension = file.extension().string();
    if (extension != ".safetensors" && extension != ".json" && extension != ".txt") continue;
    text += fmt::format("{} {} {}\n", file.filename().string(), fs::file_size(file),
                        fs::last_write_time(file).time_since_epoch().count());
    if (file.filename() == "config.json") text += read_text_file(file.string());
  }
  return text;
}

// Everything that could change keys and values: their type, files, configuration, quantization and
// adapter.
std::string folder_identity(const std::string& path, const LoadParams& params) {
  std::string text =
      fmt::format("qwen3 v1 {}-cache quantize={}-g{}\n", kv_type_name(params.kv_cache),
                  params.quantize_bits, params.quantize_bits ? params.quantize_group : 0) +
      file_identity(path);
  if (!params.adapter.empty()) text += "adapter\n" + file_identity(params.adapter);
  return text;
}

// Bytes of the files in a folder.
uint64_t folder_bytes(const std::string& path) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// The adapter that `params` names, checked against the base; null: none.
std::unique_ptr<Adapter> load_adapter(const TensorFile& base, const Config& config,
                                      const LoadParams& params) {
  if (params.adapter.empty()) return nullptr;
  if (params.quantize_bits != 0) {
    fail_option(Status::unsupported, "lora",
                "an adapter is not added to weights that are quantized while they are loaded: bake "
                "it first (speech lora bake BASE ADAPTER OUT), then quantize OUT");
  }
  auto adapter = std::make_unique<Adapter>(params.adapter);
  adapter->check(base, config);
  return adapter;
}

}  // namespace

Config folder_config(const std::string& path) {
  Config config = parse_config(read_text_file((fs::path(path) / "config.json").string()),
                               optional_text(fs::path(path) / "generation_config.json"), path);
  config.name = fs::weakly_canonical(path).filename().string();
  return config;
}

bool recognizes(const std::string& path, const TensorFile&) {
  fs::path config = fs::path(path) / "config.json";
  if (!fs::is_directory(path) || !fs::exists(config)) return false;
  try {
    auto json = nlohmann::json::parse(read_text_file(config.string()));
    return json.is_object() && json.value("model_type", nlohmann::json()) == "qwen3";
  } catch (const nlohmann::json::exception& e) {
    // A folder of whatever family: nothing can be made of it.
    fail(Status::model_file, "{} is not valid JSON: {}", config.string(), e.what());
  }
}

ModelInfo folder_info(const std::string& path, const TensorFile& source) {
  return base_info(source, folder_config(path), folder_bytes(path));
}

ModelInfo gguf_info(const GgufFile& file) {
  return base_info(file, read_config(file), fs::file_size(file.path()));
}

std::unique_ptr<LanguageModel> load_folder_model(const std::string& path,
                                                 std::shared_ptr<const TensorFile> source,
                                                 const LoadParams& params) {
  Config config = folder_config(path);
  if (params.quantize_bits != 0 && config.quantization) {
    fail_option(
        Status::unsupported, "quantize",
        "the weights of {} are {} already; load it without quantizing, or quantize the dense "
        "folder",
        path, stored_type(*source, config));
  }
  ModelInfo info = base_info(*source, config, folder_bytes(path));
  auto tokenizer = BpeTokenizer::load(path);
  if (tokenizer->size() > config.vocabulary) {
    fail(Status::model_file, "{}: the tokenizer has {} ids, config.json's vocab_size is {}", path,
         tokenizer->size(), config.vocabulary);
  }
  std::unique_ptr<Adapter> adapter = load_adapter(*source, config, params);
  if (adapter) info.file_bytes += folder_bytes(params.adapter);
  Weights weights = load_folder(source, config, {params.quantize_bits, params.quantize_group},
                                params.map_weights, adapter.get(), params.progress);
  return std::make_unique<Qwen3>(std::move(info), std::move(config), std::move(weights),
                                 std::move(tokenizer), ChatTemplate::find_source(path),
                                 folder_identity(path, params), params);
}

std::unique_ptr<LanguageModel> load_gguf_model(std::shared_ptr<const GgufFile> file,
                                               const LoadParams& params) {
  if (params.quantize_bits != 0) {
    fail_option(Status::unsupported, "quantize",
                "{} is a GGUF file, which stays as it is; quantize the Hugging Face folder instead",
                file->path());
  }
  if (!params.adapter.empty()) {
    fail_option(Status::unsupported, "lora",
                "{} is a GGUF file; adapters are added to Hugging Face folders", file->path());
  }
  Config config = read_config(*file);
  ModelInfo info = base_info(*file, config, fs::file_size(file->path()));
  Weights weights = load_gguf(file, config, params.map_weights, params.progress);
  std::string chat_template = file->has("tokenizer.chat_template")
                                  ? file->get_string("tokenizer.chat_template")
                                  : std::string();
  std::string identity =
      fmt::format("qwen3 v1 {}-cache\n{} {} {}\n", kv_type_name(params.kv_cache),
                  fs::path(file->path()).filename().string(), fs::file_size(file->path()),
                  fs::last_write_time(file->path()).time_since_epoch().count());
  return std::make_unique<Qwen3>(std::move(info), std::move(config), std::move(weights),
                                 gguf_tokenizer(*file), std::move(chat_template),
                                 std::move(identity), params);
}

}  // namespace speech::qwen3
