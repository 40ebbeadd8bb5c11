#include "base/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace speech {
namespace {

std::mutex sink_mutex;
std::shared_ptr<LogSink> current_sink;

}  // namespace

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<LogSink>(std::move(sink)) : nullptr;
  std::lock_guard lock(sink_mutex);
  current_sink = std::move(next);
}

void log(LogLevel level, std::string_view text) {
  std::shared_ptr<LogSink> sink;
  {
    std::lock_guard lock(sink_mutex);
    sink = current_sink;
  }
  if (sink) {
    (*sink)(level, text);
  } else if (level >= LogLevel::warn) {
    std::string line = "speech: " + std::string(text) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

}  // namespace speech
