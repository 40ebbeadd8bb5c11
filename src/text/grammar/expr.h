// What a grammar is made of before it becomes an automaton: expressions over bytes, and rules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace speech::grammar {

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;
using CharRanges = std::vector<std::pair<uint32_t, uint32_t>>;  // code points, both ends included

inline constexpr int64_t unbounded = -1;

struct Expr {
  enum class Kind { bytes, chars, sequence, choice, repeat, rule, token } kind = Kind::bytes;
  std::string bytes;
  CharRanges chars;
  std::vector<ExprPtr> kids;  // an empty sequence is "", an empty choice matches nothing
  int64_t min = 0, max = unbounded;
  uint32_t rule = 0;
  int32_t token = 0;  // an added token, taken as one
};

ExprPtr literal(std::string_view bytes);
ExprPtr chars(CharRanges ranges);  // one code point of these, as UTF-8
ExprPtr sequence(std::vector<ExprPtr> kids);
ExprPtr choice(std::vector<ExprPtr> kids);
ExprPtr repeat(ExprPtr kid, int64_t min, int64_t max);
ExprPtr optional(ExprPtr kid);
ExprPtr call(uint32_t rule);
ExprPtr token(int32_t id);

// The ranges sorted and merged, without surrogates; and all other code points.
CharRanges normalize(CharRanges ranges);
CharRanges complement(const CharRanges& ranges);

struct Rule {
  std::string name;
  ExprPtr body;
  // Instead of `body`: made when the automaton first gets there. Such a rule begins with bytes.
  std::function<ExprPtr()> make;
  std::vector<uint32_t> needs;  // of a made rule: rules without which it cannot end
};

struct Rules {
  std::vector<Rule> list;

  uint32_t add(std::string name, ExprPtr body = nullptr) {
    list.push_back({std::move(name), std::move(body), nullptr, {}});
    return static_cast<uint32_t>(list.size() - 1);
  }
  // repeat() of large counts through a rule for blocks, so that the automaton stays small.
  ExprPtr counted(const ExprPtr& kid, int64_t min, int64_t max);
};

// Parse a grammar; the root is rule 0. `find_token` gives the id of an added token by its text
// ("<think>") or number ("<[151667]>"), or -1.
// Errors: Error(invalid_argument) for what is malformed, Error(unsupported) for what is not
// supported; messages name the place.
using FindToken = std::function<int32_t(std::string_view)>;
std::shared_ptr<Rules> parse_gbnf(std::string_view text, const FindToken& find_token);
std::shared_ptr<Rules> parse_json_schema(std::string_view text);
std::shared_ptr<Rules> json_object_rules();

// A regular expression (JSON schema's `pattern`) as an expression; `encode` makes the expression of
// one character out of ranges. Not anchored means that more may stand before and behind.
ExprPtr parse_regex(std::string_view pattern, const std::function<ExprPtr(CharRanges)>& encode);

}  // namespace speech::grammar
