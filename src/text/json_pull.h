// A small pull parser for large JSON files of which most is strings: no tree, no copies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speech {

// Errors: Error(model_file) "NAME is not valid JSON at byte N: ...".
class JsonPull {
 public:
  JsonPull(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  // The first character of the next value: '{', '[', '"', 't', 'f', 'n', '-' or a digit.
  char peek();
  // After enter('{') or enter('['): next() is true as long as there is another member or element.
  void enter(char open);
  bool next(char close);
  // The key of the next member, and its colon. The view holds until the next string is read.
  std::string_view key();
  std::string_view string();
  int64_t integer();
  // Passes over a value and gives its text.
  std::string_view skip();
  // Only white space is left.
  void finish();

  [[noreturn]] void error(std::string_view what) const;

 private:
  void space();
  void expect(char c);
  void skip_value(int depth);

  std::string_view text_;
  std::string name_;
  size_t position_ = 0;
  bool first_ = false;
  std::string buffer_;  // a string with escapes, decoded
};

}  // namespace speech
