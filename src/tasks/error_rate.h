// Word and character error rates: how texts are compared. The rules are those of speech-bench
// (docs/adr/0013 and 0015 there; its score.py is the reference of the tests).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace speech {

enum class TextUnit { word, character };

// By characters in Japanese, Korean and Chinese, by words in every other language. `language`: a
// tag
// ("ja", "en-US"); empty: words.
TextUnit unit_of_language(std::string_view language);

// A unit that is compared, and the bytes of the text that it comes from.
struct UnitOfText {
  std::string text;
  size_t begin = 0, end = 0;
};

// A text (UTF-8; invalid parts become U+FFFD) in the units in which it is compared.
// Words: NFKC, lower case, without apostrophes, other punctuation and symbols as spaces.
// Characters: grapheme clusters in NFKC and lower case, old kanji forms as those in use, without
// white space, apostrophes, punctuation and symbols, except marks that are read aloud: % and
// currencies, and . : ~ - / between two numerals.
std::vector<UnitOfText> units_of(std::string_view text, TextUnit unit);

// A stretch of a reference as it may be written: its pieces, each as written or as one of its
// readings, or, if it is bracketed, as one of other spellings, or not at all.
struct AcceptedPiece {
  std::string text;
  std::vector<std::string> readings = {};
};
struct AcceptedSegment {
  std::vector<AcceptedPiece> pieces = {};
  bool bracketed = false, optional = false;
  std::vector<std::string> spellings = {};
};

// Errors (substitutions, deletions, insertions at a cost of 1) and the length of the reference, so
// that rates can be summed over a set: its rate is the errors of all over the length of all.
struct ErrorCount {
  int64_t errors = 0, length = 0;
};

ErrorCount count_errors(std::string_view reference, std::string_view hypothesis, TextUnit unit);

// The errors against the closest of the accepted ways of writing `reference`, whose text the pieces
// give; characters are compared with katakana as hiragana. The length is that of the reference as
// written.
ErrorCount count_errors(std::string_view reference, std::span<const AcceptedSegment> segments,
                        std::string_view hypothesis, TextUnit unit);

// What is wrong with segments for a reference: their pieces do not give its text, or one ends
// inside a unit. Nothing: they are right.
std::optional<std::string> wrong_segments(std::string_view reference,
                                          std::span<const AcceptedSegment> segments, TextUnit unit);

}  // namespace speech
