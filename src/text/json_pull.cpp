#include "text/json_pull.h"

#include <charconv>
#include <cstring>

#include "base/error.h"
#include "text/utf8.h"

namespace speech {

void JsonPull::error(std::string_view what) const {
  fail(Status::model_file, "{} is not valid JSON at byte {}: {}", name_, position_, what);
}

void JsonPull::space() {
  auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (position_ < text_.size() && is_space(text_[position_])) ++position_;
}

char JsonPull::peek() {
  space();
  if (position_ >= text_.size()) error("it ends too early");
  return text_[position_];
}

void JsonPull::expect(char c) {
  if (peek() != c) error(fmt::format("expected '{}'", c));
  ++position_;
}

void JsonPull::enter(char open) {
  expect(open);
  first_ = true;
}

bool JsonPull::next(char close) {
  bool first = first_;
  first_ = false;
  if (peek() == close) {
    ++position_;
    return false;
  }
  if (!first) {
    expect(',');
    peek();
  }
  return true;
}

std::string_view JsonPull::key() {
  std::string_view k = string();
  expect(':');
  return k;
}

std::string_view JsonPull::string() {
  expect('"');
  size_t begin = position_;
  bool escaped = false;
  for (;; ++position_) {
    if (position_ >= text_.size()) error("a string without end");
    auto c = static_cast<uint8_t>(text_[position_]);
    if (c == '"') break;
    if (c < 0x20) error("a control character in a string");
    if (c == '\\') {
      escaped = true;
      if (++position_ >= text_.size()) error("a string without end");
    }
  }
  std::string_view raw = text_.substr(begin, position_ - begin);
  ++position_;
  if (!escaped) return raw;
  buffer_.clear();
  auto hex4 = [&](size_t at) {
    uint32_t value = 0;
    if (at + 4 > raw.size() ||
        std::from_chars(raw.data() + at, raw.data() + at + 4, value, 16).ptr !=
            raw.data() + at + 4) {
      error("a \\u escape without four hex digits");
    }
    return value;
  };
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      buffer_ += raw[i];
      continue;
    }
    switch (raw[++i]) {
      case 'n':
        buffer_ += '\n';
        break;
      case 't':
        buffer_ += '\t';
        break;
      case 'r':
        buffer_ += '\r';
        break;
      case 'b':
        buffer_ += '\b';
        break;
      case 'f':
        buffer_ += '\f';
        break;
      case '"':
      case '\\':
      case '/':
        buffer_ += raw[i];
        break;
      case 'u': {
        uint32_t c = hex4(i + 1);
        i += 4;
        if (c >= 0xD800 && c < 0xDC00 && raw.substr(i + 1, 2) == "\\u") {
          uint32_t second = hex4(i + 3);
          if (second >= 0xDC00 && second < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (second - 0xDC00);
            i += 6;
          }
        }
        if (c >= 0xD800 && c < 0xE000) error("half of a surrogate pair");
        append_utf8(buffer_, c);
        break;
      }
      default:
        error("an unknown escape in a string");
    }
  }
  return buffer_;
}

int64_t JsonPull::integer() {
  peek();
  int64_t value = 0;
  auto [end, status] =
      std::from_chars(text_.data() + position_, text_.data() + text_.size(), value);
  if (status != std::errc() ||
      (end < text_.data() + text_.size() && std::strchr(".eE", *end) && *end != '\0')) {
    error("expected an integer");
  }
  position_ = static_cast<size_t>(end - text_.data());
  return value;
}

void JsonPull::skip_value(int depth) {
  if (depth > 100) error("nested too deeply");
  char c = peek();
  if (c == '{' || c == '[') {
    char close = c == '{' ? '}' : ']';
    enter(c);
    while (next(close)) {
      if (c == '{') key();
      skip_value(depth + 1);
    }
  } else if (c == '"') {
    string();
  } else {
    while (position_ < text_.size() && !std::strchr(",]} \n\r\t", text_[position_])) ++position_;
  }
}

std::string_view JsonPull::skip() {
  peek();
  size_t begin = position_;
  skip_value(0);
  if (position_ == begin) error("expected a value");
  return text_.substr(begin, position_ - begin);
}

void JsonPull::finish() {
  space();
  if (position_ != text_.size()) error("more after the end");
}

}  // namespace speech
