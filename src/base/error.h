// Errors: one exception type that carries a status of the C API, the input at fault and a message.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace speech {

// The values are those of speech_status in include/speech.h.
enum class Status : int {
  ok = 0,
  cancelled = 1,
  invalid_argument = -1,  // null, empty, wrong type, missing, call out of order
  unsupported = -2,       // an option or task that this model does not have
  out_of_range = -3,      // outside the range or the choices
  model_file = -4,        // a file that is not what it should be; the message names key or tensor
  device = -5,
  out_of_memory = -6,
  io = -7,
  internal = -8,
  busy = -9,  // as many requests as may wait are waiting
};

// "ok", "invalid_argument", ...
const char* status_name(Status status);

class Error : public std::runtime_error {
 public:
  // `option`: the option or parameter at fault ("threshold", "model_path"), or empty.
  Error(Status status, std::string option, const std::string& message)
      : std::runtime_error(message), status_(status), option_(std::move(option)) {}

  Status status() const { return status_; }
  const std::string& option() const { return option_; }

 private:
  Status status_;
  std::string option_;
};

// Throws an Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, {}, fmt::format(format, std::forward<Args>(args)...));
}

// The same, naming the option at fault.
template <typename... Args>
[[noreturn]] void fail_option(Status status, std::string_view option,
                              fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, std::string(option), fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace speech
