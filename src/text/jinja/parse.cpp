#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "text/jinja/node.h"
#include "text/utf8.h"

namespace speech::jinja {
namespace {

constexpr int max_depth = 200;  // of the tree: bounds the recursion of parser and renderer
constexpr size_t max_source = 1 << 20;

struct Token {
  enum Type {
    end,
    plain,
    open_output,
    close_output,
    open_block,
    close_block,
    name,
    string,
    integer,
    real,
    op
  } type = end;
  std::string text;
  int line = 0;
};

// Splits the source into text and the tokens inside {{ }} and {% %}.
class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    // Line ends become "\n", and the last one is dropped.
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (position_ < source_.size()) {
      size_t open = next_open();
      std::string text = source_.substr(position_, open - position_);
      if (open == source_.size()) {
        add_text(text);
        break;
      }
      char kind = source_[open + 1];
      char modifier = open + 2 < source_.size() ? source_[open + 2] : '\0';
      if (modifier == '-') {
        text.erase(text.find_last_not_of(" \t\n\v\f\r") + 1);
      } else if (modifier != '+' && kind != '{') {
        // lstrip_blocks: blanks between the line's start and a block go.
        size_t line = text.rfind('\n') + 1;  // 0 if there is none
        if ((line > 0 || line_start_) &&
            text.find_first_not_of(" \t\v\f", line) == std::string::npos) {
          text.erase(line);
        }
      }
      add_text(text);
      for (size_t i = position_; i < open; ++i) line_ += source_[i] == '\n';
      position_ = open + 2 + (modifier == '-' || modifier == '+' ? 1 : 0);
      if (kind == '#') {
        size_t close = source_.find("#}", position_);
        if (close == std::string::npos) error("a comment without end");
        for (size_t i = position_; i < close; ++i) line_ += source_[i] == '\n';
        char before = source_[close - 1];
        position_ = close + 2;
        after_tag(close > open + 2 ? before : '\0', true);
      } else {
        inside(kind == '{');
      }
    }
    tokens_.push_back({Token::end, "", line_});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string_view what) const {
    fail(Status::model_file, "chat template, line {}: {}", line_, what);
  }

