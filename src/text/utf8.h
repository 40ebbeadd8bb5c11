// UTF-8: decoding that survives any bytes, in the way of Python's errors="replace".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speech {

inline constexpr uint32_t replacement_character = 0xFFFD;

struct CodePoint {
  uint32_t value = 0;  // replacement_character when !valid
  uint32_t size = 0;   // bytes read, at least 1
  bool valid = false;
  bool cut = false;  // !valid because the text ends inside a sequence that was right so far
};

// The code point at text[position]; position < text.size(). An invalid part is taken as long as it
// is the start of a valid sequence ("maximal subpart", one U+FFFD each).
CodePoint decode_utf8(std::string_view text, size_t position);

// Appends one code point (at most 0x10FFFF, no surrogate).
void append_utf8(std::string& out, uint32_t code_point);

// The text with each maximal invalid part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Puts text together from pieces that may end inside a character.
class Utf8Stream {
 public:
  // The text that is complete after these bytes.
  std::string push(std::string_view bytes);
  // What is left becomes one U+FFFD, or nothing if nothing is left.
  std::string finish();
  // Bytes of an incomplete character that wait for the rest (at most 3).
  const std::string& pending() const { return pending_; }

 private:
  std::string pending_;
};

}  // namespace speech
