// Version, errors, log, devices and the option vocabulary.
#include <unistd.h>

#include <fstream>
#include <string>

#include "api/handles.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"

using namespace speech;
using namespace speech::api;

namespace {

thread_local std::string error_message, error_option;

struct CpuDevice {
  std::string description = "CPU";

  CpuDevice() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      if (!line.starts_with("model name")) continue;
      size_t colon = line.find(": ");
      if (colon != std::string::npos) description = line.substr(colon + 2);
      break;
    }
  }
};

const CpuDevice& cpu_device() {
  static const CpuDevice device;
  return device;
}

// A line of /proc/meminfo; 0 if there is none.
uint64_t memory_line(std::string_view name) {
  return proc_bytes("/proc/meminfo", name).value_or(0);
}

void check_device(size_t index) {
  if (index >= speech_device_count()) {
    fail(Status::out_of_range, "there is no device number {}", index);
  }
}

}  // namespace

namespace speech::api {

void clear_error() {
  error_message.clear();
  error_option.clear();
}

void set_error(std::string message, std::string option) {
  error_message = std::move(message);
  error_option = std::move(option);
}

std::string required_text(const char* text, const char* name) {
  required(text, name);
  if (!*text) fail_option(Status::invalid_argument, name, "{} is empty", name);
  return text;
}

}  // namespace speech::api

int speech_api_version_major(void) {
  return SPEECH_API_VERSION_MAJOR;
}

int speech_api_version_minor(void) {
  return SPEECH_API_VERSION_MINOR;
}

const char* speech_version(void) {
  return SPEECH_VERSION;
}

const char* speech_status_name(speech_status status) {
  return status_name(static_cast<Status>(status));
}

const char* speech_last_error(void) {
  return error_message.c_str();
}

const char* speech_last_error_option(void) {
  return error_option.empty() ? nullptr : error_option.c_str();
}

void speech_log_set(speech_log_callback callback, void* user) {
  guarded([&] {
    if (!callback) return set_log_sink({});
    set_log_sink([callback, user](LogLevel level, std::string_view text) {
      callback(static_cast<speech_log_level>(level), std::string(text).c_str(), user);
    });
  });
}

size_t speech_device_count(void) {
  return 1;
}

const char* speech_device_name(size_t index) {
  return index == 0 ? "cpu" : nullptr;
}

const char* speech_device_description(size_t index) {
  const char* description = nullptr;
  guarded([&] {
    if (index == 0) description = cpu_device().description.c_str();
  });
  return description;
}

speech_status speech_device_get_kind(size_t index, speech_device_kind* kind) {
  return guarded([&] {
    check_device(index);
    required(kind, "kind") = SPEECH_DEVICE_CPU;
  });
}

speech_status speech_device_memory(size_t index, uint64_t* total, uint64_t* available) {
  return guarded([&] {
    check_device(index);
    uint64_t all = memory_line("MemTotal:"), free = memory_line("MemAvailable:");
    if (total) *total = all;
    if (available) *available = free;
  });
}

int speech_option_count(void) {
  return static_cast<int>(option_vocabulary().size());
}

const char* speech_option_name(speech_option option) {
  const OptionWord* word = find_option(option);
  return word ? word->name : nullptr;
}

speech_status speech_option_from_name(const char* name, speech_option* option) {
  return guarded([&] {
    std::string text = required_text(name, "name");
    const OptionWord* word = find_option(text);
    if (!word) fail_option(Status::invalid_argument, "name", "there is no option \"{}\"", text);
    required(option, "option") = word->id;
  });
}

speech_status speech_option_type(speech_option option, speech_value_type* type) {
  return guarded([&] {
    const OptionWord* word = find_option(option);
    if (!word) {
      fail_option(Status::invalid_argument, "option", "there is no option number {}", option);
    }
    required(type, "type") = static_cast<speech_value_type>(word->type);
  });
}

const char* speech_task_name(speech_task task) {
  return task_name(static_cast<Task>(task));
}

const char* speech_stop_name(speech_stop stop) {
  constexpr const char* names[] = {"complete", "max_seconds", "model_limit", "cancelled"};
  return stop >= SPEECH_STOP_COMPLETE && stop <= SPEECH_STOP_CANCELLED ? names[stop] : "unknown";
}
