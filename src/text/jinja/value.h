// Values of a template: Python's, as far as JSON and templates need them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/jinja.h"

namespace speech::jinja {

struct Value;
struct Node;
using Int = __int128;  // Python's integers, as far as JSON's 64-bit ones need
using List = std::vector<Value>;
using Members = std::vector<std::pair<Value, Value>>;  // in order of insertion; keys are strings
                                                       // (or integers of a template's own dict)
using Kwargs = std::vector<std::pair<std::string, Value>>;
using Function = std::function<Value(List args, Kwargs kwargs)>;

struct Undefined {
  std::string what;  // "'dict object' has no attribute 'x'"
};
struct None {};
struct Dict {
  Members members;
  bool is_namespace = false;
};

struct Value {
  std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const MarkedText>,
               std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Function>>
      v;

  Value() = default;
  template <typename T>
  explicit Value(T value) : v(std::move(value)) {}
  static Value none() { return Value(None()); }
  static Value text(MarkedText t) {
    return Value(std::make_shared<const MarkedText>(std::move(t)));
  }
  static Value text(std::string_view s, bool marked) {
    MarkedText t;
    t.append(s, marked);
    return text(std::move(t));
  }
  static Value list(List l);
  static Value dict(Members m);
  static Value function(Function f) { return Value(std::make_shared<Function>(std::move(f))); }

  int depth = 0;  // of nested lists and dicts; bounded, so that recursion over values is
  // Called for what becomes part of `this`. A namespace cannot become part of anything.
  void contain(const Value& part);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(v);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_number() const { return is<Int>() || is<double>() || is<bool>(); }
  const MarkedText* str() const {
    auto p = std::get_if<std::shared_ptr<const MarkedText>>(&v);
    return p ? p->get() : nullptr;
  }
  List* list() const {
    auto p = std::get_if<std::shared_ptr<List>>(&v);
    return p ? p->get() : nullptr;
  }
  Dict* dict() const {
    auto p = std::get_if<std::shared_ptr<Dict>>(&v);
    return p ? p->get() : nullptr;
  }
  const Function* function() const {
    auto p = std::get_if<std::shared_ptr<Function>>(&v);
    return p ? p->get() : nullptr;
  }

  bool truthy() const;
  // "str", "list", ... as in Python's messages
  std::string_view type() const;
  Int integer() const;  // of Int or bool; else an error
  double real() const;  // of any number
};

[[noreturn]] void raise(const std::string& message);  // Error(invalid_argument)

Value from_json(const nlohmann::ordered_json& j, int depth = 0);
bool equal(const Value& a, const Value& b, int depth = 0);
bool less(const Value& a, const Value& b);
const Value* find(const Dict& dict, const Value& key);

// str(value) as a template prints it. A list or dict is refused: Python's repr() is not made here.
MarkedText print(const Value& value);
// json.dumps(value, ensure_ascii=False, indent=indent); indent < 0: one line.
MarkedText to_json(const Value& value, int indent);
std::string float_text(double value);  // repr() of a Python float

// Strings by code points.
size_t code_points(std::string_view s);
MarkedText part(const MarkedText& s, size_t begin, size_t end);  // by bytes
std::vector<MarkedText> characters(const MarkedText& s);

// Methods of str and dict; undefined if the type has no such attribute.
Value method(const Value& self, std::string_view name);

}  // namespace speech::jinja