  size_t next_open() const {
    for (size_t i = position_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return source_.size();
  }

  void add_text(const std::string& text) {
    if (!text.empty()) tokens_.push_back({Token::plain, text, line_});
  }

  // `modifier`: the '-' or '+' in front of the closing bracket.
  void after_tag(char modifier, bool block) {
    size_t begin = position_;
    if (modifier == '-') {
      while (position_ < source_.size() &&
             std::string_view(" \t\n\v\f\r").find(source_[position_]) != std::string_view::npos) {
        ++position_;
      }
    } else if (block && modifier != '+' && position_ < source_.size() &&
               source_[position_] == '\n') {
      ++position_;  // trim_blocks
    }
    for (size_t i = begin; i < position_; ++i) line_ += source_[i] == '\n';
    line_start_ = position_ > begin && source_[position_ - 1] == '\n';
  }

  void inside(bool output) {
    tokens_.push_back({output ? Token::open_output : Token::open_block, "", line_});
    std::string brackets;
    while (true) {
      while (position_ < source_.size() &&
             std::string_view(" \t\n\v\f\r").find(source_[position_]) != std::string_view::npos) {
        line_ += source_[position_++] == '\n';
      }
      if (position_ >= source_.size()) error("a tag without end");
      std::string_view rest = std::string_view(source_).substr(position_);
      std::string_view close = output ? "}}" : "%}";
      bool modified = rest[0] == '-' || rest[0] == '+';
      if (brackets.empty() && rest.substr(modified ? 1 : 0).starts_with(close)) {
        char modifier = modified ? rest[0] : '\0';
        position_ += 2 + (modified ? 1 : 0);
        tokens_.push_back({output ? Token::close_output : Token::close_block, "", line_});
        after_tag(modifier, !output);
        return;
      }
      char c = rest[0];
      auto alpha = [](char x) {
        return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || x == '_';
      };
      auto digit = [](char x) { return x >= '0' && x <= '9'; };
      if (alpha(c)) {
        size_t n = 1;
        while (n < rest.size() && (alpha(rest[n]) || digit(rest[n]))) ++n;
        add(Token::name, std::string(rest.substr(0, n)), n);
      } else if (digit(c)) {
        size_t n = 1;
        bool real = false;
        while (n < rest.size() && digit(rest[n])) ++n;
        if (n + 1 < rest.size() && rest[n] == '.' && digit(rest[n + 1])) {
          real = true;
          for (++n; n < rest.size() && digit(rest[n]);) ++n;
        }
        if (size_t e = n; e < rest.size() && (rest[e] == 'e' || rest[e] == 'E')) {
          ++e;
          if (e < rest.size() && (rest[e] == '+' || rest[e] == '-')) ++e;
          if (e < rest.size() && digit(rest[e])) {
            real = true;
            for (n = e; n < rest.size() && digit(rest[n]);) ++n;
          }
        }
        if (n < rest.size() && (alpha(rest[n]) || rest[n] == '_'))
          error("a number of this form is not supported");
        add(real ? Token::real : Token::integer, std::string(rest.substr(0, n)), n);
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        static constexpr std::string_view operators[] = {
            "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
            ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ":", ".", "|"};
        auto op = std::find_if(std::begin(operators), std::end(operators),
                               [&](std::string_view o) { return rest.starts_with(o); });
        if (op == std::end(operators)) error(fmt::format("unexpected character '{}'", c));
        if (std::string_view("([{").find(c) != std::string_view::npos) brackets += c;
        if (std::string_view(")]}").find(c) != std::string_view::npos) {
          if (brackets.empty()) error(fmt::format("unexpected '{}'", c));
          brackets.pop_back();
        }
        add(Token::op, std::string(*op), op->size());
      }
    }
  }

  void add(Token::Type type, std::string text, size_t size) {
    tokens_.push_back({type, std::move(text), line_});
    position_ += size;
  }

  void string(char quote) {
    std::string out;
    size_t i = position_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) error("a string without end");
      char c = source_[i];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (++i >= source_.size()) error("a string without end");
      size_t digits = 0;
      switch (source_[i]) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'v':
          out += '\v';
          break;
        case 'a':
          out += '\a';
          break;
        case '0':
          out += '\0';
          break;
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += source_[i];
          break;
        case 'x':
          digits = 2;
          break;
        case 'u':
          digits = 4;
          break;
        case 'U':
          digits = 8;
          break;
        default:
          out += '\\', out += source_[i];
      }
      if (digits) {
        uint32_t value = 0;
        const char* begin = source_.data() + i + 1;
        bool good = i + digits < source_.size() &&
                    std::from_chars(begin, begin + digits, value, 16).ptr == begin + digits &&
                    value < 0x110000 && !(value >= 0xD800 && value < 0xE000);
        if (!good) error("a bad escape in a string");
        append_utf8(out, value);
        i += digits;
      }
    }
    for (size_t at = position_; at < i; ++at) line_ += source_[at] == '\n';
    add(Token::string, std::move(out), i + 1 - position_);
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  NodePtr run() {
    NodePtr root = body({});
    return root;
  }

 private:
  using Building = std::unique_ptr<Node>;

  const Token& now() const { return tokens_[position_]; }
  const Token& take() { return tokens_[position_ + 1 < tokens_.size() ? position_++ : position_]; }
  bool is(Token::Type type, std::string_view text) const {
    return now().type == type && now().text == text;
  }
  bool is_op(std::string_view text) const { return is(Token::op, text); }
  bool is_name(std::string_view text) const { return is(Token::name, text); }
  bool accept_op(std::string_view text) { return is_op(text) && (take(), true); }
  bool accept_name(std::string_view text) { return is_name(text) && (take(), true); }

  [[noreturn]] void error(const std::string& what) const {
    fail(Status::model_file, "chat template, line {}: {}", now().line, what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(Status::unsupported, "chat template, line {}: {} is not supported", now().line, what);
  }
  void expect_op(std::string_view text) {
    if (!accept_op(text)) error(fmt::format("expected '{}', found '{}'", text, now().text));
  }
  std::string expect_name() {
    if (now().type != Token::name) error(fmt::format("expected a name, found '{}'", now().text));
    return take().text;
  }
  void expect_close() {
    if (now().type != Token::close_block)
      error(fmt::format("unexpected '{}' in a tag", now().text));
    take();
  }

  // Depth of nested calls of the parser.
  struct Nested {
    explicit Nested(Parser& p) : p_(p) {
      if (++p_.nested_ > max_depth) p_.error("nested too deeply");
    }
    ~Nested() { --p_.nested_; }
    Parser& p_;
  };

  Building make(Kind kind, std::string text = {}) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->text = std::move(text);
    node->line = now().line;
    return node;
  }
  void add(Node& node, NodePtr kid) const {
    if (kid) node.depth = std::max(node.depth, kid->depth + 1);
    if (node.depth > max_depth) error("nested too deeply");
    node.kids.push_back(std::move(kid));
  }
  NodePtr with(Building node, NodePtr a, NodePtr b = nullptr) const {
    add(*node, std::move(a));
    if (b) add(*node, std::move(b));
    return node;
  }

  // Statements up to a tag that begins with one of `ends`, which is left open behind its name.
  NodePtr body(const std::vector<std::string_view>& ends) {
    Nested nested(*this);
    Building block = make(Kind::block);
    while (true) {
      if (now().type == Token::end) {
        if (!ends.empty()) error(fmt::format("'{}' is missing", ends.back()));
        return block;
      }
      if (now().type == Token::plain) {
        Building text = make(Kind::text);
        text->value = Value::text(take().text, false);
        add(*block, std::move(text));
      } else if (now().type == Token::open_output) {
        take();
        Building output = make(Kind::output);
        add(*output, tuple());
        if (now().type != Token::close_output) error(fmt::format("unexpected '{}'", now().text));
        take();
        add(*block, std::move(output));
      } else {
        take();  // open_block
        std::string name = expect_name();
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          end_ = name;
          return block;
        }
        add(*block, statement(name));
      }
    }
  }

  NodePtr statement(const std::string& name) {
    if (name == "if") return branch();
    if (name == "for") return loop();
    if (name == "set") return set();
    if (name == "macro") return macro();
    if (name == "generation") {  // marks the assistant's text for training; renders its body
      expect_close();
      NodePtr inner = body({"endgeneration"});
      expect_close();
      return inner;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) error(fmt::format("'{}' outside a loop", name));
      Building node = make(name == "break" ? Kind::break_loop : Kind::continue_loop);
      expect_close();
      return node;
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      error(fmt::format("unexpected '{}'", name));
    }
    unsupported(fmt::format("the statement '{}'", name));
  }

  NodePtr branch() {
    Building node = make(Kind::branch);
    while (true) {
      add(*node, expression());
      expect_close();
      add(*node, body({"elif", "else", "endif"}));
      if (end_ != "elif") break;
    }
    bool otherwise = end_ == "else";
    expect_close();
    if (otherwise) {
      add(*node, body({"endif"}));
      expect_close();
    }
    return node;
  }

  NodePtr loop() {
    Building node = make(Kind::loop);
    bool bracket = accept_op("(");
    do node->names.push_back(expect_name());
    while (accept_op(","));
    if (bracket) expect_op(")");
    if (!accept_name("in")) error("expected 'in'");
    add(*node, disjunction());  // 'if' belongs to the loop here
    add(*node, accept_name("if") ? expression() : nullptr);
    if (is_name("recursive")) unsupported("a recursive loop");
    expect_close();
    ++loops_;
    add(*node, body({"else", "endfor"}));
    --loops_;
    bool otherwise = end_ == "else";
    expect_close();
    if (otherwise) {
      add(*node, body({"endfor"}));
      expect_close();
    } else {
      add(*node, nullptr);
    }
    return node;
  }

  NodePtr set() {
    Building node = make(Kind::set);
    node->names.push_back(expect_name());
    if (accept_op(".")) {
      node->text = ".";
      node->names.push_back(expect_name());
    } else {
      while (accept_op(",")) node->names.push_back(expect_name());
    }
    if (accept_op("=")) {
      add(*node, tuple());
      expect_close();
      return node;
    }
    if (node->text == "." || node->names.size() > 1) error("expected '='");
    if (is_op("|")) unsupported("a filter on a set block");
    expect_close();
    node->kind = Kind::capture;
    add(*node, body({"endset"}));
    expect_close();
    return node;
  }

  NodePtr macro() {
    Building node = make(Kind::macro, expect_name());
    expect_op("(");
    while (!accept_op(")")) {
      if (!node->names.empty()) {
        expect_op(",");
        if (accept_op(")")) break;
      }
      node->names.push_back(expect_name());
      if (accept_op("=")) name_argument(*node, node->names.back(), expression());
    }
    expect_close();
    int loops = std::exchange(loops_, 0);
    add(*node, body({"endmacro"}));
    loops_ = loops;
    if (now().type == Token::name) take();
    expect_close();
    return node;
  }

  void name_argument(Node& node, std::string name, NodePtr value) const {
    node.depth = std::max(node.depth, value->depth + 1);
    if (node.depth > max_depth) error("nested too deeply");
    node.named.emplace_back(std::move(name), std::move(value));
  }

  // Expressions, loosest first.
  NodePtr tuple() {
    NodePtr first = expression();
    if (!is_op(",")) return first;
    Building list = make(Kind::list);
    add(*list, std::move(first));
    while (accept_op(",")) {
      if (now().type == Token::close_block || now().type == Token::close_output || is_op(")"))
        break;
      add(*list, expression());
    }
    return list;
  }

  NodePtr expression() {
    Nested nested(*this);
    NodePtr value = disjunction();
    while (is_name("if")) {
      Building node = make(Kind::ternary);
      take();
      add(*node, disjunction());
      add(*node, std::move(value));
      add(*node, accept_name("else") ? expression() : nullptr);
      value = std::move(node);
    }
    return value;
  }

  NodePtr disjunction() {
    NodePtr left = conjunction();
    while (is_name("or")) left = binary(std::move(left), &Parser::conjunction);
    return left;
  }

  NodePtr conjunction() {
    NodePtr left = negation();
    while (is_name("and")) left = binary(std::move(left), &Parser::negation);
    return left;
  }

  NodePtr binary(NodePtr left, NodePtr (Parser::*right)()) {
    Building node = make(Kind::binary, take().text);
    NodePtr second = (this->*right)();
    return with(std::move(node), std::move(left), std::move(second));
  }

  NodePtr negation() {
    Nested nested(*this);
    if (!is_name("not")) return comparison();
    Building node = make(Kind::unary, "not");
    take();
    return with(std::move(node), negation());
  }

  NodePtr comparison() {
    NodePtr left = sum();
    bool chained = false;
    while (true) {
      std::string op;
      if (now().type == Token::op &&
          (is_op("==") || is_op("!=") || is_op("<") || is_op("<=") || is_op(">") || is_op(">="))) {
        op = now().text;
      } else if (is_name("in")) {
        op = "in";
      } else if (is_name("not") && tokens_[position_ + 1].type == Token::name &&
                 tokens_[position_ + 1].text == "in") {
        take();
        op = "not in";
      } else {
        return left;
      }
      if (chained) unsupported("a chain of comparisons");
      chained = true;
      Building node = make(Kind::binary, op);
      take();
      NodePtr right = sum();
      left = with(std::move(node), std::move(left), std::move(right));
    }
  }

  NodePtr sum() {
    NodePtr left = concatenation();
    while (is_op("+") || is_op("-")) left = binary(std::move(left), &Parser::concatenation);
    return left;
  }

  NodePtr concatenation() {
    NodePtr left = product();
    while (is_op("~")) left = binary(std::move(left), &Parser::product);
    return left;
  }

  NodePtr product() {
    NodePtr left = unary();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      left = binary(std::move(left), &Parser::unary);
    }
    if (is_op("**")) unsupported("the operator '**'");
    return left;
  }

  NodePtr unary() { return filters(sign()); }

  NodePtr sign() {
    Nested nested(*this);
    if (!is_op("-") && !is_op("+")) return postfix(primary());
    Building node = make(Kind::unary, take().text);
    return postfix(with(std::move(node), sign()));
  }

  NodePtr primary() {
    Nested nested(*this);
    const Token& token = now();
    if (token.type == Token::name) {
      Building node = make(Kind::literal);
      std::string name = take().text;
      if (name == "true" || name == "True") {
        node->value = Value(true);
      } else if (name == "false" || name == "False") {
        node->value = Value(false);
      } else if (name == "none" || name == "None") {
        node->value = Value::none();
      } else {
        node->kind = Kind::name;
        node->text = name;
      }
      return node;
    }
    if (token.type == Token::string) {
      Building node = make(Kind::literal);
      std::string text;
      while (now().type == Token::string) text += take().text;
      node->value = Value::text(text, false);
      return node;
    }
    if (token.type == Token::integer) {
      Building node = make(Kind::literal);
      int64_t value = 0;
      const std::string& text = take().text;
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
        error("a number too large");
      }
      node->value = Value(static_cast<Int>(value));
      return node;
    }
    if (token.type == Token::real) {
      Building node = make(Kind::literal);
      double value = 0;
      const std::string& text = take().text;
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
        error("a number out of range");
      }
      node->value = Value(value);
      return node;
    }
    if (accept_op("(")) {
      if (accept_op(")")) return make(Kind::list);
      NodePtr inner = tuple();
      expect_op(")");
      return inner;
    }
    if (is_op("[") || is_op("{")) {
      bool dict = is_op("{");
      Building node = make(dict ? Kind::dict : Kind::list);
      take();
      std::string_view close = dict ? "}" : "]";
      while (!accept_op(close)) {
        if (!node->kids.empty()) {
          expect_op(",");
          if (accept_op(close)) break;
        }
        add(*node, expression());
        if (dict) {
          expect_op(":");
          add(*node, expression());
        }
      }
      return node;
    }
    error(fmt::format("expected a value, found '{}'", token.type == Token::close_block ? "%}"
                                                      : token.type == Token::close_output
                                                          ? "}}"
                                                          : token.text));
  }

  void arguments(Node& node) {
    expect_op("(");
    bool first = true;
    while (!accept_op(")")) {
      if (!first) {
        expect_op(",");
        if (accept_op(")")) break;
      }
      first = false;
      if (is_op("*") || is_op("**")) unsupported("unpacking of arguments");
      if (now().type == Token::name && tokens_[position_ + 1].type == Token::op &&
          tokens_[position_ + 1].text == "=") {
        std::string name = take().text;
        take();
        name_argument(node, std::move(name), expression());
      } else {
        add(node, expression());
      }
    }
  }

  NodePtr postfix(NodePtr value) {
    while (true) {
      if (is_op(".")) {
        take();
        Building node = make(Kind::attribute, expect_name());
        value = with(std::move(node), std::move(value));
      } else if (is_op("[")) {
        Building node = make(Kind::item);
        take();
        add(*node, std::move(value));
        NodePtr parts[3];
        size_t colons = 0;
        while (!is_op("]")) {
          if (accept_op(":")) {
            if (++colons > 2) error("too many ':' in a slice");
          } else {
            if (parts[colons]) error(fmt::format("unexpected '{}'", now().text));
            parts[colons] = expression();
          }
        }
        take();
        if (colons == 0) {
          if (!parts[0]) error("an empty subscript");
          add(*node, std::move(parts[0]));
        } else {
          node->kind = Kind::slice;
          for (NodePtr& p : parts) add(*node, std::move(p));
        }
        value = std::move(node);
      } else if (is_op("(")) {
        Building node = make(Kind::call);
        add(*node, std::move(value));
        arguments(*node);
        value = std::move(node);
      } else {
        return value;
      }
    }
  }

  NodePtr filters(NodePtr value) {
    while (true) {
      if (is_op("|")) {
        take();
        Building node = make(Kind::filter, expect_name());
        if (is_op(".")) unsupported("a filter with a dot in its name");
        if (!known_filter(node->text)) unsupported(fmt::format("the filter '{}'", node->text));
        add(*node, std::move(value));
        if (is_op("(")) arguments(*node);
        value = std::move(node);
      } else if (is_name("is")) {
        take();
        bool negate = accept_name("not");
        std::string name = now().type == Token::op ? take().text : expect_name();
        if (!known_test(name)) unsupported(fmt::format("the test '{}'", name));
        Building node = make(Kind::test, name);
        add(*node, std::move(value));
        bool argument =
            now().type == Token::string || now().type == Token::integer ||
            now().type == Token::real || is_op("[") || is_op("{") ||
            (now().type == Token::name && !is_name("else") && !is_name("or") && !is_name("and") &&
             !is_name("is") && !is_name("if") && !is_name("not") && !is_name("in"));
        if (is_op("(")) {
          arguments(*node);
        } else if (argument) {
          add(*node, postfix(primary()));
        }
        value = std::move(node);
        if (negate) value = with(make(Kind::unary, "not"), std::move(value));
      } else if (is_op("(")) {
        Building node = make(Kind::call);
        add(*node, std::move(value));
        arguments(*node);
        value = std::move(node);
      } else {
        return value;
      }
    }
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
  std::string end_;
  int nested_ = 0, loops_ = 0;
};

}  // namespace

NodePtr parse(std::string_view source) {
  if (source.size() > max_source) fail(Status::model_file, "the chat template is too long");
  if (replace_invalid_utf8(source) != source) {
    fail(Status::model_file, "the chat template is not valid UTF-8");
  }
  return Parser(Lexer(source).run()).run();
}

}  // namespace speech::jinja
