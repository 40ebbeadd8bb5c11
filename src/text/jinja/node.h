// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace speech::jinja {

using NodePtr = std::unique_ptr<const Node>;

enum class Kind {
  // expressions
  literal,    // value
  name,       // text
  list,       // kids
  dict,       // kids: key, value, key, value ...
  attribute,  // kids[0].text
  item,       // kids[0][kids[1]]
  slice,      // kids[0][kids[1]:kids[2]:kids[3]], null where left out
  call,       // kids[0](kids[1...], named)
  filter,     // kids[0] | text(kids[1...], named)
  test,       // kids[0] is text(kids[1...])
  unary,      // text: "-", "+", "not"
  binary,     // kids[0] text kids[1]
  ternary,    // kids[1] if kids[0] else kids[2] (null: undefined)
  // statements
  block,    // kids in order
  text,     // value
  output,   // kids[0]
  branch,   // kids: condition, body, condition, body, ..., else body if their number is odd
  loop,     // names in kids[0] (and its filter kids[1] or null) : kids[2] body, kids[3] else
  set,      // names = kids[0]; with two names text is "." and names[0].names[1] is set
  capture,  // names[0] = output of kids[0]
  macro,    // text: name, names: parameters, named: their defaults, kids[0]: body
  break_loop,
  continue_loop,
};

struct Node {
  Kind kind = Kind::block;
  int line = 0;
  int depth = 1;
  std::string text;
  std::vector<std::string> names;
  std::vector<NodePtr> kids;
  std::vector<std::pair<std::string, NodePtr>> named;
  Value value;
};

// Throws as JinjaTemplate's constructor says.
NodePtr parse(std::string_view source);

bool known_filter(std::string_view name);
bool known_test(std::string_view name);

}  // namespace speech::jinja
