#include "audio/read.h"

#include <algorithm>

#include "audio/read_formats.h"
#include "base/blaming.h"
#include "base/error.h"

namespace speech {
namespace audio {

void average_channels(std::span<const float> interleaved, int channels, std::span<float> mono) {
  if (channels == 1) {
    std::copy_n(interleaved.begin(), mono.size(), mono.begin());
    return;
  }
  for (size_t i = 0; i < mono.size(); ++i) {
    double sum = 0;
    for (int c = 0; c < channels; ++c) sum += interleaved[i * channels + c];
    mono[i] = static_cast<float>(sum / channels);
  }
}

void ReadBehind::passed(size_t position) {
  constexpr size_t kStep = size_t{4} << 20;
  if (position < released_ + 2 * kStep) return;
  file_.release(file_.bytes().subspan(released_, kStep));
  released_ += kStep;
}

}  // namespace audio

std::unique_ptr<AudioReader> AudioReader::open(const std::string& path) {
  return open(blaming("audio", [&] { return MappedFile::open(path); }));
}

std::unique_ptr<AudioReader> AudioReader::open(std::shared_ptr<const MappedFile> file) {
  if (file->bytes().empty()) {
    fail_option(Status::invalid_argument, "audio", "{} is empty", file->path());
  }
  audio::check_whole(*file);
  for (auto open_as : {audio::open_wav, audio::open_sndfile, audio::open_libav}) {
    if (auto reader = open_as(file)) return reader;
  }
  fail_option(Status::unsupported, "audio",
              "{} is not supported as audio; convert it with: ffmpeg -i {} OUT.wav", file->path(),
              file->path());
}

namespace {

AudioFile read_all(AudioReader& reader) {
  AudioFile audio;
  audio.rate = reader.rate();
  audio.channels = reader.channels();
  // A header's word is believed for a minute at most: memory follows what is really there.
  constexpr int64_t kBlock = 1 << 16;
  if (reader.length()) {
    audio.samples.reserve(std::clamp<int64_t>(*reader.length(), 0, int64_t{60} * 48000));
  }
  for (size_t read = kBlock; read == kBlock;) {
    size_t old = audio.samples.size();
    audio.samples.resize(old + kBlock);
    read = reader.read(std::span(audio.samples).subspan(old));
    audio.samples.resize(old + read);
  }
  return audio;
}

}  // namespace

AudioFile read_audio(const std::string& path) {
  return read_all(*AudioReader::open(path));
}

AudioFile read_audio(std::shared_ptr<const MappedFile> file) {
  return read_all(*AudioReader::open(std::move(file)));
}

}  // namespace speech
