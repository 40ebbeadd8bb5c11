// A subcommand of `speech`, and what subcommands share.
//
// Models are used through speech.h alone. A subcommand is a class in a file of its own and one line
// in the table of main.cpp.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle.h"
#include "speech.h"

namespace speech::cli {

class Command {
 public:
  virtual ~Command() = default;
  virtual void add_flags(CLI::App& app) = 0;
  virtual int run() = 0;  // exit code
};

// Exit codes.
inline constexpr int exit_done = 0, exit_failure = 1, exit_usage = 2, exit_model_limit = 3,
                     exit_regression = 4;

// The command line cannot run: exit 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A failure that is printed as "speech: <code> (<option>): <message>": exit 1.
struct Failure : std::runtime_error {
  Failure(speech_status code, std::string at_fault, const std::string& message)
      : std::runtime_error(message), status(code), option(std::move(at_fault)) {}
  speech_status status;
  std::string option;
};

// Throws the error of a C API call that failed; `subject` ("meeting.wav") goes before its message.
void check(speech_status status, std::string_view subject = {});

// Runs `work`; a failure in it that names no option, or the option `from`, names `option`.
template <typename Work>
decltype(auto) naming(const char* option, Work&& work, std::string_view from = {}) {
  try {
    return work();
  } catch (const Failure& failure) {
    if (!failure.option.empty() && failure.option != from) throw;
    throw Failure(failure.status, option, failure.what());
  }
}

// Several inputs, each with a result or an error of its own: an error is printed when it happens,
// the others go on, and the exit code is that of a failure at the end.
class Failures {
 public:
  // `inputs`: how many there are. The failure of an only one is thrown on.
  explicit Failures(size_t inputs) : inputs_(inputs) {}

  // Runs `work` and keeps its failure. A failure that every input would share is thrown on.
  template <typename Work>
  void attempt(Work&& work) {
    try {
      work();
    } catch (const Failure& failure) {
      if (inputs_ == 1 || shared(failure)) throw;
      add(failure);
    }
  }
  // Throws a Failure that counts them, if there were any.
  void finish() const;

  static bool shared(const Failure& failure);

 private:
  void add(const Failure& failure);

  size_t inputs_, count_ = 0;
  std::unique_ptr<Failure> first_;
};

// "speech: <code> (<option>): <message>" on stderr; without an option the parentheses are left out.
void print_error(const char* code, const std::string& option, const std::string& message);

// ---- output ----

// Opens /dev/null where a standard descriptor is closed, so that no file of ours takes its number
// and gets what is meant for it. A closed standard output cannot be written.
void fill_standard_descriptors();
// The program's own standard output; descriptor 1 goes to stderr, so that nothing a library prints
// can mix with it.
void take_stdout();
// Makes a folder and those above it; Failure(io, option) if it can't be made.
void make_folder(const std::string& path, const char* option);
// Failure(invalid_argument, option) if `out` is one of the files that are read.
void check_not_input(const std::string& out, const std::vector<std::string>& inputs,
                     const char* option);
void print(std::string_view text);  // Failure(io) when it cannot be written
void print_json(const std::string& line);
bool stdout_is_terminal();
void flush_output();

// Control characters but tabs and newlines as \x1b: text of files must not steer a terminal.
std::string printable(std::string_view text);

// One line on stderr.
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  std::string line = printable(fmt::format(format, std::forward<Args>(args)...));
  std::fprintf(stderr, "%s\n", line.c_str());
}

// A progress line on stderr, rewritten in place, where stderr is a terminal; else nothing.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();  // clears the line
  void update(double done);
  static int callback(double done, void* self);  // speech_progress_callback

 private:
  std::string label_;
  bool active_;
  int shown_ = -1;
};

// ---- handles of the C API ----

using ModelHandle = Handle<speech_model, speech_model_free>;
using RequestHandle = Handle<speech_request, speech_request_free>;
using InfoHandle = Handle<speech_model_info, speech_model_info_free>;
using FileInfoHandle = Handle<speech_file_info, speech_file_info_free>;
using DetectionHandle = Handle<speech_detection, speech_detection_free>;
using AudioHandle = Handle<speech_audio, speech_audio_free>;
using TraceHandle = Handle<speech_trace, speech_trace_free>;
using LiveHandle = Handle<speech_live, speech_live_free>;
using TextHandle = Handle<speech_text, speech_text_free>;
using CompletionsHandle = Handle<speech_completions, speech_completions_free>;
using LoadParamsHandle = Handle<speech_load_params, speech_load_params_free>;
using LiveEventHandle = Handle<speech_live_event, speech_live_event_free>;

