// RIFF WAVE, after Microsoft's "Multimedia Programming Interface and Data Specifications 1.0" and
// "Multiple channel audio data and WAVE files" (WAVE_FORMAT_EXTENSIBLE).
#include <algorithm>
#include <cstring>

#include "audio/read_formats.h"
#include "base/error.h"

namespace speech::audio {
namespace {

constexpr uint32_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;
// Writers to a pipe cannot go back to fill the sizes in; they leave the largest number of 32 or of
// 31 bits, or that less a header.
constexpr bool is_unknown(uint32_t size) {
  constexpr uint32_t kHeader = 0x1000;
  return size >= 0xFFFFFFFF - kHeader || (size >= 0x7FFFFFFF - kHeader && size <= 0x7FFFFFFF);
}

uint32_t little(std::span<const std::byte> bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value |= std::to_integer<uint32_t>(bytes[at + i]) << (8 * i);
  return value;
}

bool has_tag(std::span<const std::byte> bytes, size_t at, const char* tag) {
  return bytes.size() >= at + 4 && std::memcmp(bytes.data() + at, tag, 4) == 0;
}

enum class Coding { u8, s16, s24, s32, f32, f64 };

constexpr int bytes_of(Coding coding) {
  switch (coding) {
    case Coding::u8:
      return 1;
    case Coding::s16:
      return 2;
    case Coding::s24:
      return 3;
    case Coding::s32:
      return 4;
    case Coding::f32:
      return 4;
    case Coding::f64:
      return 8;
  }
  return 0;
}

// The value of one sample; exact in double for every coding.
double decode(const std::byte* p, Coding coding) {
  auto word = [p](int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) value |= std::to_integer<uint64_t>(p[i]) << (8 * i);
    return value;
  };
  switch (coding) {
    case Coding::u8:
      return (static_cast<int>(word(1)) - 128) / 128.0;
    case Coding::s16:
      return static_cast<int16_t>(word(2)) / 32768.0;
    // The 24 bits stand at the top of 32, so that the sign is the word's own.
    case Coding::s24:
      return static_cast<int32_t>(word(3) << 8) / 2147483648.0;
    case Coding::s32:
      return static_cast<int32_t>(word(4)) / 2147483648.0;
    case Coding::f32: {
      auto bits = static_cast<uint32_t>(word(4));
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    case Coding::f64: {
      uint64_t bits = word(8);
      double value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
  }
  return 0;
}

template <Coding coding>
void decode_frames(const std::byte* p, int channels, std::span<float> mono) {
  constexpr int kBytes = bytes_of(coding);
  for (float& out : mono) {
    double sum = 0;
    for (int c = 0; c < channels; ++c, p += kBytes) sum += decode(p, coding);
    out = static_cast<float>(channels == 1 ? sum : sum / channels);
  }
}

class WavReader : public AudioReader {
 public:
  WavReader(std::shared_ptr<const MappedFile> file, Coding coding, int rate, int channels,
            std::span<const std::byte> data)
      : file_(std::move(file)), behind_(*file_), coding_(coding), data_(data) {
    rate_ = rate;
    channels_ = channels;
    frame_bytes_ = static_cast<size_t>(bytes_of(coding)) * static_cast<size_t>(channels);
    length_ = static_cast<int64_t>(data.size() / frame_bytes_);
  }

  size_t read(std::span<float> out) override {
    size_t frames = std::min(out.size(), (data_.size() - at_) / frame_bytes_);
    const std::byte* p = data_.data() + at_;
    out = out.first(frames);
    switch (coding_) {
      case Coding::u8:
        decode_frames<Coding::u8>(p, channels_, out);
        break;
      case Coding::s16:
        decode_frames<Coding::s16>(p, channels_, out);
        break;
      case Coding::s24:
        decode_frames<Coding::s24>(p, channels_, out);
        break;
      case Coding::s32:
        decode_frames<Coding::s32>(p, channels_, out);
        break;
      case Coding::f32:
        decode_frames<Coding::f32>(p, channels_, out);
        break;
      case Coding::f64:
        decode_frames<Coding::f64>(p, channels_, out);
        break;
    }
    at_ += frames * frame_bytes_;
    behind_.passed(static_cast<size_t>(data_.data() - file_->bytes().data()) + at_);
    return frames;
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  ReadBehind behind_;
  Coding coding_;
  std::span<const std::byte> data_;
  size_t frame_bytes_ = 1, at_ = 0;
};

struct Format {
  Coding coding = Coding::s16;
  int rate = 0, channels = 0;
};

// The "fmt " chunk; nothing if it names a coding that libsndfile may know (mu-law, ADPCM, ...).
std::optional<Format> parse_format(std::span<const std::byte> chunk, const std::string& path) {
  if (chunk.size() < 16) {
    fail_option(Status::invalid_argument, "audio",
                "{}: the format chunk has {} bytes, 16 are the least", path, chunk.size());
  }
  uint32_t tag = little(chunk, 0, 2);
  uint32_t channels = little(chunk, 2, 2), rate = little(chunk, 4, 4);
  uint32_t block = little(chunk, 12, 2), bits = little(chunk, 14, 2);
  if (tag == kExtensible) {
    if (chunk.size() < 40) {
      fail_option(Status::invalid_argument, "audio",
                  "{}: the extensible format chunk has {} bytes, 40 are the least", path,
                  chunk.size());
    }
    tag = little(chunk, 24, 2);  // the first field of the subformat's GUID
  }
  if (tag != kPcm && tag != kFloat) return std::nullopt;
  if (channels == 0) {
    fail_option(Status::invalid_argument, "audio", "{} says it has 0 channels", path);
  }
  if (rate == 0 || rate > 0x7FFFFFFF) {
    fail_option(Status::invalid_argument, "audio", "{} says it has a sample rate of {} Hz", path,
                rate);
  }
  // Samples lie in whole bytes, at the top of them where the number of bits is odd (20 in 24).
  uint32_t bytes = (bits + 7) / 8;
  Format format{Coding::s16, static_cast<int>(rate), static_cast<int>(channels)};
  if (tag == kPcm && bytes == 1) {
    format.coding = Coding::u8;
  } else if (tag == kPcm && bytes == 2) {
    format.coding = Coding::s16;
  } else if (tag == kPcm && bytes == 3) {
    format.coding = Coding::s24;
  } else if (tag == kPcm && bytes == 4) {
    format.coding = Coding::s32;
  } else if (tag == kFloat && bits == 32) {
    format.coding = Coding::f32;
  } else if (tag == kFloat && bits == 64) {
    format.coding = Coding::f64;
  } else {
    fail_option(Status::unsupported, "audio",
                "{} has {} samples of {} bits; 8, 16, 24 and 32 bit integers and 32 and 64 bit "
                "floats are supported",
                path, tag == kPcm ? "integer" : "float", bits);
  }
  if (block != channels * bytes) {
    fail_option(Status::invalid_argument, "audio",
                "{} says that {} channels of {} bits take {} bytes, not {}", path, channels, bits,
                block, channels * bytes);
  }
  return format;
}

}  // namespace

std::unique_ptr<AudioReader> open_wav(std::shared_ptr<const MappedFile> file) {
  std::span<const std::byte> bytes = file->bytes();
  const std::string& path = file->path();
  if (!has_tag(bytes, 0, "RIFF") || !has_tag(bytes, 8, "WAVE")) return nullptr;
  std::optional<Format> format;
  bool foreign = false;  // samples of another coding
  size_t at = 12;
  while (bytes.size() - at >= 8) {
    uint32_t size = little(bytes, at + 4, 4);
    bool is_data = has_tag(bytes, at, "data"), is_format = has_tag(bytes, at, "fmt ");
    at += 8;
    size_t left = bytes.size() - at;
    if (is_data) {
      if (!format && !foreign) {
        fail_option(Status::invalid_argument, "audio", "{}: the data come before a format chunk",
                    path);
      }
      // Both sizes 0: the writer was stopped before it filled them in.
      bool unknown = (is_unknown(size) && size > left) || (size == 0 && little(bytes, 4, 4) == 0);
      if (!unknown && size > left) {
        fail_option(Status::invalid_argument, "audio",
                    "{} is cut short: {} bytes of samples announced, {} there", path, size, left);
      }
      if (foreign) return nullptr;
      auto data = bytes.subspan(at, unknown ? left : size);
      return std::make_unique<WavReader>(std::move(file), format->coding, format->rate,
                                         format->channels, data);
    }
    if (size > left) {
      fail_option(Status::invalid_argument, "audio",
                  "{} is cut short: a chunk of {} bytes announced, {} there", path, size, left);
    }
    if (is_format) {
      format = parse_format(bytes.subspan(at, size), path);
      foreign = !format;
    }
    at += size;
    if (size % 2 == 1 && at < bytes.size()) ++at;  // chunks begin at even offsets
  }
  fail_option(Status::invalid_argument, "audio", "{} has no data chunk", path);
}

}  // namespace speech::audio
