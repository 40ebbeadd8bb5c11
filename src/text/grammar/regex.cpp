// The regular expressions of JSON schema's `pattern`, as far as they are regular.
#include <charconv>
#include <optional>

#include "base/error.h"
#include "text/grammar/expr.h"
#include "text/utf8.h"

namespace speech::grammar {
namespace {

constexpr int max_depth = 100;
constexpr int64_t max_count = 1000;

const CharRanges digits = {{'0', '9'}};
const CharRanges word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharRanges blank = {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680},
                          {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                          {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

class RegexParser {
 public:
  RegexParser(std::string_view text, const std::function<ExprPtr(CharRanges)>& encode)
      : text_(text), encode_(encode) {}

  // Anchors stand at the ends of a top-level alternative only.
  ExprPtr run() {
    std::vector<ExprPtr> all;
    do {
      ExprPtr any = repeat(encode_(complement({})), 0, unbounded);
      std::vector<ExprPtr> parts;
      if (!accept('^')) parts.push_back(any);
      parts.push_back(terms(0));
      if (!accept('$')) parts.push_back(any);
      all.push_back(sequence(std::move(parts)));
    } while (accept('|'));
    if (at_ < text_.size()) error(fmt::format("'{}' at this place", text_[at_]));
    return choice(std::move(all));
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    fail(Status::unsupported, "JSON schema: pattern \"{}\": {} (at {}) is not supported", text_,
         what, at_);
  }
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(char c) { return at_ < text_.size() && text_[at_] == c && (++at_, true); }

  ExprPtr group(int depth) {
    if (depth > max_depth) error("such deep nesting");
    std::vector<ExprPtr> all;
    do all.push_back(terms(depth));
    while (accept('|'));
    return choice(std::move(all));
  }

  ExprPtr terms(int depth) {
    std::vector<ExprPtr> out;
    while (at_ < text_.size() && now() != '|' && now() != ')' && now() != '$') {
      out.push_back(quantified(atom(depth)));
    }
    return sequence(std::move(out));
  }

  ExprPtr atom(int depth) {
    if (accept('(')) {
      if (accept('?') && !accept(':')) error("a group of this kind");
      ExprPtr inner = group(depth + 1);
      if (!accept(')')) error("a group without ')'");
      return inner;
    }
    if (accept('.')) return encode_(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    if (accept('[')) return char_class();
    if (std::string_view("*+?{}^]").find(now()) != std::string_view::npos) {
      error(fmt::format("'{}' at this place", now()));
    }
    return encode_(character(false));
  }

  // One character, or the class of an escape.
  CharRanges character(bool in_class) {
    if (!accept('\\')) {
      CodePoint c = decode_utf8(text_, at_);
      if (!c.valid) error("invalid UTF-8");
      at_ += c.size;
      return {{c.value, c.value}};
    }
    if (at_ >= text_.size()) error("a lone '\\'");
    char c = text_[at_++];
    auto one = [](uint32_t value) { return CharRanges{{value, value}}; };
    size_t size = 0;
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return complement(digits);
      case 'w':
        return word;
      case 'W':
        return complement(word);
      case 's':
        return blank;
      case 'S':
        return complement(blank);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'b':
        if (in_class) return one('\b');
        break;
      case 'x':
        size = 2;
        break;
      case 'u':
        size = 4;
        break;
      default:
        if (std::string_view("\\/^$.*+?()[]{}|-\"'#%&,:;<=>@_`~! ").find(c) !=
            std::string_view::npos) {
          return one(static_cast<uint8_t>(c));
        }
    }
    uint32_t value = 0;
    const char* begin = text_.data() + at_;
    if (size == 0 || at_ + size > text_.size() ||
        std::from_chars(begin, begin + size, value, 16).ptr != begin + size ||
        (value >= 0xD800 && value < 0xE000)) {
      error(fmt::format("the escape '\\{}'", c));
    }
    at_ += size;
    return one(value);
  }

  ExprPtr char_class() {
    bool negated = accept('^');
    CharRanges ranges;
    while (!accept(']')) {
      if (at_ >= text_.size()) error("a class without ']'");
      CharRanges first = character(true);
      bool range = now() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (range) {
        ++at_;
        CharRanges last = character(true);
        if (first.size() != 1 || last.size() != 1 || last[0].first != last[0].second ||
            last[0].first < first[0].first) {
          error("a range of this kind");
        }
        first[0].second = last[0].first;
      }
      ranges.insert(ranges.end(), first.begin(), first.end());
    }
    return encode_(negated ? complement(ranges) : normalize(ranges));
  }

  ExprPtr quantified(ExprPtr item) {
    int64_t min = 0, max = unbounded;
    if (accept('*')) {
    } else if (accept('+')) {
      min = 1;
    } else if (accept('?')) {
      max = 1;
    } else if (accept('{')) {
      min = max = number();
      if (accept(',')) max = now() == '}' ? unbounded : number();
      if (!accept('}')) error("a count without '}'");
      if (max != unbounded && max < min) error("a count with its larger number first");
    } else {
      return item;
    }
    if (std::string_view("*+?{").find(now()) != std::string_view::npos && at_ < text_.size()) {
      error("a quantifier behind a quantifier");
    }
    return repeat(std::move(item), min, max);
  }

  int64_t number() {
    int64_t value = -1;
    auto stop = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value).ptr;
    at_ = static_cast<size_t>(stop - text_.data());
    if (value < 0 || value > max_count) error("this count");
    return value;
  }

  std::string_view text_;
  const std::function<ExprPtr(CharRanges)>& encode_;
  size_t at_ = 0;
};

}  // namespace

ExprPtr parse_regex(std::string_view pattern, const std::function<ExprPtr(CharRanges)>& encode) {
  return RegexParser(pattern, encode).run();
}

}  // namespace speech::grammar
