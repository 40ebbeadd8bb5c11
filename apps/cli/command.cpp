#include "command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "catalog/catalog.h"

namespace speech::cli {
namespace {

std::FILE* output = stdout;

std::string kebab(std::string name) {
  for (char& c : name) {
    if (c == '_') c = '-';
  }
  return name;
}

[[noreturn]] void fail_output() {
  throw Failure(SPEECH_IO, "stdout", fmt::format("cannot write the output: {}", strerror(errno)));
}

// A validator of CLI11, which would take the nearest number that fits.
std::string fits_int64(const std::string& text) {
  errno = 0;
  std::strtoll(text.c_str(), nullptr, 10);
  return errno == ERANGE ? text + " is out of range" : "";
}

}  // namespace

void check(speech_status status, std::string_view subject) {
  if (status == SPEECH_OK) return;
  const char* option = speech_last_error_option();
  std::string message = speech_last_error();
  const bool of_subject = !option || std::string_view(option) != "model_path";
  if (!subject.empty() && of_subject) message = std::string(subject) + ": " + message;
  throw Failure(status, option ? option : "", message);
}

bool Failures::shared(const Failure& failure) {
  // The model, the device or the output is at fault.
  return failure.status == SPEECH_MODEL_FILE || failure.status == SPEECH_DEVICE ||
         (failure.status == SPEECH_IO && failure.option != "audio");
}

void Failures::add(const Failure& failure) {
  print_error(speech_status_name(failure.status), failure.option, failure.what());
  if (count_++ == 0) first_ = std::make_unique<Failure>(failure);
}

void Failures::finish() const {
  if (count_ == 0) return;
  throw Failure(
      first_->status, first_->option,
      fmt::format("{} of {} recordings failed, the first: {}", count_, inputs_, first_->what()));
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

void print_error(const char* code, const std::string& option, const std::string& message) {
  const std::string at = option.empty() ? "" : " (" + option + ")";
  note("speech: {}{}: {}", code, at, message);
}

void fill_standard_descriptors() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is `fd` itself.
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

void take_stdout() {
  std::fflush(stdout);
  int copy = ::dup(STDOUT_FILENO);
  if (copy < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return;
  std::FILE* file = ::fdopen(copy, "w");
  // It was closed when the program began (fill_standard_descriptors): writing to it has to fail.
  if (!file) file = ::fdopen(copy, "r");
  if (file) output = file;
}

void make_folder(const std::string& path, const char* option) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw Failure(SPEECH_IO, option,
                  fmt::format("cannot make the folder {}: {}", path, error.message()));
  }
}

void check_not_input(const std::string& out, const std::vector<std::string>& inputs,
                     const char* option) {
  std::error_code none;
  for (const std::string& input : inputs) {
    if (std::filesystem::equivalent(out, input, none)) {
      throw Failure(SPEECH_INVALID_ARGUMENT, option, fmt::format("{} is an input itself", out));
    }
  }
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), output) != text.size()) fail_output();
}

void print_json(const std::string& line) {
  print(line + "\n");
  flush_output();
}

bool stdout_is_terminal() {
  return ::isatty(fileno(output)) != 0;
}

void flush_output() {
  if (std::fflush(output) != 0) fail_output();
}

Progress::Progress(std::string label) : label_(std::move(label)), active_(::isatty(2) != 0) {}

Progress::~Progress() {
  if (active_ && shown_ >= 0) std::fprintf(stderr, "\r\033[K");
}

void Progress::update(double done) {
  int percent = static_cast<int>(100 * std::clamp(done, 0.0, 1.0));
  if (!active_ || percent == shown_) return;
  shown_ = percent;
  constexpr int width = 30;
  int full = percent * width / 100;
  std::fprintf(stderr, "\r\033[K%s [%s%s] %3d%%", label_.c_str(),
               std::string(static_cast<size_t>(full), '#').c_str(),
               std::string(static_cast<size_t>(width - full), ' ').c_str(), percent);
  std::fflush(stderr);
}

int Progress::callback(double done, void* self) {
  static_cast<Progress*>(self)->update(done);
  return 0;
}

RequestHandle new_request(speech_model* model) {
  speech_request* request = nullptr;
  check(speech_request_new(model, &request));
  return RequestHandle(request);
}

AudioHandle open_audio(const std::string& path) {
  speech_audio* audio = nullptr;
  check(speech_audio_open(path.c_str(), &audio));
  return AudioHandle(audio);
}

