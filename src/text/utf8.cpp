#include "text/utf8.h"

namespace speech {

CodePoint decode_utf8(std::string_view text, size_t position) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint32_t first = byte(position);
  if (first < 0x80) return {first, 1, true, false};
  int length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4) return {replacement_character, 1, false, false};
  // The second byte's range rules out overlong forms, surrogates and what is past U+10FFFF.
  uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  uint32_t value = first & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (position + i >= text.size()) {
      return {replacement_character, static_cast<uint32_t>(i), false, true};
    }
    uint8_t next = byte(position + i);
    if (next < low || next > high) {
      return {replacement_character, static_cast<uint32_t>(i), false, false};
    }
    value = value << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {value, static_cast<uint32_t>(length), true, false};
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      out += static_cast<char>(0xE0 | c >> 12);
    } else {
      out += static_cast<char>(0xF0 | c >> 18);
      out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    }
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
  }
  out += static_cast<char>(0x80 | (c & 0x3F));
}

namespace {

// Appends text to `out` with invalid parts replaced; stops before a sequence that the end cuts off
// and returns where it stopped.
size_t append_valid(std::string& out, std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    CodePoint c = decode_utf8(text, position);
    if (c.cut) break;
    if (c.valid) {
      out.append(text, position, c.size);
    } else {
      append_utf8(out, replacement_character);
    }
    position += c.size;
  }
  return position;
}

}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (append_valid(out, text) < text.size()) append_utf8(out, replacement_character);
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  pending_.erase(0, append_valid(out, pending_));
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  if (!pending_.empty()) append_utf8(out, replacement_character);
  pending_.clear();
  return out;
}

}  // namespace speech
