// Audio that comes while it is made: 16-bit PCM on standard input, or the default microphone.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace speech::cli {

class PcmSource {
 public:
  virtual ~PcmSource() = default;
  // The next samples, waiting for them; nothing at the end.
  virtual std::optional<std::vector<float>> read() = 0;
};

// Little-endian 16-bit mono PCM of standard input. An odd number of bytes is
// Failure(invalid_argument, "audio") at the end.
std::unique_ptr<PcmSource> open_stdin();

// The default microphone, 16-bit mono at `rate` Hz, until `stop`. Failure(unsupported) in a build
// without it, Failure(device) when it cannot be opened.
std::unique_ptr<PcmSource> open_microphone(int rate, const std::atomic<bool>& stop);

}  // namespace speech::cli
