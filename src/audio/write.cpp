#include "audio/write.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace speech {
namespace {

constexpr uint64_t kHeaderBytes = 44;

std::array<std::byte, kHeaderBytes> header(uint32_t rate, uint32_t data_bytes) {
  std::array<std::byte, kHeaderBytes> h{};
  auto tag = [&h](size_t at, const char* text) { std::memcpy(h.data() + at, text, 4); };
  auto number = [&h](size_t at, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) h[at + static_cast<size_t>(i)] = std::byte(value >> (8 * i));
  };
  tag(0, "RIFF");
  number(4, data_bytes + 36, 4);
  tag(8, "WAVE");
  tag(12, "fmt ");
  number(16, 16, 4);
  number(20, 1, 2);  // PCM
  number(22, 1, 2);  // channels
  number(24, rate, 4);
  number(28, rate * 2, 4);
  number(32, 2, 2);
  number(34, 16, 2);
  tag(36, "data");
  number(40, data_bytes, 4);
  return h;
}

}  // namespace

WavWriter::WavWriter(std::string path, int rate) : file_(std::move(path)), rate_(rate) {
  file_.write(header(static_cast<uint32_t>(rate), 0));
}

void WavWriter::write(std::span<const float> samples) {
  if (samples.size() > (UINT32_MAX - file_.size()) / 2) {
    fail_option(Status::invalid_argument, "audio", "a WAVE file cannot hold more than 4 GiB");
  }
  std::array<std::byte, 8192> block;
  while (!samples.empty()) {
    size_t count = std::min(samples.size(), block.size() / 2);
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(samples[i])) {
        fail_option(Status::invalid_argument, "audio", "a sample to be written is not finite");
      }
      float scaled = std::clamp(samples[i], -2.0f, 2.0f) * 32768.0f;
      auto value = static_cast<uint32_t>(std::clamp(std::lround(scaled), -32768L, 32767L));
      block[2 * i] = std::byte(value);
      block[2 * i + 1] = std::byte(value >> 8);
    }
    file_.write(std::span(block).first(2 * count));
    samples = samples.subspan(count);
  }
}

void WavWriter::commit() {
  auto bytes = static_cast<uint32_t>(file_.size() - kHeaderBytes);
  file_.write_at(0, header(static_cast<uint32_t>(rate_), bytes));
  file_.commit();
}

void write_wav(const std::string& path, std::span<const float> samples, int rate) {
  WavWriter writer(path, rate);
  writer.write(samples);
  writer.commit();
}

}  // namespace speech
