#include "models/fastconformer/text.h"

#include <utf8proc.h>

#include <algorithm>

namespace speech::fastconformer {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// Bytes of the character that `text` begins with (1 for a byte that is no UTF-8).
size_t character_size(std::string_view text, int32_t* code = nullptr) {
  utf8proc_int32_t c = -1;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &c);
  if (code) *code = c;
  return n > 0 ? static_cast<size_t>(n) : 1;
}

// What Python's regular expression \s matches.
bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string_view first_character(std::string_view text) {
  return text.empty() ? text : text.substr(0, character_size(text));
}

std::string_view last_character(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && (static_cast<unsigned char>(text[--at]) & 0xc0) == 0x80) {
  }
  return text.substr(at);
}

}  // namespace

std::string Detokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  bool strip = config_.strip_leading_space;
  for (int32_t id : ids) {
    if (id == config_.unknown_id) {
      text += config_.unknown_surface;
      strip = false;
      continue;
    }
    std::string_view piece = config_.pieces[static_cast<size_t>(id)];
    if (strip && piece.starts_with(kSpaceMark)) {
      piece.remove_prefix(kSpaceMark.size());
      strip = false;
    }
    for (size_t at; (at = piece.find(kSpaceMark)) != piece.npos;) {
      text.append(piece.substr(0, at)).append(" ");
      piece.remove_prefix(at + kSpaceMark.size());
    }
    text += piece;
    strip = strip && text.empty();
  }
  return text;
}

bool Detokenizer::is_mark(std::string_view text) const {
  return std::binary_search(config_.punctuation.begin(), config_.punctuation.end(), text);
}

std::string Detokenizer::text(std::span<const int32_t> ids) const {
  const std::string raw = decode(ids);
  std::string out;
  for (std::string_view rest = raw; !rest.empty();) {
    int32_t code;
    size_t size = character_size(rest, &code);
    if (is_space(code)) {
      const std::string_view next = first_character(rest.substr(size));
      if (!next.empty() && is_mark(next)) {  // the space is left out, the mark is used up
        out += next;
        rest.remove_prefix(size + next.size());
        continue;
      }
    }
    out += rest.substr(0, size);
    rest.remove_prefix(size);
  }
  return out;
}

Spans Detokenizer::spans(std::span<const Emission> tokens, SpanRule rule) const {
  Spans out;
  for (const Emission& token : tokens) {
    Span span{decode({&token.id, 1}), token.start, token.end};
    // A mark takes no time: TDT puts it at the end of the token before, CTC ends it at its start.
    if (!out.tokens.empty() && rule == SpanRule::tdt && is_mark(span.text)) {
      span.start = span.end = out.tokens.back().end;
    }
    if (!out.tokens.empty() && rule == SpanRule::ctc && is_mark(first_character(span.text))) {
      span.end = span.start;
    }
    out.tokens.push_back(std::move(span));
  }
  out.words = words(tokens, out.tokens);
  out.segments = segments(out.words);
  return out;
}

std::vector<Span> Detokenizer::words(std::span<const Emission> tokens,
                                     std::span<const Span> spans) const {
  std::vector<Span> words;
  std::vector<int32_t> open;  // pieces of the word that is being built
  int64_t start = 0;          // its first frame
  const auto close = [&](int64_t end) { words.push_back({decode(open), start, end}); };

  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& piece = config_.pieces[static_cast<size_t>(tokens[i].id)];
    const std::string& text = spans[i].text;
    const bool mark = is_mark(text) && text != " ";
    bool starts = !mark && piece != text;  // it has a space mark, or is unknown
    if (!mark && !starts && text == " ") {
      const auto next =
          std::find_if(spans.begin() + static_cast<std::ptrdiff_t>(i) + 1, spans.end(),
                       [](const Span& s) { return !s.text.empty() && s.text != " "; });
      starts = next == spans.end() || !is_mark(next->text);
    }
    if (starts) {
      if (!open.empty()) close(spans[i - 1].end);
      open.clear();
      if (text != " ") {
        open.push_back(tokens[i].id);
        start = spans[i].start;
      }
    } else if (mark && open.empty() && !words.empty()) {
      Span& last = words.back();
      if (last.text.ends_with(' ')) last.text.pop_back();
      last.text += text;
      last.end = spans[i].end;
    } else {
      if (mark && !open.empty()) {
        const std::string& before = config_.pieces[static_cast<size_t>(open.back())];
        if (before == " " || before == "_" || before == kSpaceMark) open.pop_back();
      } else if (open.empty()) {
        start = spans[i].start;
      }
      open.push_back(tokens[i].id);
    }
  }
  if (!words.empty()) words.front().start = spans.front().start;
  if (!open.empty()) {
    if (words.empty()) start = spans.front().start;
    close(spans.back().end);
  }
  return words;
}

std::vector<Span> Detokenizer::segments(std::span<const Span> words) const {
  std::vector<Span> segments;
  bool open = false;
  for (const Span& word : words) {
    if (open) {
      segments.back().text += ' ' + word.text;
      segments.back().end = word.end;
    } else {
      segments.push_back(word);
    }
    const auto separates = [&](std::string_view text) {
      return std::find(config_.separators.begin(), config_.separators.end(), text) !=
             config_.separators.end();
    };
    open = !(separates(last_character(word.text)) || separates(word.text));
  }
  return segments;
}

}  // namespace speech::fastconformer