RequestHandle new_request(speech_model* model);
AudioHandle open_audio(const std::string& path);

struct AudioData {
  std::vector<float> samples;  // mono
  int rate = 0;                // Hz
  double seconds() const { return static_cast<double>(samples.size()) / rate; }
};
AudioData read_audio_file(const std::string& path);

// ---- arguments ----

// A flag's check: a number of at least `lowest`.
CLI::Validator at_least(int lowest);

// Every option of the library's vocabulary as a flag in kebab-case. Values are checked by the
// model when they are set.
class RequestFlags {
 public:
  // All but those named in `except` (a subcommand's own flags).
  void add(CLI::App& app, std::initializer_list<std::string_view> except = {});
  bool given(speech_option option) const;
  // The first flag that was given ("--temperature"); empty: none.
  std::string first_given() const;
  bool flag(speech_option option) const;  // the value of a boolean; false if not given
  // Sets what was given; `only`, when set, chooses.
  void apply(speech_request* request, const std::function<bool(speech_option)>& only = {}) const;

 private:
  struct Value {
    speech_option option;
    speech_value_type type;
    CLI::Option* flag = nullptr;
    std::string text;
    int64_t integer = 0;
    double number = 0;
    bool boolean = false;
  };
  std::vector<std::unique_ptr<Value>> values_;
};

// How a model is loaded.
struct LoadSettings {
  std::string device = "auto";
  int threads = 0;        // 0: the library's choice
  int quantize_bits = 0;  // of language models; 0: as stored
  int quantize_group = 64;
  std::string lora;  // the folder of an adapter; empty: none
  std::string kv_cache = "f32";
  bool map_weights = true;
  bool exact = false;
};

// --device and --threads.
class DeviceFlags {
 public:
  void add(CLI::App& app);
  // --quantize, --quantize-group and --lora, for language models.
  void add_weights(CLI::App& app);
  // --quantize-group and --lora alone, where a subcommand has a --quantize of its own.
  void add_group_and_lora(CLI::App& app);
  // --kv-cache and --no-mmap, for those that generate.
  void add_memory(CLI::App& app);
  LoadSettings settings() const;
  // Loads the model that an argument names, and says so on stderr.
  ModelHandle load(const std::string& argument, bool exact = false) const;

 private:
  std::string device_ = "auto", quantize_, lora_, kv_cache_ = "f32";
  int threads_ = 0, group_ = 64;
  bool no_mmap_ = false;
};

// The path a MODEL argument stands for (a name of the catalog or a path); UsageError for an unknown
// name, Failure where the file is not on this machine.
std::string model_path(const std::string& argument);
LoadParamsHandle load_params(const LoadSettings& settings);
ModelHandle load_model(const std::string& argument, const LoadSettings& settings);

// Bits of "int4", "4bit" or "4"; UsageError.
int quantize_bits(const std::string& text);

// `text` as the C API takes it: UsageError if it holds a NUL byte, where the API would see it end.
// `what` says what it is ("the prompt").
const char* c_text(const std::string& text, std::string_view what);

// Splits positional arguments into MODEL and at least one input, or throws the UsageError that
// explains what is missing; `task` chooses the models that are proposed.
struct ModelAndInputs {
  std::string model;
  std::vector<std::string> inputs;
};
ModelAndInputs split_arguments(const std::vector<std::string>& arguments, const char* command,
                               speech_task task, const char* inputs, bool inputs_needed = true);

// "meeting" of "a/b/meeting.wav".
std::string stem(const std::string& path);
// Size in MB or GB (decimal), as in "1.21 GB".
std::string size_text(uint64_t bytes);

double now();  // seconds, monotonic

// The subcommands; each is defined in its file.
std::unique_ptr<Command> make_asr();
std::unique_ptr<Command> make_bench();
std::unique_ptr<Command> make_chat();
std::unique_ptr<Command> make_convert();
std::unique_ptr<Command> make_devices();
std::unique_ptr<Command> make_eval();
std::unique_ptr<Command> make_generate();
std::unique_ptr<Command> make_info();
std::unique_ptr<Command> make_lora();
std::unique_ptr<Command> make_models();
std::unique_ptr<Command> make_quantize();
std::unique_ptr<Command> make_serve();
std::unique_ptr<Command> make_tokenize();
std::unique_ptr<Command> make_trace();
std::unique_ptr<Command> make_vad();

}  // namespace speech::cli
