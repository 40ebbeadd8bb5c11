// What a model is to everything above it: information, options, and one task.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "compute/kv_cache.h"
#include "compute/trace.h"

namespace speech {

// speech_task of the C API.
enum class Task : int { synthesis = 0, recognition = 1, detection = 2, language = 3 };
const char* task_name(Task task);

// ---- options: one vocabulary for all models; numbers are never reused (speech_option) ----

enum class OptionType : int { string = 0, integer = 1, number = 2, boolean = 3 };
using OptionValue = std::variant<std::string, int64_t, double, bool>;

struct OptionWord {
  int id;
  const char* name;  // "min_speech_duration_ms"
  OptionType type;
  std::optional<OptionValue> neutral;  // a value that every model accepts, if there is one
};
std::span<const OptionWord> option_vocabulary();
const OptionWord* find_option(std::string_view name);  // null if there is none
const OptionWord* find_option(int id);

// Ids that families refer to; the whole list is in options.cpp.
namespace option {
inline constexpr int language = 1, timestamps = 8, prompt = 9, decoding = 10, threshold = 39,
                     min_speech_duration_ms = 40, min_silence_duration_ms = 41, speech_pad_ms = 42,
                     max_speech_duration_s = 43;
}

// How a model takes an option.
struct OptionSpec {
  int id = 0;
  bool required = false;
  bool steers = true;  // false: only checked, changes nothing
  std::optional<OptionValue> default_value;
  std::optional<double> minimum, maximum;
  bool minimum_exclusive = false;
  std::vector<std::string> choices;
};

// Values given for a request, checked against the model's OptionSpecs when set.
class Options {
 public:
  void set(int id, OptionValue value) { values_[id] = std::move(value); }
  bool has(int id) const { return values_.count(id) != 0; }
  // The value given, or `fallback`.
  template <typename T>
  T get(int id, T fallback) const {
    auto it = values_.find(id);
    return it == values_.end() ? fallback : std::get<T>(it->second);
  }
  const std::map<int, OptionValue>& values() const { return values_; }

 private:
  std::map<int, OptionValue> values_;
};

// ---- information (the object of `speech info --json`) ----

struct ModelInfo {
  std::string name, organization, basename, size_label, finetune, version, license;
  std::string source_url, source_repository, source_revision;
  std::string weight_type;  // "Q8_0", "int4-g64"
  std::string architecture;
  int layout = 0;  // 0: the architecture does not number its layouts
  Task task = Task::detection;
  int sample_rate = 0;
  std::vector<std::string> languages;
  std::vector<OptionSpec> options;
  uint64_t file_bytes = 0, weight_bytes = 0;

  const OptionSpec* find_option(int id) const;  // null if the model does not take it
};

// Checks a value for a model: type, range, choices; the one place where this is done. Returns the
// value to store (a language as the model's own tag), or nothing when the model does not take the
// option and the value is the neutral one. Error(invalid_argument | unsupported | out_of_range)
// that names the option.
std::optional<OptionValue> check_option(const ModelInfo& info, int id, OptionValue value);
// Error(invalid_argument) for a required option that is not there.
void check_required(const ModelInfo& info, const Options& options);

// The object of `speech info --json` (product 5.7) as text. `device` and `threads` are those of a
// loaded model; an empty device leaves both out.
std::string model_info_json(const ModelInfo& info, const std::string& device = {}, int threads = 0);

// ---- running ----

struct LoadParams {
  std::string device = "auto";  // "auto" or "cpu"
  int threads = 0;              // 0: default_threads()
  // Called with the backend that the model has made, gives the one it uses: for profiles.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_backend;
  Precision precision = Precision::fast;
  // Language models: affine quantization while loading; 0 bits: weights stay as stored.
  int quantize_bits = 0, quantize_group = 64;
  // Language models: the folder of a LoRA or DoRA adapter to add to a dense folder's weights.
  std::string adapter;
  KvType kv_cache = KvType::f32;  // keys and values of language models
  // Language models: matrices are multiplied where they lie in the mapped file; false: in a copy in
  // memory, whose huge pages are read faster.
  bool map_weights = true;
  std::function<void(double done)> progress;  // 0..1 while loading, where that takes long
};

// Progress and cancelling of one request. check() throws Error(cancelled).
struct Control {
  std::function<bool(double done)> progress;  // 0..1; true stops the request
  const std::atomic<bool>* cancel = nullptr;
  Trace* trace = nullptr;
  // Called when a stage of the work begins ("features", "encoder", "decoding"): for profiles.
  std::function<void(const char* name)> stage;

  void check() const;
  void begin_stage(const char* name) const {
    if (stage) stage(name);
  }
  void report(double done) const;  // calls progress; throws Error(cancelled) when told to stop
};

struct AudioView {
  std::span<const float> samples;  // mono, nominally -1..1
  int rate = 0;                    // Hz
};

class Model {
 public:
  virtual ~Model() = default;
  const ModelInfo& info() const { return info_; }
  // Device and threads in use: "cpu", 2.
  virtual std::string device() const = 0;
  virtual int threads() const = 0;

 protected:
  ModelInfo info_;
};

struct Region {
  double start = 0, end = 0;  // seconds
};

// Detection of audio that comes in pieces; see speech_detection_start.
class DetectionStream {
 public:
  virtual ~DetectionStream() = default;
  virtual void push(std::span<const float> samples) = 0;
  virtual void end() = 0;
  virtual const std::vector<Region>& regions() const = 0;  // given so far; never changes or shrinks
  // The padded start of a region that has begun and is not given yet; `kept`: it is certain to be.
  virtual std::optional<double> speaking(bool* kept) const = 0;
};

class Detector : public Model {
 public:
  // Error(invalid_argument, "audio") for non-finite samples.
  virtual std::vector<Region> detect(AudioView audio, const Options& options,
                                     const Control& control) = 0;
  virtual std::unique_ptr<DetectionStream> stream(int rate, const Options& options) = 0;
};

enum class Stop : int { complete = 0, max_seconds = 1, model_limit = 2, cancelled = 3 };

struct Token {
  int32_t id = 0;
  std::string text;
  double start = 0, end = 0;  // seconds
  double log_probability = 0;
};
struct Segment {
  double start = 0, end = 0;
  std::string text;
};
struct Transcript {
  std::string text;
  Stop stop = Stop::complete;
  std::vector<Segment> segments, words;  // with the timestamps option
  std::vector<Token> tokens;
  std::vector<std::string> languages;
};

class Recognizer : public Model {
 public:
  // One transcript per audio, the same as one by one. Error names "audio" where that is at fault.
  virtual std::vector<Transcript> transcribe(std::span<const AudioView> audio,
                                             const Options& options, const Control& control) = 0;
};

}  // namespace speech
