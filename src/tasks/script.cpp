#include "tasks/script.h"

#include <algorithm>
#include <array>
#include <span>

#include "text/utf8.h"

namespace speech {
namespace {

struct Range {
  uint32_t first, last;
};

constexpr std::array kWhitespace = {
    Range{0x09, 0x0D},     Range{0x1C, 0x20},     Range{0x85, 0x85},     Range{0xA0, 0xA0},
    Range{0x1680, 0x1680}, Range{0x2000, 0x200A}, Range{0x2028, 0x2029}, Range{0x202F, 0x202F},
    Range{0x205F, 0x205F}, Range{0x3000, 0x3000},
};
constexpr std::array kUnspaced = {
    Range{0x2E80, 0x2FDF}, Range{0x3000, 0x30FF},   Range{0x31F0, 0x33FF},
    Range{0x3400, 0x4DBF}, Range{0x4E00, 0x9FFF},   Range{0xF900, 0xFAFF},
    Range{0xFF00, 0xFFEF}, Range{0x1AFF0, 0x1B16F}, Range{0x20000, 0x323AF},
};
constexpr std::array<uint32_t, 15> kClosingMarks = {'.',    ',',    ';',    ':',    '?',
                                                    '!',    0x2026, 0x3001, 0x3002, 0xFF01,
                                                    0xFF0C, 0xFF0E, 0xFF1A, 0xFF1B, 0xFF1F};

bool in(std::span<const Range> ranges, uint32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range& range) { return range.first <= c && c <= range.last; });
}

bool is_closing_mark(uint32_t c) {
  return std::find(kClosingMarks.begin(), kClosingMarks.end(), c) != kClosingMarks.end();
}

// Part of a word of a script with spaces; ASCII punctuation counts.
bool is_word(uint32_t c) {
  return !is_whitespace(c) && !is_unspaced(c);
}

std::vector<CodePoint> decode(std::string_view text) {
  std::vector<CodePoint> out;
  for (size_t i = 0; i < text.size(); i += out.back().size) out.push_back(decode_utf8(text, i));
  return out;
}

}  // namespace

bool is_whitespace(uint32_t code_point) {
  return in(kWhitespace, code_point);
}

bool is_unspaced(uint32_t code_point) {
  return in(kUnspaced, code_point);
}

bool needs_space(std::string_view before, std::string_view after) {
  if (before.empty() || after.empty()) return false;
  CodePoint last;
  for (size_t i = 0; i < before.size(); i += last.size) last = decode_utf8(before, i);
  CodePoint first = decode_utf8(after, 0);
  return last.valid && first.valid && is_word(last.value) && is_word(first.value);
}

std::string agreed_text(std::string_view earlier, std::string_view later) {
  std::vector<CodePoint> a = decode(earlier), b = decode(later);
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n].value == b[n].value && a[n].valid && b[n].valid) ++n;
  const bool ends = n == b.size();
  auto word_at = [](const std::vector<CodePoint>& text, size_t i) {
    return i < text.size() && is_word(text[i].value);
  };
  if (n > 0 && is_word(b[n - 1].value) && (word_at(a, n) || word_at(b, n))) {
    while (n > 0 && is_word(b[n - 1].value)) --n;  // the border cuts a word
  }
  if (ends) {
    // All of the later reading: its last word and mark may be artefacts of where the audio ends.
    auto mark = [&](size_t i) { return is_closing_mark(b[i].value) || is_whitespace(b[i].value); };
    while (n > 0 && mark(n - 1)) --n;
    while (n > 0 && !mark(n - 1)) --n;
  }
  size_t bytes = 0;
  for (size_t i = 0; i < n; ++i) bytes += b[i].size;
  return std::string(later.substr(0, bytes));
}

}  // namespace speech
