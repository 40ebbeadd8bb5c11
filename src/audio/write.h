// WAVE files of 16-bit mono PCM.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace speech {

// Writes a file piece by piece; it appears under its name in commit(). A sample x becomes
// clamp(round(32768 x), -32768, 32767), halves away from zero. Errors: Error(io);
// Error(invalid_argument, "audio") for a sample that is not finite or audio over 4 GiB.
class WavWriter {
 public:
  WavWriter(std::string path, int rate);
  void write(std::span<const float> samples);
  void commit();

 private:
  OutputFile file_;
  int rate_;
};

void write_wav(const std::string& path, std::span<const float> samples, int rate);

}  // namespace speech
