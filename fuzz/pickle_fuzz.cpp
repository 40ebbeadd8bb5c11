#include "formats/torch_file.h"
#include "formats/zip_builder.h"
#include "fuzz.h"

// The input is the pickle of an archive with one storage.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string pickle(reinterpret_cast<const char*>(data), size);
  std::string archive = speech::testing::ZipBuilder()
                            .add("m/data.pkl", pickle)
                            .add("m/data/0", std::string(64, '\1'))
                            .build();
  return speech::fuzz::parse<speech::TorchFile>(reinterpret_cast<const uint8_t*>(archive.data()),
                                                archive.size());
}
