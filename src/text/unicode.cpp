#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace speech {
namespace {

struct Range {
  uint32_t first, last;
};

#include "text/unicode_tables.inc"

bool contains(std::span<const Range> ranges, uint32_t c) {
  auto next = std::upper_bound(ranges.begin(), ranges.end(), c,
                               [](uint32_t value, const Range& r) { return value < r.first; });
  return next != ranges.begin() && c <= std::prev(next)->last;
}

// Classes of the first two planes, where nearly all text lies.
const std::vector<CharClass>& class_table() {
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> t(0x20000, CharClass::other);
    auto fill = [&](std::span<const Range> ranges, CharClass value) {
      for (const Range& r : ranges) {
        for (uint32_t c = r.first; c <= r.last && c < t.size(); ++c) t[c] = value;
      }
    };
    fill(letter_ranges, CharClass::letter);
    fill(number_ranges, CharClass::number);
    fill(space_ranges, CharClass::space);
    return t;
  }();
  return table;
}

// Puts runs of combining marks in canonical order. utf8proc would do that too, but takes quadratic
// time, which long runs in hostile text must not get.
std::string order_marks(std::string_view text) {
  std::string out;
  std::vector<std::pair<int, uint32_t>> run;
  auto flush = [&] {
    std::stable_sort(run.begin(), run.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& mark : run) append_utf8(out, mark.second);
    run.clear();
  };
  for (size_t i = 0; i < text.size();) {
    CodePoint c = decode_utf8(text, i);
    int combining = utf8proc_get_property(static_cast<int32_t>(c.value))->combining_class;
    if (combining == 0) {
      flush();
      append_utf8(out, c.value);
    } else {
      run.emplace_back(combining, c.value);
    }
    i += c.size;
  }
  flush();
  return out;
}

void append_composed(std::string& out, std::string_view unordered, int form) {
  if (unordered.empty()) return;
  std::string text = order_marks(unordered);
  utf8proc_uint8_t* mapped = nullptr;
  utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | form));
  if (size < 0) {
    fail(Status::invalid_argument, "text cannot be normalized: {}", utf8proc_errmsg(size));
  }
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
}

// NFC, or NFKC with `form` UTF8PROC_COMPAT. Bytes below `plain` are in that form already.
std::string normalized(std::string_view text, int form, uint8_t plain) {
  bool simple = std::all_of(text.begin(), text.end(),
                            [&](char c) { return static_cast<uint8_t>(c) < plain; });
  if (simple) return std::string(text);
  std::string out;
  out.reserve(text.size());
  // A character that the tables do not know neither moves nor composes, so text can be cut there;
  // neither does U+11A7, which utf8proc 2.8 takes for an (empty) final consonant of Hangul.
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    CodePoint c = decode_utf8(text, i);
    if (c.value == 0x11A7 || (c.value >= late_ranges[0].first && contains(late_ranges, c.value))) {
      append_composed(out, text.substr(begin, i - begin), form);
      out.append(text, i, c.size);
      begin = i + c.size;
    }
    i += c.size;
  }
  append_composed(out, text.substr(begin), form);
  return out;
}

}  // namespace

CharClass char_class(uint32_t c) {
  const std::vector<CharClass>& table = class_table();
  if (c < table.size()) return table[c];
  return contains(letter_ranges, c)   ? CharClass::letter
         : contains(number_ranges, c) ? CharClass::number
                                      : CharClass::other;
}

std::string nfc(std::string_view text) {
  return normalized(text, 0, 0xCC);  // below U+0300 everything is composed
}

std::string nfkc(std::string_view text) {
  return normalized(text, UTF8PROC_COMPAT, 0x80);
}

std::string_view general_category(uint32_t code_point) {
  return utf8proc_category_string(static_cast<int32_t>(code_point));
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    CodePoint c = decode_utf8(text, i);
    append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(c.value))));
    i += c.size;
  }
  return out;
}

}  // namespace speech
