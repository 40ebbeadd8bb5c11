// The readers behind AudioReader::open.
#pragma once

#include <memory>

#include "audio/read.h"

namespace speech::audio {

// Null where the file is not one this reader knows (the next one may); Error where it is, but
// damaged.
std::unique_ptr<AudioReader> open_wav(std::shared_ptr<const MappedFile> file);
std::unique_ptr<AudioReader> open_sndfile(std::shared_ptr<const MappedFile> file);
std::unique_ptr<AudioReader> open_libav(std::shared_ptr<const MappedFile> file);

// Error(invalid_argument, "audio") for a compressed or chunked file (Ogg, FLAC, MP3, AIFF, CAF,
// MP4, WebM) that is shorter than its parts say; a warning in the log where an end mark alone is
// missing.
void check_whole(const MappedFile& file);

// The mean of `channels` interleaved values per frame, summed in double.
void average_channels(std::span<const float> interleaved, int channels, std::span<float> mono);

// Tells the system that a mapped file's bytes before `position` have been consumed.
class ReadBehind {
 public:
  explicit ReadBehind(const MappedFile& file) : file_(file) {}
  void passed(size_t position);

 private:
  const MappedFile& file_;
  size_t released_ = 0;
};

}  // namespace speech::audio
