#include "formats/safetensors.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return speech::fuzz::parse<speech::SafetensorsFile>(data, size);
}
