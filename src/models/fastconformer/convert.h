// Writing official checkpoints as GGUF files of layout 2, F32.
#pragma once

#include "models/registry.h"

namespace speech::fastconformer {

// A .nemo archive of a NeMo recognizer, or a folder of a parakeet model of transformers.
bool recognizes(const std::string& source_path, const TensorFile& source);
// Error(model_file) for a checkpoint of another class, or one that uses what the layout cannot
// hold; the message names it.
void convert(const std::string& source_path, const TensorFile& source,
             const ConvertOptions& options, GgufWriter& writer, OutputFile& out);

}  // namespace speech::fastconformer
