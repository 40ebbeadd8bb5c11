// Ogg, MP3, AIFF, CAF, MP4 and WebM files of any bytes: whole, or an Error that blames the audio.
#include "audio/read_formats.h"
#include "base/error.h"
#include "base/log.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  speech::set_log_sink([](speech::LogLevel, std::string_view) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = speech::MappedFile::from_memory(std::as_bytes(std::span(data, size)));
  try {
    speech::audio::check_whole(*file);
  } catch (const speech::Error& error) {
    if (error.option() != "audio") throw;
  }
  return 0;
}
