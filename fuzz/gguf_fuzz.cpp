#include "formats/gguf.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return speech::fuzz::parse<speech::GgufFile>(data, size);
}
