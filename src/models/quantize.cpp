#include "models/quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/blaming.h"
#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "formats/gguf.h"
#include "models/calibrate.h"
#include "quant/codec.h"
#include "quant/input_metric.h"

namespace speech {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileType = "general.file_type";
constexpr std::string_view kQuantizationVersion = "general.quantization_version";
constexpr std::string_view kRequires = "speech.requires";
constexpr uint32_t kGgmlQuantizationVersion = 2;  // GGML_QNT_VERSION of these block layouts

bool is_k_type(WeightType type) {
  return type == WeightType::q6_k || type == WeightType::q5_k || type == WeightType::q4_k;
}

// "0.8.0" as numbers that compare; what is no number counts as 0.
std::array<int, 3> release(std::string_view text) {
  std::array<int, 3> parts{};
  size_t part = 0;
  for (char c : text) {
    if (c == '.') {
      if (++part == 3) break;
    } else if (c >= '0' && c <= '9' && parts[part] < 100000) {
      parts[part] = parts[part] * 10 + (c - '0');
    }
  }
  return parts;
}

// Importance weights by name of the model's tensor.
class Importance {
 public:
  Importance(const std::string& path, const GgufFile& model) {
    if (path.empty()) return;
    auto file = blaming("importance", [&] { return open_tensor_file(path); });
    for (const auto& tensor : model.tensors()) {
      const TensorEntry* entry = file->find(tensor.name);
      if (!entry) entry = file->find(tensor.name + ".in_sum2");
      if (!entry) continue;
      auto values = to_f32(*entry);
      int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
      if (static_cast<int64_t>(values.size()) != cols) {
        fail_option(Status::model_file, "importance",
                    "{}: tensor {} is {}, but rows of {} have {} values", path, entry->name,
                    entry->shape_text(), tensor.name, cols);
      }
      for (float v : values) {
        if (!(v >= 0 && std::isfinite(v))) {
          fail_option(Status::model_file, "importance",
                      "{}: tensor {} holds {}, which is no weight", path, entry->name, v);
        }
      }
      weights_.emplace(tensor.name, std::move(values));
    }
    if (weights_.empty()) {
      fail_option(Status::model_file, "importance", "{} names none of the tensors of {}", path,
                  model.path());
    }
  }

  const float* of(const std::string& tensor) const {
    auto it = weights_.find(tensor);
    return it == weights_.end() ? nullptr : it->second.data();
  }

