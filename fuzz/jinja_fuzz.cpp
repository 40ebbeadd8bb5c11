// A template and the variables that it is rendered with, separated by a NUL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/jinja/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t cut = std::min(text.find('\0'), size);
  nlohmann::ordered_json variables =
      nlohmann::ordered_json::parse(text.substr(std::min(cut + 1, size)), nullptr, false);
  if (!variables.is_object()) variables = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  try {
    speech::MarkedText out = speech::JinjaTemplate(text.substr(0, cut)).render(variables);
    if (out.text.size() != out.marks.size()) __builtin_trap();
  } catch (const speech::Error&) {
  }
  return 0;
}
