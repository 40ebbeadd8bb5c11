// NumPy's .npy files, versions 1 to 3. Format: numpy, numpy/lib/format.py.
#pragma once

#include <memory>
#include <string>

#include "formats/tensor_file.h"

namespace speech {

// One tensor, called "array"; Fortran order becomes strides.
class NpyFile : public TensorFile {
 public:
  // Errors: io, model_file. Little-endian bools, integers, floats and complex numbers are read.
  static std::shared_ptr<const NpyFile> open(const std::string& path);
  static std::shared_ptr<const NpyFile> parse(std::shared_ptr<const MappedFile> file);

  std::string_view format() const override { return "npy"; }
};

}  // namespace speech
