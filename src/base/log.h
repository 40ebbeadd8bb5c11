// Process-wide log. The library itself never prints; before a sink is set, warnings and errors go
// to stderr.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>

namespace speech {

enum class LogLevel : int { debug = 0, info = 1, warn = 2, error = 3 };

using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink; an empty one restores the default. Safe from any thread.
void set_log_sink(LogSink sink);

// Hands one line (without newline) to the sink. Sinks may be called concurrently.
void log(LogLevel level, std::string_view text);

template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace speech
