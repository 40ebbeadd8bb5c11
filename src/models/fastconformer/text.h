// From piece ids to text, and from frames to times, as NeMo does both.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/fastconformer/config.h"

namespace speech::fastconformer {

// A token and the encoder frames [start, end) that it is heard in.
struct Emission {
  int32_t id = 0;
  int64_t start = 0, end = 0;
  double log_probability = 0;
};

struct Span {
  std::string text;
  int64_t start = 0, end = 0;  // frames
};

// What NeMo changes in the spans of tokens depends on the decoder that found them.
enum class SpanRule { tdt, rnnt, ctc };

struct Spans {
  std::vector<Span> tokens, words, segments;
};

// The text side of a model. Keeps a reference to the configuration.
class Detokenizer {
 public:
  explicit Detokenizer(const TextConfig& config) : config_(config) {}

  // SentencePiece's decoding: U+2581 is a space, one leading one is dropped, the unknown piece has
  // a surface of its own.
  std::string decode(std::span<const int32_t> ids) const;
  // The text of a whole transcript: decode(), and no space before a punctuation mark.
  std::string text(std::span<const int32_t> ids) const;
  // Spans of tokens, words and segments (NeMo, timestamp_utils.py).
  Spans spans(std::span<const Emission> tokens, SpanRule rule) const;

 private:
  bool is_mark(std::string_view text) const;  // one of the punctuation characters
  std::vector<Span> words(std::span<const Emission> tokens, std::span<const Span> spans) const;
  std::vector<Span> segments(std::span<const Span> words) const;

  const TextConfig& config_;
};

}  // namespace speech::fastconformer
