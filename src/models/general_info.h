// The metadata keys that every GGUF model file has, whatever its family.
#pragma once

#include "formats/gguf.h"
#include "models/model.h"

namespace speech {

// Reads and checks the general.* and speech.* keys: architecture, names, source, weight type (which
// must be the type that holds most bytes), layout, task, sample rate, languages and sizes. Options
// are the family's. Error(model_file) naming the key, what was expected and what was found.
ModelInfo read_general_info(const GgufFile& file, Task task);

// The file's layout, from 1 to `newest`. Error(model_file) for another, with the release that the
// file requires, and for a file without one.
uint32_t check_layout(const GgufFile& file, uint32_t newest);

}  // namespace speech
