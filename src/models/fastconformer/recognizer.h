// A FastConformer model file as a Recognizer.
#pragma once

#include <memory>

#include "models/model.h"

namespace speech {
class GgufFile;
}

namespace speech::fastconformer {

ModelInfo read_info(const GgufFile& file);
std::unique_ptr<Model> load(std::shared_ptr<const GgufFile> file, const LoadParams& params);

}  // namespace speech::fastconformer
