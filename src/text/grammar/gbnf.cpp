// GBNF, llama.cpp's grammar notation.
#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "text/grammar/expr.h"
#include "text/utf8.h"

namespace speech::grammar {
namespace {

constexpr size_t max_text = 1 << 20;
constexpr int max_depth = 100;
constexpr int64_t max_count = 10000;

class GbnfParser {
 public:
  GbnfParser(std::string_view text, const FindToken& find_token)
      : text_(text), find_token_(find_token), rules_(std::make_shared<Rules>()) {}

  std::shared_ptr<Rules> run() {
    rule_of("root");
    space(true);
    while (!end()) {
      std::string name = rule_name();
      space(false);
      if (text_.substr(at_, 3) != "::=") error("expected '::='");
      at_ += 3;
      space(true);
      uint32_t id = rule_of(name);
      if (rules_->list[id].body) error(fmt::format("the rule '{}' is defined twice", name));
      ExprPtr body = alternatives(0);
      rules_->list[id].body = body;
      if (!end() && text_[at_] != '\n' && text_[at_] != '\r') {
        error(fmt::format("unexpected '{}'", text_[at_]));
      }
      space(true);
    }
    for (const Rule& rule : rules_->list) {
      if (!rule.body) {
        fail(Status::invalid_argument, "grammar: the rule '{}' is not defined", rule.name);
      }
    }
    return rules_;
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    fail(Status::invalid_argument, "grammar, line {}: {}", line, what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    fail(Status::unsupported, "grammar, line {}: {} is not supported", line, what);
  }
  bool end() const { return at_ >= text_.size(); }
  char now() const { return end() ? '\0' : text_[at_]; }

  void space(bool newlines) {
    while (!end()) {
      char c = text_[at_];
      if (c == '#') {
        while (!end() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string rule_name() {
    size_t begin = at_;
    while (!end() && name_char(text_[at_])) ++at_;
    if (at_ == begin) error(end() ? "expected a rule" : fmt::format("unexpected '{}'", now()));
    return std::string(text_.substr(begin, at_ - begin));
  }
  uint32_t rule_of(const std::string& name) {
    auto [it, is_new] = ids_.emplace(name, 0);
    if (is_new) it->second = rules_->add(name);
    return it->second;
  }

  // `depth` > 0: inside parentheses, where lines may break.
  ExprPtr alternatives(int depth) {
    if (depth > max_depth) error("nested too deeply");
    std::vector<ExprPtr> all{items(depth)};
    while (now() == '|') {
      ++at_;
      space(true);
      all.push_back(items(depth));
    }
    return choice(std::move(all));
  }

  ExprPtr items(int depth) {
    std::vector<ExprPtr> out;
    while (!end()) {
      char c = now();
      ExprPtr item;
      if (c == '"') {
        item = string();
      } else if (c == '[') {
        item = char_class();
      } else if (c == '.') {
        ++at_;
        item = chars({{0, 0x10FFFF}});
      } else if (c == '(') {
        ++at_;
        space(true);
        item = alternatives(depth + 1);
        if (now() != ')') error("expected ')'");
        ++at_;
      } else if (c == '<') {
        item = token_terminal();
      } else if (c == '!') {
        unsupported("a negated token");
      } else if (name_char(c)) {
        item = call(rule_of(rule_name()));
      } else {
        break;
      }
      space(depth > 0);
      out.push_back(quantified(std::move(item), depth));
    }
    return out.size() == 1 ? out[0] : sequence(std::move(out));
  }

  ExprPtr quantified(ExprPtr item, int depth) {
    int repeated = 0;
    while (true) {
      char c = now();
      int64_t min = 0, max = unbounded;
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        if (c == '+') min = 1;
        if (c == '?') max = 1;
      } else if (c == '{') {
        ++at_;
        space(false);
        min = max = number();
        space(false);
        if (now() == ',') {
          ++at_;
          space(false);
          max = now() == '}' ? unbounded : number();
          space(false);
        }
        if (now() != '}') error("expected '}'");
        ++at_;
        if (max != unbounded && max < min) error("a count with its larger number first");
      } else {
        return item;
      }
      if (++repeated > max_depth) error("nested too deeply");
      item = rules_->counted(item, min, max);
      space(depth > 0);
    }
  }

  int64_t number() {
    int64_t value = 0;
    auto [stop, status] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (status != std::errc() || value < 0) error("expected a count");
    if (value > max_count)
      error(fmt::format("a count of {}; at most {} is possible", value, max_count));
    at_ = static_cast<size_t>(stop - text_.data());
    return value;
  }

  uint32_t character() {
    if (now() != '\\') {
      CodePoint c = decode_utf8(text_, at_);
      if (!c.valid) error("invalid UTF-8");
      at_ += c.size;
      return c.value;
    }
    if (++at_ >= text_.size()) error("an escape without end");
    char c = text_[at_++];
    size_t digits = 0;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        digits = 2;
        break;
      case 'u':
        digits = 4;
        break;
      case 'U':
        digits = 8;
        break;
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint8_t>(c);
      default:
        error(fmt::format("an unknown escape '\\{}'", c));
    }
    uint32_t value = 0;
    const char* begin = text_.data() + at_;
    if (at_ + digits > text_.size() ||
        std::from_chars(begin, begin + digits, value, 16).ptr != begin + digits ||
        value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      error("an escape that is no character");
    }
    at_ += digits;
    return value;
  }

  ExprPtr string() {
    ++at_;
    std::string out;
    while (now() != '"') {
      if (end() || now() == '\n') error("a string without end");
      append_utf8(out, character());
    }
    ++at_;
    return literal(out);
  }

  ExprPtr char_class() {
    ++at_;
    bool negated = now() == '^';
    if (negated) ++at_;
    CharRanges ranges;
    while (now() != ']') {
      if (end()) error("a character class without end");
      uint32_t first = character(), last = first;
      if (now() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
        if (last < first) error("a range with its larger character first");
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    return chars(negated ? complement(ranges) : ranges);
  }

  ExprPtr token_terminal() {
    size_t close = text_.find('>', at_);
    if (close == std::string_view::npos) error("a token without '>'");
    std::string_view name = text_.substr(at_, close + 1 - at_);
    int32_t id = find_token_(name);
    if (id < 0) {
      error(fmt::format("'{}' is not an added token of this model (write other text in quotes)",
                        name));
    }
    at_ = close + 1;
    return token(id);
  }

  std::string_view text_;
  const FindToken& find_token_;
  size_t at_ = 0;
  std::shared_ptr<Rules> rules_;
  std::map<std::string, uint32_t> ids_;
};

}  // namespace

std::shared_ptr<Rules> parse_gbnf(std::string_view text, const FindToken& find_token) {
  if (text.size() > max_text) fail(Status::invalid_argument, "the grammar is too long");
  return GbnfParser(text, find_token).run();
}

}  // namespace speech::grammar
