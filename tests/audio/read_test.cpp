#include "audio/read.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "audio/write.h"
#include "base/error.h"
#include "base/log.h"
#include "test_data.h"

namespace speech {
namespace {

using Bytes = std::vector<std::byte>;

void put(Bytes& to, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) to.push_back(std::byte(value >> (8 * i)));
}
void put(Bytes& to, const char* tag) {
  for (int i = 0; i < 4; ++i) to.push_back(std::byte(tag[i]));
}
template <typename T>
void put_float(Bytes& to, T value) {
  std::byte raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  to.insert(to.end(), raw, raw + sizeof(T));
}

struct Wav {
  uint32_t tag = 1, channels = 1, rate = 16000, bits = 16;
  bool extensible = false;
  std::optional<uint32_t> data_size = {};  // as the header says; the true one if not set
  Bytes data = {};

  Bytes file() const {
    Bytes f;
    uint32_t format_bytes = extensible ? 40 : 16, block = channels * ((bits + 7) / 8);
    put(f, "RIFF");
    put(f, data_size.value_or(static_cast<uint32_t>(data.size())) + 20 + format_bytes, 4);
    put(f, "WAVE");
    put(f, "LIST");  // an odd chunk before the format, padded to even
    put(f, 3, 4);
    put(f, 0, 4);
    put(f, "fmt ");
    put(f, format_bytes, 4);
    put(f, extensible ? 0xFFFE : tag, 2);
    put(f, channels, 2);
    put(f, rate, 4);
    put(f, rate * block, 4);
    put(f, block, 2);
    put(f, bits, 2);
    if (extensible) {
      put(f, 22, 2);
      put(f, bits, 2);
      put(f, 3, 4);
      put(f, tag, 2);
      for (int b : {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71}) put(f, b, 1);
    }
    put(f, "data");
    put(f, data_size.value_or(static_cast<uint32_t>(data.size())), 4);
    f.insert(f.end(), data.begin(), data.end());
    return f;
  }
};

AudioFile read(const Bytes& bytes) {
  return read_audio(MappedFile::from_memory(bytes, "test.wav"));
}

std::string error_of(const Bytes& bytes, Status status = Status::invalid_argument) {
  try {
    read(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    EXPECT_EQ(e.option(), "audio");
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(ReadAudio, IntegersBecomeExactFractions) {
  for (bool extensible : {false, true}) {
    Wav wav{.bits = 8, .extensible = extensible};
    for (int v : {0, 1, 128, 255}) put(wav.data, v, 1);
    EXPECT_EQ(read(wav.file()).samples, (std::vector<float>{-1, -127 / 128.f, 0, 127 / 128.f}));

    wav = {.rate = 44100, .bits = 16, .extensible = extensible};
    for (int v : {-32768, -1, 0, 1, 32767}) put(wav.data, static_cast<uint64_t>(v), 2);
    AudioFile audio = read(wav.file());
    EXPECT_EQ(audio.samples,
              (std::vector<float>{-1, -1 / 32768.f, 0, 1 / 32768.f, 32767 / 32768.f}));
    EXPECT_EQ(audio.rate, 44100);
    EXPECT_EQ(audio.channels, 1);

    wav = {.bits = 24, .extensible = extensible};
    for (int v : {-8388608, -1, 0, 1, 8388607}) put(wav.data, static_cast<uint64_t>(v), 3);
    EXPECT_EQ(read(wav.file()).samples,
              (std::vector<float>{-1, -0x1p-23f, 0, 0x1p-23f, 8388607 / 8388608.f}));

    wav = {.bits = 32, .extensible = extensible};
    for (int64_t v : {INT32_MIN, -1, 0, 1, INT32_MAX}) put(wav.data, static_cast<uint64_t>(v), 4);
    EXPECT_EQ(read(wav.file()).samples, (std::vector<float>{-1, -0x1p-31f, 0, 0x1p-31f, 1}));
  }
}

TEST(ReadAudio, TwentyBitsStandAtTheTopOfThreeBytes) {
  Wav wav{.bits = 20};
  put(wav.data, 0x400000, 3);
  EXPECT_EQ(read(wav.file()).samples, std::vector<float>{0.5f});
}

TEST(ReadAudio, FloatsAreTakenAsTheyAre) {
  for (bool extensible : {false, true}) {
    float inf = std::numeric_limits<float>::infinity();
    Wav wav{.tag = 3, .bits = 32, .extensible = extensible};
    for (float v : {-2.5f, 1e-30f, 1e30f, inf}) put_float(wav.data, v);
    put_float(wav.data, std::nanf(""));
    AudioFile audio = read(wav.file());
    ASSERT_EQ(audio.samples.size(), 5u);
    EXPECT_EQ(std::vector(audio.samples.begin(), audio.samples.end() - 1),
              (std::vector<float>{-2.5f, 1e-30f, 1e30f, inf}));
    EXPECT_TRUE(std::isnan(audio.samples[4]));

    wav = {.tag = 3, .bits = 64, .extensible = extensible};
    for (double v : {0.1, -1.0}) put_float(wav.data, v);
    EXPECT_EQ(read(wav.file()).samples, (std::vector<float>{0.1f, -1}));
  }
}

TEST(ReadAudio, ChannelsAreAveraged) {
  Wav wav{.channels = 3};
  for (int v : {3, 6, 9, -32768, -32768, -32768}) put(wav.data, static_cast<uint64_t>(v), 2);
  AudioFile audio = read(wav.file());
  EXPECT_EQ(audio.samples, (std::vector<float>{6 / 32768.f, -1}));
  EXPECT_EQ(audio.channels, 3);
}

TEST(ReadAudio, SizesThatAPipeLeftUnfilled) {
  for (uint32_t size : {0xFFFFFFFFu, 0x7FFFFFFFu, 0x7FFFF000u}) {
    Wav wav{.data_size = size};
    put(wav.data, 0x4000, 2);
    put(wav.data, 0xC000, 2);
    put(wav.data, 0, 1);  // half a sample: the pipe broke here
    EXPECT_EQ(read(wav.file()).samples, (std::vector<float>{0.5f, -0.5f}));
  }
  // What ffmpeg writes to a pipe: 24 bits, two channels of the same 8000 samples.
  AudioFile piped = read_audio(testing::data_path("audio/speech_24_pipe.wav"));
  AudioFile plain = read_audio(testing::data_path("audio/speech.wav"));
  EXPECT_EQ(piped.channels, 2);
  EXPECT_EQ(piped.samples, plain.samples);
}

TEST(ReadAudio, DamagedFilesSayWhatIsWrong) {
  Wav wav;
  wav.data.resize(100);
  wav.data_size = 1000;
  EXPECT_NE(error_of(wav.file()).find("1000 bytes of samples announced, 100 there"),
            std::string::npos);
  wav.data_size.reset();
  Bytes whole = wav.file();
  for (size_t length = 1; length < whole.size(); ++length) {
    try {
      read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
      ADD_FAILURE() << length;
    } catch (const Error& e) {
      EXPECT_TRUE(e.status() == Status::invalid_argument || e.status() == Status::unsupported);
    }
  }
  wav.channels = 0;
  EXPECT_NE(error_of(wav.file()).find("0 channels"), std::string::npos);
  wav = {.rate = 0};
  EXPECT_NE(error_of(wav.file()).find("0 Hz"), std::string::npos);
  wav = {.bits = 40};
  EXPECT_NE(error_of(wav.file(), Status::unsupported).find("40 bits"), std::string::npos);
  EXPECT_NE(error_of({}).find("is empty"), std::string::npos);
  Bytes text(100, std::byte('x'));
  EXPECT_NE(error_of(text, Status::unsupported).find("ffmpeg -i test.wav OUT.wav"),
            std::string::npos);
  EXPECT_THROW(read_audio(testing::data_path("audio/no such file.wav")), Error);
  EXPECT_THROW(read_audio(testing::data_path("audio")), Error);
}

TEST(ReadAudio, LosslessFormatsGiveTheSameSamples) {
  AudioFile plain = read_audio(testing::data_path("audio/speech.wav"));
  ASSERT_EQ(plain.samples.size(), 8000u);
  for (const char* name : {"speech.flac", "speech.aiff"}) {
    AudioFile audio = read_audio(testing::data_path(std::string("audio/") + name));
    EXPECT_EQ(audio.rate, 16000) << name;
    EXPECT_EQ(audio.samples, plain.samples) << name;
  }
}

// Lossy codecs: the signal is recognizably the same, found at the delay that fits best.
TEST(ReadAudio, LossyFormatsGiveTheSameSound) {
  AudioFile plain = read_audio(testing::data_path("audio/speech.wav"));
  for (const char* name : {"speech.mp3", "speech.ogg", "speech.opus", "speech_mulaw.wav",
                           "speech.m4a", "speech.webm"}) {
    AudioFile audio;
    try {
      audio = read_audio(testing::data_path(std::string("audio/") + name));
    } catch (const Error& e) {  // a build without libav
      EXPECT_NE(std::string(e.what()).find("convert it with"), std::string::npos) << e.what();
      continue;
    }
    ASSERT_TRUE(audio.rate == 16000 || audio.rate == 48000) << name;
    size_t step = static_cast<size_t>(audio.rate) / 16000;
    double best = 0;
    for (size_t delay = 0; delay < 2000 * step; ++delay) {
      double xy = 0, xx = 0, yy = 0;
      for (size_t i = 0; i < 6000 && i * step + delay < audio.samples.size(); ++i) {
        double x = plain.samples[i], y = audio.samples[i * step + delay];
        xy += x * y;
        xx += x * x;
        yy += y * y;
      }
      if (yy > 0) best = std::max(best, xy / std::sqrt(xx * yy));
    }
    EXPECT_GT(best, 0.9) << name;
    double seconds = static_cast<double>(audio.samples.size()) / audio.rate;
    EXPECT_GE(seconds, 0.4) << name;
    EXPECT_LE(seconds, 0.7) << name;
  }
}

// However a file is cut, what is left is refused; between two Ogg pages, where it may be a whole
// file without its end mark, it is warned of.
TEST(ReadAudio, FilesCutShortAreNotShortRecordings) {
  for (const char* name : {"speech.flac", "speech.aiff", "speech.mp3", "speech.ogg", "speech.opus",
                           "speech_mulaw.wav", "speech.m4a", "speech.webm"}) {
    auto file = MappedFile::open(testing::data_path(std::string("audio/") + name));
    int warnings = 0, cut_short = 0, silent = 0;
    set_log_sink([&](LogLevel, std::string_view text) {
      warnings += text.find("may be cut short") != std::string_view::npos;
    });
    for (size_t length = file->bytes().size() - 1; length > 20; length -= 1 + length / 97) {
      const int before = warnings;
      try {
        read_audio(MappedFile::from_memory(file->bytes().first(length), name));
        silent += warnings == before;
      } catch (const Error& e) {
        EXPECT_EQ(e.option(), "audio");
        cut_short += std::string_view(e.what()).find("is cut short") != std::string_view::npos;
      }
    }
    EXPECT_EQ(silent, 0) << name;
    EXPECT_GT(cut_short, 100) << name;
    if (std::string_view(name) == "speech.ogg") {
      // Its first two pages.
      const int before = warnings;
      AudioFile part = read_audio(MappedFile::from_memory(file->bytes().first(3645), name));
      EXPECT_GT(warnings, before);
      EXPECT_LT(part.samples.size(), 8000u);
    }
    set_log_sink({});
    EXPECT_NO_THROW(read_audio(file)) << name;
  }
}

// Sizes past 32 bits, big-endian sizes, chunks with names of 16 bytes: the samples of speech.wav.
TEST(ReadAudio, Rf64Wave64AndAuCutShort) {
  auto wav = MappedFile::open(testing::data_path("audio/speech.wav"));
  const AudioFile whole = read_audio(wav);
  Bytes samples;
  for (float v : whole.samples) put(samples, static_cast<uint16_t>(std::lround(v * 32768)), 2);
  const auto rate = static_cast<uint64_t>(whole.rate);
  const auto format = [&](Bytes& f) {
    put(f, 1, 2);
    put(f, 1, 2);
    put(f, rate, 4);
    put(f, 2 * rate, 4);
    put(f, 2, 2);
    put(f, 16, 2);
  };
  const auto guid = [](Bytes& f, const char* name, std::initializer_list<int> rest) {
    put(f, name);
    for (int byte : rest) f.push_back(std::byte(byte));
  };
  const auto big = [](Bytes& f, uint64_t value) {
    for (int i = 3; i >= 0; --i) f.push_back(std::byte(value >> (8 * i)));
  };
  Bytes rf64, w64, au;
  put(rf64, "RF64");
  put(rf64, 0xFFFFFFFF, 4);
  put(rf64, "WAVE");
  put(rf64, "ds64");
  put(rf64, 28, 4);
  put(rf64, samples.size() + 72, 8);
  put(rf64, samples.size(), 8);
  put(rf64, whole.samples.size(), 8);
  put(rf64, 0, 4);
  put(rf64, "fmt ");
  put(rf64, 16, 4);
  format(rf64);
  put(rf64, "data");
  put(rf64, 0xFFFFFFFF, 4);
  const auto wave_guid = {0xF3, 0xAC, 0xD3, 0x11, 0x8C, 0xD1, 0x00, 0xC0, 0x4F, 0x8E, 0xDB, 0x8A};
  guid(w64, "riff", {0x2E, 0x91, 0xCF, 0x11, 0xA5, 0xD6, 0x28, 0xDB, 0x04, 0xC1, 0x00, 0x00});
  put(w64, 104 + samples.size(), 8);
  guid(w64, "wave", wave_guid);
  guid(w64, "fmt ", wave_guid);
  put(w64, 40, 8);
  format(w64);
  guid(w64, "data", wave_guid);
  put(w64, 24 + samples.size(), 8);
  put(au, ".snd");
  big(au, 24);
  big(au, samples.size());
  big(au, 3);  // 16 bits
  big(au, rate);
  big(au, 1);
  for (Bytes* file : {&rf64, &w64, &au}) {
    const size_t header = file->size();
    file->insert(file->end(), samples.begin(), samples.end());
    if (file == &au) {
      for (size_t i = header; i < file->size(); i += 2) std::swap((*file)[i], (*file)[i + 1]);
    }
    EXPECT_EQ(read(*file).samples, whole.samples) << header;
    for (size_t length : {file->size() - 1, file->size() / 2, header + 1}) {
      const Bytes cut(file->begin(), file->begin() + static_cast<int64_t>(length));
      EXPECT_NE(error_of(cut).find("is cut short"), std::string::npos) << header << " " << length;
    }
  }
}

// Decoders go on behind a page that is missing or damaged.
TEST(ReadAudio, OggPagesMustBeThereAndWhole) {
  auto file = MappedFile::open(testing::data_path("audio/speech.ogg"));
  const Bytes bytes(file->bytes().begin(), file->bytes().end());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<size_t> pages;
  for (size_t at = text.find("OggS"); at != text.npos; at = text.find("OggS", at + 1)) {
    pages.push_back(at);
  }
  ASSERT_GE(pages.size(), 3u);
  Bytes lacking = bytes, damaged = bytes;
  lacking.erase(lacking.begin() + static_cast<int64_t>(pages[1]),
                lacking.begin() + static_cast<int64_t>(pages[2]));
  EXPECT_NE(error_of(lacking).find("lacks a part"), std::string::npos);
  damaged[pages[2] + 60] ^= std::byte{1};
  EXPECT_NE(error_of(damaged).find("is damaged: Ogg page 2"), std::string::npos);
}

// What is written live ends where it ends: sizes are unknown, and only the last element can be
// short.
TEST(ReadAudio, LiveWebMWithoutSizes) {
  auto file = MappedFile::open(testing::data_path("audio/speech.webm"));
  Bytes bytes(file->bytes().begin(), file->bytes().end());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t segment = text.find("\x18\x53\x80\x67"), cluster = text.find("\x1F\x43\xB6\x75");
  ASSERT_NE(segment, std::string_view::npos);
  ASSERT_NE(cluster, std::string_view::npos);
  for (size_t at : {segment + 4, cluster + 4}) {
    const int first = std::to_integer<int>(bytes[at]);
    const size_t size_bytes =
        1 + static_cast<size_t>(std::countl_zero(static_cast<uint8_t>(first)));
    for (size_t i = 0; i < size_bytes; ++i) bytes[at + i] = std::byte{0xFF};
    bytes[at] = std::byte(0xFF >> (size_bytes - 1));
  }
  try {
    EXPECT_EQ(read(bytes).samples, read_audio(file).samples);
  } catch (const Error& e) {  // a build without libav
    EXPECT_NE(std::string(e.what()).find("convert it with"), std::string::npos) << e.what();
  }
  bytes.resize(bytes.size() - 1);
  EXPECT_NE(error_of(bytes).find("is cut short"), std::string::npos);
}

// Without a Xing header too, the last frame must be whole.
TEST(ReadAudio, Mp3WithoutATableOfContents) {
  auto file = MappedFile::open(testing::data_path("audio/speech.mp3"));
  Bytes bytes(file->bytes().begin(), file->bytes().end());
  bytes[33] = std::byte('x');  // "Info"
  EXPECT_FALSE(read(bytes).samples.empty());
  bytes.resize(bytes.size() - 1);
  EXPECT_NE(error_of(bytes).find("is cut short"), std::string::npos);
}

// One second of noise, five of silence, half a second of a tone, at a variable bit rate and without
// a table of contents: its length cannot be guessed from its beginning.
TEST(ReadAudio, Mp3ThatBeginsLoudIsReadToItsEnd) {
  AudioFile audio = read_audio(testing::data_path("audio/loud-first.mp3"));
  auto seconds = static_cast<double>(audio.samples.size()) / audio.rate;
  EXPECT_NEAR(seconds, 6.5, 0.15);  // an encoder's delay and padding
  float last = 0;
  for (size_t i = audio.samples.size() - static_cast<size_t>(audio.rate) / 4;
       i < audio.samples.size(); ++i) {
    last = std::max(last, std::abs(audio.samples[i]));
  }
  EXPECT_GT(last, 0.4f);
}

TEST(ReadAudio, BlocksAndTheWholeAreTheSame) {
  for (const char* name : {"speech.wav", "speech.flac", "speech.ogg", "speech.m4a"}) {
    std::string path = testing::data_path(std::string("audio/") + name);
    std::unique_ptr<AudioReader> reader;
    try {
      reader = AudioReader::open(path);
    } catch (const Error&) {
      continue;  // a build without libav
    }
    std::vector<float> joined, block(333);
    for (size_t got = block.size(); got == block.size();) {
      got = reader->read(block);
      joined.insert(joined.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got));
    }
    EXPECT_EQ(reader->read(block), 0u);
    EXPECT_EQ(joined, read_audio(path).samples) << name;
  }
}

TEST(WriteWav, RoundsAndClamps) {
  std::string path = (std::filesystem::temp_directory_path() / "speech-write-test.wav").string();
  std::vector<float> samples = {0,           0.5f, -1, 1, 1.5f, -7, 0.5f / 32768, -0.5f / 32768,
                                0.4f / 32768};
  write_wav(path, samples, 8000);
  AudioFile audio = read_audio(path);
  EXPECT_EQ(audio.rate, 8000);
  EXPECT_EQ(audio.samples, (std::vector<float>{0, 0.5f, -1, 32767 / 32768.f, 32767 / 32768.f, -1,
                                               0x1p-15f, -0x1p-15f, 0}));
  samples = {std::nanf("")};
  EXPECT_THROW(write_wav(path, samples, 8000), Error);
  EXPECT_EQ(read_audio(path).samples.size(), 9u);  // the older file stays
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace speech