 private:
  std::map<std::string, std::vector<float>> weights_;
};

// Everything that is decided before the first weight is read.
struct Job {
  std::shared_ptr<const GgufFile> file;
  const Family* family = nullptr;
  std::vector<WeightType> types;  // of file->tensors()
  GgufWriter writer;
  FilePlan plan;
};

const Family& family_of(std::span<const Family> known, const GgufFile& file) {
  std::string architecture = file.get_string("general.architecture");
  std::string names;
  for (const Family& family : known) {
    if (family.architecture == architecture) return family;
    names += (names.empty() ? "" : ", ") + std::string(family.architecture);
  }
  fail(Status::model_file, "{}: key general.architecture is {}, but the known ones are {}",
       file.path(), architecture, names);
}

void check_is_f32(const GgufFile& file) {
  uint32_t file_type = file.get_u32(kFileType);
  if (file_type != 0) {
    fail_option(Status::invalid_argument, "model_path",
                "{}: key {} is {}; only the F32 file of a model (0) can be quantized", file.path(),
                kFileType, file_type);
  }
  for (const auto& tensor : file.tensors()) {
    if (tensor.type == DType::f32) continue;
    fail_option(Status::invalid_argument, "model_path",
                "{}: tensor {} is {}; only a file of F32 tensors can be quantized", file.path(),
                tensor.name, tensor.type_name);
  }
}

// One part of a file name out of the metadata, which may be anybody's.
std::string name_part(const GgufFile& file, std::string_view key) {
  std::string text = file.get_string(key);
  bool plain = !text.empty() && text[0] != '.' && text.size() < 128 &&
               std::none_of(text.begin(), text.end(), [](unsigned char c) {
                 return c < 32 || c == '/' || c == '\\' || c == 127;
               });
  if (!plain) {
    fail(Status::model_file, "{}: key {} cannot be part of a file name; name the output file",
         file.path(), key);
  }
  return text;
}

std::string file_name(const GgufFile& file, std::string_view type_label) {
  std::string name = name_part(file, "general.basename");
  name += "-" + name_part(file, "general.size_label");
  for (std::string_view key : {"general.finetune", "general.version"}) {
    if (file.has(key)) name += "-" + name_part(file, key);
  }
  return name + "-" + std::string(type_label) + ".gguf";
}

void check_calibration(Task task, const QuantizeOptions& options) {
  if (facts(options.type).block == 1) {
    fail_option(Status::invalid_argument, "calibrate",
                "{} rounds every value by itself: calibration would change nothing",
                facts(options.type).label);
  }
  if (!options.importance_path.empty()) {
    fail_option(Status::invalid_argument, "calibrate",
                "importance weights and calibration exclude each other");
  }
  Calibration::check(task, options.calibration);
}

Job prepare(std::span<const Family> known, const std::string& model_path,
            const std::string& out_path, const QuantizeOptions& options) {
  Job job;
  blaming("model_path", [&] {
    job.file = GgufFile::open(model_path);
    job.family = &family_of(known, *job.file);
  });
  const GgufFile& file = *job.file;
  if (!job.family->storage) {
    fail_option(Status::invalid_argument, "model_path",
                "{}: models of architecture {} exist in F32 alone", model_path,
                job.family->architecture);
  }
  check_is_f32(file);
  ModelInfo info;
  if (job.family->read_info) info = job.family->read_info(file);  // the layout is what it should be
  if (!options.calibration.empty()) check_calibration(info.task, options);

  std::map<WeightType, uint64_t> bytes_of_type;
  bool blocks = false;  // any block type in the file
  auto needed = release("0");
  std::string_view needed_text;
  auto need = [&](std::string_view first) {
    if (release(first) > needed) needed = release(first), needed_text = first;
  };
  for (const auto& tensor : file.tensors()) {
    int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    WeightType type = stored_type(job.family->storage(tensor.name), options.type, cols);
    job.types.push_back(type);
    bytes_of_type[type] +=
        static_cast<uint64_t>(row_bytes(type, cols) * (cols ? tensor.elements() / cols : 0));
    blocks |= facts(type).block > 1;
    if (is_k_type(type)) need("0.8.0");
    if (type == WeightType::q8_0) need(job.family->requires_for_q8_0);
  }
  WeightType most = options.type;
  for (auto [type, bytes] : bytes_of_type) {
    if (bytes > bytes_of_type[most]) most = type;
  }

  for (const auto& pair : file.metadata()) {
    if (pair.key == kFileType) {
      job.writer.add_u32(kFileType, static_cast<uint32_t>(facts(most).gguf_file_type));
      if (blocks && !file.has(kQuantizationVersion)) {
        job.writer.add_u32(kQuantizationVersion, kGgmlQuantizationVersion);
      }
    } else if (pair.key == kQuantizationVersion) {
      if (blocks) job.writer.add_u32(kQuantizationVersion, kGgmlQuantizationVersion);
    } else if (pair.key == kRequires && needed > release(file.get_string(kRequires))) {
      job.writer.add_string(kRequires, needed_text);
    } else {
      job.writer.add_pair(pair);
    }
  }
  for (size_t i = 0; i < job.types.size(); ++i) {
    const auto& tensor = file.tensors()[i];
    job.writer.add_tensor(tensor.name, tensor.shape,
                          *ggml_type(static_cast<uint32_t>(facts(job.types[i]).ggml_type)));
  }

  job.plan.architecture = job.family->architecture;
  job.plan.weight_type = facts(most).label;
  std::error_code ignored;
  bool folder = fs::is_directory(out_path, ignored);
  job.plan.path =
      folder ? (fs::path(out_path) / file_name(file, job.plan.weight_type)).string() : out_path;
  check_out_path(model_path, job.plan.path);
  describe(job.writer, job.plan);
  return job;
}

// What the matrices of a file are multiplied with, a part of them at a time: their statistics
// may be many times what a tensor takes.
class Metrics {
 public:
  Metrics(const Job& job, const QuantizeOptions& options, ThreadPool& pool)
      : job_(job), pool_(pool) {
    if (!options.calibration.empty()) {
      calibration_.emplace(*job.family, job.file, options.calibration, options.threads);
    }
  }

