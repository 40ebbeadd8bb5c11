// Questions about the characters at the edges of texts, for joining and for partial text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace speech {

// Whitespace as Python's str.isspace() has it.
bool is_whitespace(uint32_t code_point);
// Scripts written without spaces between words: Han, Hiragana, Katakana with their radicals,
// symbols, punctuation and full-width forms. Hangul and Thai are not among them.
bool is_unspaced(uint32_t code_point);

// Whether a space belongs between two texts: both have characters, and neither the last of the one
// nor the first of the other is whitespace, of an unspaced script, or ill-formed.
bool needs_space(std::string_view before, std::string_view after);

// The beginning of a growing transcript that two readings in a row agree on, cut back so that
// neither a word nor a closing mark that the cut of the audio made up is in it.
std::string agreed_text(std::string_view earlier, std::string_view later);

}  // namespace speech