AudioData read_audio_file(const std::string& path) {
  AudioHandle audio = open_audio(path);
  AudioData data;
  data.rate = speech_audio_rate(audio.get());
  constexpr size_t piece = 1 << 16;
  for (size_t size = 0;;) {
    data.samples.resize(size + piece);
    size_t read = 0;
    check(speech_audio_read(audio.get(), data.samples.data() + size, piece, &read), path);
    size += read;
    if (read == 0) {
      data.samples.resize(size);
      return data;
    }
  }
}

CLI::Validator at_least(int lowest) {
  return CLI::Validator(
      [lowest](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= lowest) return std::string();
        return fmt::format("expected a number of at least {}, not {}", lowest, text);
      },
      "");
}

void RequestFlags::add(CLI::App& app, std::initializer_list<std::string_view> except) {
  for (speech_option option = 0; option < speech_option_count(); ++option) {
    if (std::find(except.begin(), except.end(), speech_option_name(option)) != except.end())
      continue;
    auto value = std::make_unique<Value>();
    value->option = option;
    check(speech_option_type(option, &value->type));
    std::string flag = "--" + kebab(speech_option_name(option));
    switch (value->type) {
      case SPEECH_TYPE_STRING:
        value->flag = app.add_option(flag, value->text);
        break;
      case SPEECH_TYPE_INT:
        value->flag = app.add_option(flag, value->integer)->check(fits_int64);
        break;
      case SPEECH_TYPE_FLOAT:
        value->flag = app.add_option(flag, value->number);
        break;
      case SPEECH_TYPE_BOOL:
        value->flag = app.add_flag(flag, value->boolean);
        break;
    }
    value->flag->group("Request options (a model refuses those it does not take; see speech info)");
    values_.push_back(std::move(value));
  }
}

bool RequestFlags::given(speech_option option) const {
  for (const auto& value : values_) {
    if (value->option == option) return value->flag->count() > 0;
  }
  return false;
}

std::string RequestFlags::first_given() const {
  for (const auto& value : values_) {
    if (value->flag->count() > 0) return value->flag->get_name();
  }
  return {};
}

bool RequestFlags::flag(speech_option option) const {
  for (const auto& value : values_) {
    if (value->option == option) return value->boolean;
  }
  return false;
}

void RequestFlags::apply(speech_request* request,
                         const std::function<bool(speech_option)>& only) const {
  for (const auto& value : values_) {
    if (value->flag->count() == 0 || (only && !only(value->option))) continue;
    switch (value->type) {
      case SPEECH_TYPE_STRING:
        check(speech_request_set_string(request, value->option, value->text.c_str()));
        break;
      case SPEECH_TYPE_INT:
        check(speech_request_set_int(request, value->option, value->integer));
        break;
      case SPEECH_TYPE_FLOAT:
        check(speech_request_set_float(request, value->option, value->number));
        break;
      case SPEECH_TYPE_BOOL:
        check(speech_request_set_bool(request, value->option, value->boolean));
        break;
    }
  }
}

void DeviceFlags::add(CLI::App& app) {
  app.add_option("--device", device_, "auto, cpu, gpu, or a name that speech devices lists")
      ->capture_default_str();
  app.add_option("--threads", threads_, "CPU threads (default: physical cores)")
      ->check(at_least(1));
}

void DeviceFlags::add_weights(CLI::App& app) {
  app.add_option("--quantize", quantize_,
                 "Quantize a dense folder while loading: int2, int3, int4, int5, int6 or int8");
  add_group_and_lora(app);
}

void DeviceFlags::add_group_and_lora(CLI::App& app) {
  app.add_option("--quantize-group", group_, "Columns that share a scale: 32, 64 or 128")
      ->capture_default_str();
  app.add_option("--lora", lora_, "Add the adapter in this folder (mlx-lm, PEFT) to a dense folder")
      ->type_name("ADAPTER");
}

LoadSettings DeviceFlags::settings() const {
  return {.device = device_,
          .threads = threads_,
          .quantize_bits = quantize_.empty() ? 0 : quantize_bits(quantize_),
          .quantize_group = group_,
          .lora = lora_,
          .kv_cache = kv_cache_,
          .map_weights = !no_mmap_};
}

void DeviceFlags::add_memory(CLI::App& app) {
  app.add_option("--kv-cache", kv_cache_, "Keys and values as f32, or as f16 in half the memory")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
  app.add_flag("--no-mmap", no_mmap_,
               "Copy a language model's weights into memory instead of mapping the file: decodes "
               "faster, starts later");
}

