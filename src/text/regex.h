// Regular expressions that come with models and fixtures: Perl's syntax (PCRE2) on UTF-8, with
// \d, \w, \b and case by Unicode's properties. Patterns and texts may be hostile: the length of
// both, the memory and the number of steps are bounded.
#pragma once

#include <memory>
#include <string_view>

namespace speech {

class Regex {
 public:
  static constexpr size_t longest_pattern = 1000;  // bytes
  static constexpr size_t longest_text = 8192;     // bytes

  // Error(invalid_argument) says what is wrong with the pattern, and at which byte.
  explicit Regex(std::string_view pattern);

  // Whether the pattern is found anywhere in the text; invalid UTF-8 counts as U+FFFD. The same
  // Regex may search in several threads. Error(out_of_range): the text is too long, or the search
  // takes more steps or memory than it may.
  bool search(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace speech
