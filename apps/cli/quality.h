// speech bench --quality.
#pragma once

#include <string>
#include <vector>

#include "command.h"

namespace speech::cli {

struct QualityArguments {
  std::string manifest;
  std::vector<std::string> models, decodings;  // no decodings: each model's default
  std::string format;                          // "text", "json", "md"
  LoadSettings load;
};

// Measures every model with every decoding and prints the table; the exit code.
int measure_quality(const QualityArguments& arguments);

}  // namespace speech::cli
