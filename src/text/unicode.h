// Character classes and normalization as the official tokenizers (tokenizers 0.22) have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speech {

enum class CharClass : uint8_t { other, letter, number, space };

// \p{L}, \p{N}, \s (disjoint) by Unicode 16, everything else `other`.
CharClass char_class(uint32_t code_point);

// Unicode NFC of valid UTF-8 by the tables of the official normalizer, which are older than the
// classes: later characters are left as they are.
std::string nfc(std::string_view text);

// Unicode NFKC of valid UTF-8, by the same tables.
std::string nfkc(std::string_view text);

// The general category of a code point in two letters: "Lu", "Mn", "Po" ("Cn": not assigned).
std::string_view general_category(uint32_t code_point);

// Each character in lower case by Unicode's one-to-one mapping, for comparing without regard to
// case. Invalid UTF-8 becomes U+FFFD.
std::string lower_case(std::string_view text);

}  // namespace speech
