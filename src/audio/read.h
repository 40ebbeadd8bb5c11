// Audio files as mono f32 samples.
//
// WAVE (integer PCM of 8, 16, 24, 32 bits, float of 32 and 64, also WAVE_FORMAT_EXTENSIBLE and
// files whose sizes were never filled in) is read here; FLAC, MP3, Ogg and the rarer WAVE relatives
// through libsndfile; M4A, WebM and whatever else through libav where the build has it. Integers
// become floats by an exact division (2^15 for 16 bits); channels are averaged. Samples are not
// clamped and not checked: what is not finite in a float file arrives so, and the tasks refuse it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace speech {

// A file read block by block: memory does not grow with the length of the recording.
class AudioReader {
 public:
  // All name "audio": Error(io) if the file cannot be opened, Error(unsupported) if it is no audio
  // this build can read, Error(invalid_argument) if it is damaged or cut short. read() too may find
  // that it is.
  static std::unique_ptr<AudioReader> open(const std::string& path);
  static std::unique_ptr<AudioReader> open(std::shared_ptr<const MappedFile> file);

  virtual ~AudioReader() = default;

  // Fills `out` with the next samples; fewer than asked for only at the end, then 0.
  virtual size_t read(std::span<float> out) = 0;

  int rate() const { return rate_; }          // Hz, > 0
  int channels() const { return channels_; }  // of the file; read() gives their mean
  // How many samples there will be, where the file says so. A hint: for progress and reserving.
  std::optional<int64_t> length() const { return length_; }

 protected:
  int rate_ = 0, channels_ = 0;
  std::optional<int64_t> length_;
};

struct AudioFile {
  std::vector<float> samples;  // mono
  int rate = 0;                // Hz
  int channels = 0;            // before averaging
};

// A whole file; errors as AudioReader::open.
AudioFile read_audio(const std::string& path);
AudioFile read_audio(std::shared_ptr<const MappedFile> file);

}  // namespace speech
