#include "pcm_source.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#ifdef SPEECH_WITH_PULSE
#include <pulse/error.h>
#include <pulse/simple.h>
#endif

#include "command.h"

namespace speech::cli {
namespace {

float sample_of(const unsigned char* bytes) {
  return static_cast<float>(static_cast<int16_t>(bytes[0] | bytes[1] << 8)) / 32768.0f;
}

class Stdin final : public PcmSource {
 public:
  std::optional<std::vector<float>> read() override {
    unsigned char bytes[1 << 14];
    size_t size = 0;
    if (left_over_) bytes[size++] = *left_over_;
    left_over_.reset();
    ssize_t got;
    do {
      got = ::read(STDIN_FILENO, bytes + size, sizeof bytes - size);
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw Failure(SPEECH_IO, "audio", std::string("stdin: ") + std::strerror(errno));
    if (got == 0) {
      if (size == 0) return std::nullopt;
      throw Failure(SPEECH_INVALID_ARGUMENT, "audio",
                    "stdin ended inside a sample: an odd number of bytes");
    }
    size += static_cast<size_t>(got);
    if (size % 2 != 0) left_over_ = bytes[--size];
    std::vector<float> samples(size / 2);
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = sample_of(bytes + 2 * i);
    return samples;
  }

 private:
  std::optional<unsigned char> left_over_;
};

#ifdef SPEECH_WITH_PULSE
class Microphone final : public PcmSource {
 public:
  Microphone(int rate, const std::atomic<bool>& stop) : rate_(rate), stop_(stop) {
    pa_sample_spec format{PA_SAMPLE_S16LE, static_cast<uint32_t>(rate), 1};
    int error = 0;
    stream_.reset(pa_simple_new(nullptr, "speech", PA_STREAM_RECORD, nullptr, "live transcription",
                                &format, nullptr, nullptr, &error));
    if (!stream_) {
      throw Failure(SPEECH_DEVICE, "live",
                    std::string("cannot open the microphone: ") + pa_strerror(error));
    }
  }

  std::optional<std::vector<float>> read() override {
    if (stop_) return std::nullopt;
    std::vector<unsigned char> bytes(static_cast<size_t>(rate_) / 50 * 2);  // 20 ms
    int error = 0;
    if (pa_simple_read(stream_.get(), bytes.data(), bytes.size(), &error) < 0) {
      throw Failure(SPEECH_DEVICE, "live",
                    std::string("cannot read the microphone: ") + pa_strerror(error));
    }
    std::vector<float> samples(bytes.size() / 2);
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = sample_of(&bytes[2 * i]);
    return samples;
  }

 private:
  const int rate_;
  const std::atomic<bool>& stop_;
  Handle<pa_simple, pa_simple_free> stream_;
};
#endif

}  // namespace

std::unique_ptr<PcmSource> open_stdin() {
  return std::make_unique<Stdin>();
}

std::unique_ptr<PcmSource> open_microphone([[maybe_unused]] int rate,
                                           [[maybe_unused]] const std::atomic<bool>& stop) {
#ifdef SPEECH_WITH_PULSE
  return std::make_unique<Microphone>(rate, stop);
#else
  throw Failure(SPEECH_UNSUPPORTED, "live",
                "this program was built without libpulse; pipe audio into \"-\" instead");
#endif
}

}  // namespace speech::cli
