// What a model file holds, as text and as JSON: `speech info FILE`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "formats/tensor_file.h"

namespace speech {

// {"file", "format", "tensor_count", "parameters", "tensor_bytes", "identity": {...}, "tensors":
// [{"name", "type", "shape", "bytes"}, ...], and with `metadata` "meta": {...}}. identity: of GGUF
// the keys general.*, of .nemo the members' sizes, of the others the file's own few words about
// itself. Texts that are not UTF-8 have U+FFFD in place of what is wrong.
nlohmann::ordered_json describe_json(const TensorFile& file, bool metadata);

// The same for reading, with a newline at the end; long arrays and texts are shortened.
std::string describe_text(const TensorFile& file, bool metadata);

}  // namespace speech
