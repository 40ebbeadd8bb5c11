// How deep a JSON text nests, before it is parsed.
#pragma once

#include <string_view>

namespace speech {

// Whether objects and lists nest more than `depth` deep. One pass over the text, which need not be
// valid JSON: brackets are counted wherever they stand outside strings.
inline bool json_nests_deeper(std::string_view text, int depth) {
  int open = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++open > depth) return true;
    } else if (c == '}' || c == ']') {
      --open;
    }
  }
  return false;
}

}  // namespace speech
