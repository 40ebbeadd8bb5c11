// `speech convert`: an official checkpoint written as the F32 GGUF file of its family.
#pragma once

#include <span>
#include <string>

#include "models/file_plan.h"
#include "models/model.h"
#include "models/registry.h"

namespace speech {

// What convert() would write, without writing. `known`: families().
FilePlan plan_convert(std::span<const Family> known, const std::string& source_path,
                      const std::string& out_path, const ConvertOptions& options);

// Opens `source_path` (open_tensor_file), asks the families whose it is, and lets that one write
// `out_path`. An existing file is replaced at the end; a failed or stopped run leaves nothing
// behind. Errors: invalid_argument (out_path), model_file (source_path: unreadable, no family's, or
// not as the family wants it), unsupported (extra_heads, rate: not a choice of this checkpoint),
// io, cancelled.
FilePlan convert(std::span<const Family> known, const std::string& source_path,
                 const std::string& out_path, const ConvertOptions& options,
                 const Control& control);

}  // namespace speech