  // Of tensor `index`, which is asked for in ascending order; nothing for one that has none.
  std::optional<InputMetric> of(size_t index, const Control& control) {
    if (!calibration_ || !calibrated(index)) return std::nullopt;
    if (index >= end_) collect(index, control);
    auto node = statistics_.extract(job_.file->tensors()[index].name);
    if (node.empty()) return std::nullopt;
    return std::optional<InputMetric>(std::in_place, node.mapped().gram(), cols(index), pool_);
  }

 private:
  static constexpr int64_t kBytes = int64_t{1} << 30;  // of statistics at a time

  bool calibrated(size_t index) const { return facts(job_.types[index]).block > 1; }
  int64_t cols(size_t index) const { return job_.file->tensors()[index].shape.back(); }

  void collect(size_t index, const Control& control) {
    std::set<std::string> names;
    int64_t bytes = 0;
    for (end_ = index; end_ < job_.types.size(); ++end_) {
      if (!calibrated(end_)) continue;
      bytes += cols(end_) * cols(end_) * static_cast<int64_t>(sizeof(float));
      if (bytes > kBytes && end_ > index) break;
      names.insert(job_.file->tensors()[end_].name);
    }
    statistics_ = calibration_->collect(names, control);
  }

  const Job& job_;
  ThreadPool& pool_;
  std::optional<Calibration> calibration_;
  std::map<std::string, InputStatistics> statistics_;
  size_t end_ = 0;  // of the tensors they are of
};

// Reads the weights of one tensor after another, checks and encodes them on all threads, a few MB
// at a time. Blocks never cross rows, so that a tensor is cut without regard to them.
class Encoder {
 public:
  Encoder(const GgufFile& file, ThreadPool& pool)
      : file_(file), pool_(pool), scratch_(static_cast<size_t>(pool_.threads())) {}

  // With a metric rows are encoded whole, else `importance` weighs their columns (null: alike).
  void encode(const TensorEntry& tensor, WeightType type, const float* importance,
              const InputMetric* metric, GgufWriter& writer) {
    const int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    const int64_t size = tensor.elements();
    const int64_t tile_size = metric ? InputMetric::kRows * cols : kTile;
    const int64_t chunk = std::max<int64_t>(1, kChunk / tile_size) * tile_size;
    for (auto& values : scratch_) values.resize(static_cast<size_t>(tile_size));
    for (int64_t begin = 0; begin < size; begin += chunk) {
      const int64_t count = std::min(chunk, size - begin);
      out_.resize(static_cast<size_t>(row_bytes(type, count)));
      std::atomic<bool> refused = false;
      pool_.run((count + tile_size - 1) / tile_size, [&](int64_t tile, int thread) {
        float* values = scratch_[static_cast<size_t>(thread)].data();
        const int64_t first = begin + tile * tile_size;
        const int64_t last = std::min(first + tile_size, begin + count);
        std::memcpy(values, tensor.bytes.data() + first * 4, static_cast<size_t>(last - first) * 4);
        if (first_refused(values, last - first, type) >= 0) refused = true;
        std::byte* out = out_.data() + row_bytes(type, first - begin);
        if (metric) return metric->encode_rows(type, values, out, (last - first) / cols);
        for (int64_t at = first; at < last;) {
          const int64_t piece = std::min(last - at, cols - at % cols);
          encode_row(type, values + (at - first), out_.data() + row_bytes(type, at - begin), piece,
                     importance ? importance + at % cols : nullptr);
          at += piece;
        }
      });
      if (refused) refuse(tensor, begin, count, type);
      writer.write(out_);
      TensorEntry done = tensor;
      done.bytes =
          tensor.bytes.subspan(static_cast<size_t>(begin) * 4, static_cast<size_t>(count) * 4);
      file_.release(done);
    }
  }