ModelHandle DeviceFlags::load(const std::string& argument, bool exact) const {
  LoadSettings with = settings();
  with.exact = exact;
  return load_model(argument, with);
}

int quantize_bits(const std::string& text) {
  std::string digits = text;
  if (digits.starts_with("int")) {
    digits.erase(0, 3);
  } else if (digits.ends_with("bit")) {
    digits.erase(digits.size() - 3);
  }
  if (digits.size() == 1 && std::string_view("234568").find(digits) != std::string_view::npos) {
    return digits[0] - '0';
  }
  throw UsageError(
      fmt::format("--quantize {}: expected int2, int3, int4, int5, int6 or int8", text));
}

const char* c_text(const std::string& text, std::string_view what) {
  size_t place = text.find('\0');
  if (place != std::string::npos) {
    throw UsageError(fmt::format("{} holds a NUL byte (byte {})", what, place));
  }
  return text.c_str();
}

std::string model_path(const std::string& argument) {
  try {
    return resolve_model(argument);
  } catch (const Error& error) {
    if (error.status() == Status::invalid_argument) throw UsageError(error.what());
    throw Failure(static_cast<speech_status>(error.status()), error.option(), error.what());
  }
}

LoadParamsHandle load_params(const LoadSettings& settings) {
  LoadParamsHandle params(speech_load_params_new());
  check(speech_load_params_set_device(params.get(), settings.device.c_str()));
  if (settings.threads > 0) check(speech_load_params_set_threads(params.get(), settings.threads));
  if (settings.exact) check(speech_load_params_set_exact(params.get(), 1));
  if (settings.quantize_bits > 0) {
    check(speech_load_params_set_quantization(params.get(), settings.quantize_bits,
                                              settings.quantize_group));
  }
  if (!settings.lora.empty()) {
    check(speech_load_params_set_lora(params.get(), settings.lora.c_str()));
  }
  check(speech_load_params_set_kv_cache(params.get(), settings.kv_cache.c_str()));
  check(speech_load_params_set_map_weights(params.get(), settings.map_weights ? 1 : 0));
  return params;
}

ModelHandle load_model(const std::string& argument, const LoadSettings& settings) {
  std::string path = model_path(argument);
  LoadParamsHandle params = load_params(settings);
  double start = now();
  speech_model* model = nullptr;
  check(speech_model_load(path.c_str(), params.get(), &model));
  ModelHandle handle(model);
  const speech_model_info* info = nullptr;
  check(speech_model_get_info(model, &info));
  int count = speech_model_info_threads(info);
  note("{} loaded in {:.3f} s on {}, {} thread{}", speech_model_info_name(info), now() - start,
       speech_model_info_device(info), count, count == 1 ? "" : "s");
  return handle;
}

ModelAndInputs split_arguments(const std::vector<std::string>& arguments, const char* command,
                               speech_task task, const char* inputs, bool inputs_needed) {
  bool model_given = !arguments.empty() && is_model(arguments[0]);
  if (model_given && (arguments.size() > 1 || !inputs_needed)) {
    return {arguments[0], {arguments.begin() + 1, arguments.end()}};
  }
  if (model_given) {
    throw UsageError(
        fmt::format("{} is missing: speech {} {} {}", inputs, command, arguments[0], inputs));
  }
  if (arguments.size() > 1) model_path(arguments[0]);  // an unknown name, with the names there are
  std::string text =
      "MODEL is missing: the path of a model file (.gguf) or a name. Models for this command:\n";
  const char* example = nullptr;
  bool example_here = false;
  for (const auto& model : catalog()) {
    if (static_cast<int>(model.task) != static_cast<int>(task)) continue;
    // One that can be used at once, if there is any.
    const bool here = locate_model(model, model.file).has_value();
    if (!example || (here && !example_here)) example = model.name.data();
    example_here |= here;
    text += fmt::format("  {:<26} {}\n", model.name,
                        model.languages.empty() ? "any language" : model.languages);
  }
  text += fmt::format("Example: speech {} {} {}\nspeech models lists all names.", command,
                      example ? example : "MODEL.gguf", inputs);
  throw UsageError(text);
}

std::string stem(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

std::string size_text(uint64_t bytes) {
  double value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{} B", bytes);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace speech::cli
