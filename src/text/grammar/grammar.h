// Grammar-constrained decoding: which tokens may come next.
#pragma once

#include <memory>
#include <string_view>

#include "text/grammar/token_trie.h"

namespace speech {

namespace grammar {
class Matcher;
struct Arena;
struct Rules;
}  // namespace grammar

// A compiled grammar. It may be shared by sequences on several threads; what they find out (masks,
// transitions) is kept for all of them.
class Grammar {
 public:
  // Errors: Error(invalid_argument) for text that is malformed, left-recursive or never ends,
  // Error(unsupported) naming a keyword or construct that is not supported, Error(out_of_range) for
  // a grammar that is too large.
  //
  // JSON schema: type (also a list), properties (in any order, each once), required,
  // additionalProperties (default: none beside declared properties), items, minItems, maxItems,
  // enum, const, anyOf, oneOf (if its schemas exclude each other), allOf of one, $ref inside the
  // schema, minLength, maxLength (code points), pattern, format (date, time, date-time, uuid),
  // minimum, maximum and the exclusive ones (whole numbers). White space between tokens is bounded.
  static std::shared_ptr<const Grammar> from_json_schema(std::string_view schema,
                                                         std::shared_ptr<const TokenTrie> tokens);
  // GBNF; the root is the rule "root". <name> and <[id]> are added tokens.
  static std::shared_ptr<const Grammar> from_gbnf(std::string_view text,
                                                  std::shared_ptr<const TokenTrie> tokens);
  // Any JSON object.
  static std::shared_ptr<const Grammar> json_object(std::shared_ptr<const TokenTrie> tokens);
  // A text that starts with '{' is a JSON schema, anything else GBNF.
  static std::shared_ptr<const Grammar> from_text(std::string_view text,
                                                  std::shared_ptr<const TokenTrie> tokens);

  ~Grammar();

  // About what it holds: mostly the masks and steps found so far, which are bounded.
  size_t bytes() const;

 private:
  friend class GrammarState;
  Grammar(std::shared_ptr<grammar::Rules> rules, std::shared_ptr<const TokenTrie> tokens);
  std::unique_ptr<grammar::Matcher> matcher_;
};

// Where a sequence stands in its grammar. Copies go their own ways.
class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);

  // The tokens that may come next. The ids that end a text are among them exactly when the grammar
  // may end here. Nothing is set once finished(), and where the grammar is stuck (only possible at
  // the limit of nesting). Valid until the next call on this object.
  const Bitmask& allowed();
  // May this token come next? Cheaper than a mask.
  bool allows(int32_t token) const;
  // Goes on behind a token. Error(invalid_argument) if it is not allowed; the state stays.
  void accept(int32_t token);
  bool can_end() const;
  // An EOS was accepted.
  bool finished() const { return finished_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<grammar::Arena> arena_;
  uint32_t config_ = 0;
  bool finished_ = false;
  std::shared_ptr<const Bitmask> mask_;
};

}  // namespace speech