 private:
  static constexpr int64_t kTile = 1 << 14, kChunk = 1 << 20;

  // Index of the first value that cannot be stored, or -1.
  static int64_t first_refused(const float* values, int64_t count, WeightType type) {
    const float most = largest_value(type);
    for (int64_t i = 0; i < count; ++i) {
      if (!(std::fabs(values[i]) <= most)) return i;
    }
    return -1;
  }

  [[noreturn]] void refuse(const TensorEntry& tensor, int64_t begin, int64_t count,
                           WeightType type) const {
    std::vector<float> values(static_cast<size_t>(count));
    std::memcpy(values.data(), tensor.bytes.data() + begin * 4, values.size() * 4);
    int64_t at = first_refused(values.data(), count, type);
    float value = values[static_cast<size_t>(at)];
    fail(Status::model_file, "{}: tensor {} holds {} at value {} of {}, {}", file_.path(),
         tensor.name, value, begin + at, tensor.shape_text(),
         std::isfinite(value) ? fmt::format("too large for {}", facts(type).label)
                              : std::string("which is no weight"));
  }

  const GgufFile& file_;
  ThreadPool& pool_;
  std::vector<std::vector<float>> scratch_;
  std::vector<std::byte> out_;
};

}  // namespace

WeightType quantize_type(std::string_view name) {
  auto type = weight_type_from_name(name);
  if (!type || *type == WeightType::f32 || *type == WeightType::bf16) {
    fail_option(Status::out_of_range, "type",
                "no model file is written as {}; the types are f16, q8_0, q6_k, q5_k, q4_k", name);
  }
  return *type;
}

WeightType stored_type(StorageClass storage, WeightType target, int64_t cols) {
  if (storage == StorageClass::full) return WeightType::f32;
  if (storage == StorageClass::half) return WeightType::f16;
  if (cols % facts(target).block == 0) return target;
  return cols % facts(WeightType::q8_0).block == 0 ? WeightType::q8_0 : WeightType::f16;
}

FilePlan plan_quantize(std::span<const Family> known, const std::string& model_path,
                       const std::string& out_path, const QuantizeOptions& options) {
  Job job = prepare(known, model_path, out_path, options);
  Importance(options.importance_path, *job.file);
  return std::move(job.plan);
}

FilePlan quantize(std::span<const Family> known, const std::string& model_path,
                  const std::string& out_path, const QuantizeOptions& options,
                  const Control& control) {
  Job job = prepare(known, model_path, out_path, options);
  Importance importance(options.importance_path, *job.file);
  OutputFile out = blaming("out_path", [&] { return OutputFile(job.plan.path); });
  job.writer.set_progress([&](double done) {
    control.check();
    control.report(done);
  });
  job.writer.begin(out);
  ThreadPool pool(options.threads > 0 ? options.threads : default_threads());
  Metrics metrics(job, options, pool);
  Encoder encoder(*job.file, pool);
  for (size_t i = 0; i < job.types.size(); ++i) {
    const auto& tensor = job.file->tensors()[i];
    const auto metric = metrics.of(i, control);
    encoder.encode(tensor, job.types[i], importance.of(tensor.name), metric ? &*metric : nullptr,
                   job.writer);
  }
  job.writer.finish();
  out.commit();
  return std::move(job.plan);
}

}  // namespace speech
