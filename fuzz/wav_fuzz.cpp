// WAVE files of any bytes: an Error or samples, nothing else. (What libsndfile and libav read is
// left to their own fuzzers.)
#include <vector>

#include "audio/read_formats.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = speech::MappedFile::from_memory(std::as_bytes(std::span(data, size)));
  try {
    auto reader = speech::audio::open_wav(file);
    if (!reader) return 0;
    std::vector<float> block(257);
    while (reader->read(block) == block.size()) {
    }
  } catch (const speech::Error&) {
  }
  return 0;
}
