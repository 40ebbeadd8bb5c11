#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <optional>

#include "base/error.h"
#include "text/jinja/node.h"

namespace speech::jinja {
namespace {

constexpr int64_t max_steps = 5'000'000;        // evaluated nodes, list elements and 64-byte pieces
constexpr size_t max_output = size_t{1} << 28;  // bytes
constexpr int max_calls = 50;                   // macros that call macros

enum class Flow { normal, stop, next };  // break, continue

using Scope = std::map<std::string, Value, std::less<>>;

class Run {
 public:
  explicit Run(const nlohmann::ordered_json& variables) {
    scopes_.resize(2);
    builtins();
    for (const auto& [name, value] : variables.items()) scopes_[0][name] = from_json(value);
  }

  MarkedText run(const Node& root) {
    execute(root);
    return std::move(out_);
  }

  Value filter(std::string_view name, const Value& value, List args, Kwargs named);
  bool test(std::string_view name, const Value& value, const List& args);
  List items(const Value& value);

 private:
  void spend(size_t steps) {
    steps_ += static_cast<int64_t>(steps);
    if (steps_ > max_steps) {
      fail(Status::out_of_range, "chat template: rendering takes more than {} steps", max_steps);
    }
  }

  void builtins();
  Flow execute(const Node& node);
  Flow loop(const Node& node);
  void assign(const std::vector<std::string>& names, const Value& value);
  Value evaluate(const Node& node);
  Value binary(const Node& node);
  Value arithmetic(std::string_view op, const Value& a, const Value& b);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value slice(const Node& node);
  Value call_macro(const Node& node, List args, Kwargs named);
  Value call(const Value& callee, List args, Kwargs named);
  Value lookup(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto it = scope->find(name); it != scope->end()) return it->second;
    }
    return Value(Undefined{fmt::format("'{}' is undefined", name)});
  }
  Value make_text(MarkedText text) {
    spend(text.text.size() / 64);
    if (text.text.size() > max_output) fail(Status::out_of_range, "chat template: text too long");
    return Value::text(std::move(text));
  }

  std::vector<Scope> scopes_;
  MarkedText out_;
  int64_t steps_ = 0;
  int calls_ = 0;
};

void Run::builtins() {
  Scope& scope = scopes_[0];
  scope["namespace"] = Value::function([](List args, Kwargs named) {
    if (!args.empty()) fail(Status::unsupported, "chat template: namespace() of a dict");
    auto dict = std::make_shared<Dict>();
    dict->is_namespace = true;
    for (auto& [key, value] : named) {
      Value().contain(value);
      dict->members.emplace_back(Value::text(key, false), value);
    }
    return Value(dict);
  });
  scope["dict"] = Value::function([](List args, Kwargs named) {
    if (!args.empty()) fail(Status::unsupported, "chat template: dict() of a dict");
    Members members;
    for (auto& [key, value] : named) members.emplace_back(Value::text(key, false), value);
    return Value::dict(std::move(members));
  });
  scope["range"] = Value::function([this](List args, Kwargs) {
    if (args.empty() || args.size() > 3) raise("range() takes one to three integers");
    Int begin = args.size() > 1 ? args[0].integer() : 0;
    Int end = args[args.size() > 1 ? 1 : 0].integer();
    Int step = args.size() > 2 ? args[2].integer() : 1;
    if (step == 0) raise("range() arg 3 must not be zero");
    List out;
    for (Int i = begin; step > 0 ? i < end : i > end; i += step) {
      spend(1);
      out.push_back(Value(i));
    }
    return Value::list(std::move(out));
  });
  scope["raise_exception"] = Value::function([](List args, Kwargs) -> Value {
    raise(args.empty() ? "raise_exception()" : print(args[0]).text);
  });
  scope["strftime_now"] = Value::function([](List args, Kwargs) {
    if (args.size() != 1 || !args[0].str()) raise("strftime_now() takes a format");
    std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    std::array<char, 256> text{};
    size_t size = std::strftime(text.data(), text.size(), args[0].str()->text.c_str(), &local);
    return Value::text(std::string_view(text.data(), size), false);
  });
}

Flow Run::execute(const Node& node) {
  spend(1);
  switch (node.kind) {
    case Kind::block:
      for (const NodePtr& kid : node.kids) {
        if (Flow flow = execute(*kid); flow != Flow::normal) return flow;
      }
      break;
    case Kind::text:
      out_.append(*node.value.str());
      break;
    case Kind::output: {
      MarkedText text = print(evaluate(*node.kids[0]));
      spend(text.text.size() / 64);
      out_.append(text);
      if (out_.text.size() > max_output) fail(Status::out_of_range, "chat template: text too long");
      break;
    }
    case Kind::branch: {
      size_t i = 0;
      for (; i + 1 < node.kids.size(); i += 2) {
        if (evaluate(*node.kids[i]).truthy()) return execute(*node.kids[i + 1]);
      }
      if (i < node.kids.size()) return execute(*node.kids[i]);
      break;
    }
    case Kind::loop:
      return loop(node);
    case Kind::set: {
      Value value = evaluate(*node.kids[0]);
      if (node.text == ".") {
        Value object = lookup(node.names[0]);
        if (!object.dict() || !object.dict()->is_namespace) {
          raise(fmt::format("cannot assign attribute on '{}', which is no namespace object",
                            node.names[0]));
        }
        Value key = Value::text(node.names[1], false);
        Value().contain(value);  // not another namespace: no cycles, no endless nesting
        for (auto& member : object.dict()->members) {
          if (equal(member.first, key)) {
            member.second = value;
            return Flow::normal;
          }
        }
        object.dict()->members.emplace_back(key, value);
      } else {
        assign(node.names, value);
      }
      break;
    }
    case Kind::capture: {
      MarkedText outer = std::move(out_);
      out_ = {};
      scopes_.emplace_back();
      Flow flow = execute(*node.kids[0]);
      scopes_.pop_back();
      std::swap(outer, out_);
      scopes_.back()[node.names[0]] = make_text(std::move(outer));
      return flow;
    }
    case Kind::macro:
      scopes_.back()[node.text] = Value::function([this, &node](List args, Kwargs named) {
        return call_macro(node, std::move(args), std::move(named));
      });
      break;
    case Kind::break_loop:
      return Flow::stop;
    case Kind::continue_loop:
      return Flow::next;
    default:
      evaluate(node);
  }
  return Flow::normal;
}

void Run::assign(const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) {
    scopes_.back()[names[0]] = value;
    return;
  }
  List parts = items(value);
  if (parts.size() != names.size()) {
    raise(fmt::format("{} values to unpack into {} names", parts.size(), names.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = parts[i];
}

Flow Run::loop(const Node& node) {
  List list = items(evaluate(*node.kids[0]));
  if (node.kids[1]) {
    List kept;
    for (const Value& value : list) {
      scopes_.emplace_back();
      assign(node.names, value);
      bool keep = evaluate(*node.kids[1]).truthy();
      scopes_.pop_back();
      if (keep) kept.push_back(value);
    }
    list = std::move(kept);
  }
  if (list.empty()) return node.kids[3] ? execute(*node.kids[3]) : Flow::normal;
  auto count = static_cast<Int>(list.size());
  for (Int i = 0; i < count; ++i) {
    spend(10);
    scopes_.emplace_back();
    auto state = std::make_shared<Dict>();
    state->is_namespace = true;
    auto set = [&](std::string_view name, Value value) {
      state->members.emplace_back(Value::text(name, false), std::move(value));
    };
    auto neighbour = [&](Int at) {
      return at >= 0 && at < count ? list[static_cast<size_t>(at)]
                                   : Value(Undefined{"there is no such item in the loop"});
    };
    set("index0", Value(i));
    set("index", Value(i + 1));
    set("first", Value(i == 0));
    set("last", Value(i + 1 == count));
    set("length", Value(count));
    set("revindex", Value(count - i));
    set("revindex0", Value(count - i - 1));
    set("previtem", neighbour(i - 1));
    set("nextitem", neighbour(i + 1));
    scopes_.back()["loop"] = Value(state);
    assign(node.names, list[static_cast<size_t>(i)]);
    Flow flow = execute(*node.kids[2]);
    scopes_.pop_back();
    if (flow == Flow::stop) break;
  }
  return Flow::normal;
}

List Run::items(const Value& value) {
  List out;
  if (const List* list = value.list()) {
    out = *list;
  } else if (const Dict* dict = value.dict(); dict && !dict->is_namespace) {
    for (const auto& member : dict->members) out.push_back(member.first);
  } else if (const MarkedText* s = value.str()) {
    for (MarkedText& c : characters(*s)) out.push_back(Value::text(std::move(c)));
  } else if (!value.is_undefined()) {
    raise(fmt::format("'{}' object is not iterable", value.type()));
  }
  spend(out.size());
  return out;
}

Value Run::call_macro(const Node& node, List args, Kwargs named) {
  if (++calls_ > max_calls) fail(Status::out_of_range, "chat template: macros nested too deeply");
  // A macro sees the template's own names, not those of the loop that calls it.
  std::vector<Scope> outer(std::make_move_iterator(scopes_.begin() + 2),
                           std::make_move_iterator(scopes_.end()));
  scopes_.resize(2);
  scopes_.emplace_back();
  if (args.size() > node.names.size())
    raise(fmt::format("macro '{}': too many arguments", node.text));
  for (size_t i = 0; i < node.names.size(); ++i) {
    const std::string& name = node.names[i];
    auto given = std::find_if(named.begin(), named.end(), [&](auto& n) { return n.first == name; });
    auto standard = std::find_if(node.named.begin(), node.named.end(),
                                 [&](auto& n) { return n.first == name; });
    Value value(Undefined{fmt::format("parameter '{}' was not provided", name)});
    if (i < args.size()) {
      value = args[i];
    } else if (given != named.end()) {
      value = given->second;
      named.erase(given);
    } else if (standard != node.named.end()) {
      value = evaluate(*standard->second);
    }
    scopes_.back()[name] = value;
  }
  if (!named.empty()) {
    raise(fmt::format("macro '{}' takes no argument '{}'", node.text, named[0].first));
  }
  MarkedText text = std::move(out_);
  out_ = {};
  execute(*node.kids[0]);
  std::swap(text, out_);
  scopes_.resize(2);
  std::move(outer.begin(), outer.end(), std::back_inserter(scopes_));
  --calls_;
  return make_text(std::move(text));
}

Value Run::call(const Value& callee, List args, Kwargs named) {
  if (auto undefined = std::get_if<Undefined>(&callee.v)) raise(undefined->what);
  if (!callee.function()) raise(fmt::format("'{}' object is not callable", callee.type()));
  return (*callee.function())(std::move(args), std::move(named));
}

Value Run::evaluate(const Node& node) {
  spend(1);
  auto arguments = [&](Kwargs& named) {
    List args;
    for (size_t i = 1; i < node.kids.size(); ++i) args.push_back(evaluate(*node.kids[i]));
    for (const auto& [name, value] : node.named) named.emplace_back(name, evaluate(*value));
    return args;
  };
  switch (node.kind) {
    case Kind::literal:
      return node.value;
    case Kind::name:
      return lookup(node.text);
    case Kind::list: {
      List out;
      for (const NodePtr& kid : node.kids) out.push_back(evaluate(*kid));
      return Value::list(std::move(out));
    }
    case Kind::dict: {
      Members members;
      for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
        Value key = evaluate(*node.kids[i]);
        if (!key.str() && !key.is_number()) raise("a key of a dict must be a string or a number");
        members.emplace_back(std::move(key), evaluate(*node.kids[i + 1]));
      }
      return Value::dict(std::move(members));
    }
    case Kind::attribute:
      return attribute(evaluate(*node.kids[0]), node.text);
    case Kind::item: {
      Value object = evaluate(*node.kids[0]);
      return item(object, evaluate(*node.kids[1]));
    }
    case Kind::slice:
      return slice(node);
    case Kind::call: {
      Value callee = evaluate(*node.kids[0]);
      Kwargs named;
      List args = arguments(named);
      return call(callee, std::move(args), std::move(named));
    }
    case Kind::filter: {
      Value value = evaluate(*node.kids[0]);
      Kwargs named;
      List args = arguments(named);
      return filter(node.text, value, std::move(args), std::move(named));
    }
    case Kind::test: {
      Value value = evaluate(*node.kids[0]);
      Kwargs named;
      return Value(test(node.text, value, arguments(named)));
    }
    case Kind::unary: {
      Value value = evaluate(*node.kids[0]);
      if (node.text == "not") return Value(!value.truthy());
      return arithmetic(node.text, Value(Int(0)), value);
    }
    case Kind::binary:
      return binary(node);
    case Kind::ternary:
      if (evaluate(*node.kids[0]).truthy()) return evaluate(*node.kids[1]);
      return node.kids[2] ? evaluate(*node.kids[2])
                          : Value(Undefined{"the condition was false and there is no else"});
    default:
      fail(Status::internal, "chat template: a statement in an expression");
  }
}

Value Run::binary(const Node& node) {
  const std::string& op = node.text;
  Value a = evaluate(*node.kids[0]);
  if (op == "and") return a.truthy() ? evaluate(*node.kids[1]) : a;
  if (op == "or") return a.truthy() ? a : evaluate(*node.kids[1]);
  Value b = evaluate(*node.kids[1]);
  if (op == "==") return Value(equal(a, b));
  if (op == "!=") return Value(!equal(a, b));
  if (op == "<") return Value(less(a, b));
  if (op == ">") return Value(less(b, a));
  if (op == "<=") return Value(less(a, b) || equal(a, b));
  if (op == ">=") return Value(less(b, a) || equal(a, b));
  if (op == "in" || op == "not in") {
    bool found = false;
    if (b.str()) {
      if (!a.str()) {
        raise(fmt::format("'in <string>' requires string as left operand, not {}", a.type()));
      }
      found = b.str()->text.find(a.str()->text) != std::string::npos;
    } else if (b.dict() && !b.dict()->is_namespace) {
      spend(b.dict()->members.size());
      found = find(*b.dict(), a) != nullptr;
    } else if (b.list()) {
      spend(b.list()->size());
      found = std::any_of(b.list()->begin(), b.list()->end(),
                          [&](const Value& v) { return equal(v, a); });
    } else if (!b.is_undefined()) {
      raise(fmt::format("argument of type '{}' is not iterable", b.type()));
    }
    return Value(found == (op == "in"));
  }
  if (op == "~") {
    MarkedText text = print(a);
    text.append(print(b));
    return make_text(std::move(text));
  }
  return arithmetic(op, a, b);
}

Value Run::arithmetic(std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (auto undefined = std::get_if<Undefined>(&v->v)) raise(undefined->what);
  }
  if (op == "+" && a.str() && b.str()) {
    MarkedText text = *a.str();
    text.append(*b.str());
    return make_text(std::move(text));
  }
  if (op == "+" && a.list() && b.list()) {
    List out = *a.list();
    out.insert(out.end(), b.list()->begin(), b.list()->end());
    spend(out.size());
    return Value::list(std::move(out));
  }
  if (!a.is_number() || !b.is_number()) {
    raise(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type(), b.type()));
  }
  bool real = a.is<double>() || b.is<double>() || op == "/";
  if (real) {
    double x = a.real(), y = b.real();
    if (op == "+") return Value(x + y);
    if (op == "-") return a.is<Int>() && x == 0 ? Value(-y) : Value(x - y);
    if (op == "*") return Value(x * y);
    if (y == 0) raise("division by zero");
    if (op == "/") return Value(x / y);
    fail(Status::unsupported, "chat template: {} of floats is not supported", op);
  }
  Int x = a.integer(), y = b.integer();
  constexpr Int limit = Int(1) << 63;  // so that no product overflows
  if (x > limit || x < -limit || y > limit || y < -limit) raise("an integer is too large");
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (y == 0) raise("integer division or modulo by zero");
  Int quotient = x / y, rest = x % y;
  if (rest != 0 && (rest < 0) != (y < 0)) {  // Python rounds down
    rest += y;
    --quotient;
  }
  return Value(op == "%" ? rest : quotient);
}

Value Run::attribute(const Value& object, std::string_view name) {
  if (auto undefined = std::get_if<Undefined>(&object.v)) raise(undefined->what);
  Value found = method(object, name);
  if (!found.is_undefined() || !object.dict()) return found;
  spend(object.dict()->members.size() / 4);
  const Value* member = find(*object.dict(), Value::text(name, false));
  return member ? *member : found;
}

Value Run::item(const Value& object, const Value& key) {
  if (auto undefined = std::get_if<Undefined>(&object.v)) raise(undefined->what);
  if (object.dict()) {
    spend(object.dict()->members.size() / 4);
    if (const Value* member = find(*object.dict(), key)) return *member;
  } else if ((object.list() || object.str()) && (key.is<Int>() || key.is<bool>())) {
    List list = object.str() ? items(object) : List();
    const List& all = object.str() ? list : *object.list();
    Int index = key.integer();
    if (index < 0) index += static_cast<Int>(all.size());
    if (index >= 0 && index < static_cast<Int>(all.size())) return all[static_cast<size_t>(index)];
    return Value(Undefined{fmt::format("'{} object' has no such element", object.type())});
  }
  if (key.str()) return method(object, key.str()->text);
  return Value(Undefined{fmt::format("'{} object' has no such element", object.type())});
}

Value Run::slice(const Node& node) {
  Value object = evaluate(*node.kids[0]);
  if (auto undefined = std::get_if<Undefined>(&object.v)) raise(undefined->what);
  if (!object.list() && !object.str()) {
    raise(fmt::format("'{}' object cannot be sliced", object.type()));
  }
  List all = items(object);
  auto count = static_cast<Int>(all.size());
  auto bound = [&](size_t kid) -> std::optional<Int> {
    if (!node.kids[kid]) return std::nullopt;
    Value value = evaluate(*node.kids[kid]);
    if (value.is_none()) return std::nullopt;
    return value.integer();
  };
  Int step = bound(3).value_or(1);
  if (step == 0) raise("slice step cannot be zero");
  // Python's rule: negative bounds count from the end, then all is clipped to what exists.
  auto clip = [&](std::optional<Int> value, Int otherwise) {
    if (!value) return otherwise;
    Int v = *value < 0 ? *value + count : *value;
    return std::clamp(v, step > 0 ? Int(0) : Int(-1), step > 0 ? count : count - 1);
  };
  Int begin = clip(bound(1), step > 0 ? 0 : count - 1);
  Int end = clip(bound(2), step > 0 ? count : -1);
  List out;
  for (Int i = begin; step > 0 ? i < end : i > end; i += step) {
    out.push_back(all[static_cast<size_t>(i)]);
    if (step > count || -step > count) break;
  }
  if (object.list()) return Value::list(std::move(out));
  MarkedText text;
  for (const Value& c : out) text.append(*c.str());
  return make_text(std::move(text));
}

// ---- filters and tests -------------------------------------------------------------------------

struct Filter {
  size_t max_args;
  std::vector<std::string_view> named;  // parameters that may be given by name, in order
  Value (*apply)(Run& run, const Value& value, const List& args);  // missing ones are undefined
};

Value need_text(const Value& value, std::string_view name, List args) {
  return (*method(value.str() ? value : Value::text(print(value)), name).function())(
      std::move(args), {});
}

List select(Run& run, const Value& value, const List& args, bool by_attribute, bool keep) {
  List out;
  size_t first = by_attribute ? 1 : 0;
  std::string name;
  if (args.size() > first && args[first].str()) name = args[first].str()->text;
  if (!name.empty() && !known_test(name)) {
    fail(Status::unsupported, "chat template: the test '{}' is not supported", name);
  }
  if (by_attribute && (args.empty() || !args[0].str())) raise("selectattr needs an attribute");
  List test_args;
  for (size_t i = first + 1; i < args.size(); ++i) {
    if (!args[i].is_undefined()) test_args.push_back(args[i]);
  }
  for (const Value& item : run.items(value)) {
    Value tested = item;
    if (by_attribute) {
      tested = Value(Undefined{"no such attribute"});
      if (item.dict()) {
        if (const Value* found = find(*item.dict(), args[0])) tested = *found;
      }
    }
    bool good = name.empty() ? tested.truthy() : run.test(name, tested, test_args);
    if (good == keep) out.push_back(item);
  }
  return out;
}

Value length(Run& run, const Value& value, const List&) {
  if (value.str()) return Value(static_cast<Int>(code_points(value.str()->text)));
  if (value.list()) return Value(static_cast<Int>(value.list()->size()));
  if (value.is_number() || value.is_none() || value.function()) {
    raise(fmt::format("object of type '{}' has no len()", value.type()));
  }
  return Value(static_cast<Int>(run.items(value).size()));
}

Value default_value(Run&, const Value& value, const List& a) {
  bool use = value.is_undefined() || (a[1].truthy() && !value.truthy());
  return use ? (a[0].is_undefined() ? Value::text("", false) : a[0]) : value;
}

Value or_none(const Value& v) {
  return v.is_undefined() ? Value::none() : v;
}

const std::map<std::string_view, Filter>& filters() {
  using R = Run&;
  using V = const Value&;
  using A = const List&;
  static const std::map<std::string_view, Filter> all = {
      {"tojson",
       {1,
        {"indent", "ensure_ascii"},
        [](R, V v, A a) {
          if (a[1].truthy()) fail(Status::unsupported, "chat template: tojson(ensure_ascii=true)");
          bool line = a[0].is_undefined() || a[0].is_none();
          Int indent = line ? Int(-1) : a[0].integer();
          if (indent > 100) raise("tojson: indent is too large");
          return Value::text(to_json(v, static_cast<int>(indent)));
        }}},
      {"length", {0, {}, length}},
      {"count", {0, {}, length}},
      {"default", {2, {"default_value", "boolean"}, default_value}},
      {"d", {2, {"default_value", "boolean"}, default_value}},
      {"trim", {1, {"chars"}, [](R, V v, A a) { return need_text(v, "strip", {or_none(a[0])}); }}},
      {"upper", {0, {}, [](R, V v, A) { return need_text(v, "upper", {}); }}},
      {"lower", {0, {}, [](R, V v, A) { return need_text(v, "lower", {}); }}},
      {"title", {0, {}, [](R, V v, A) { return need_text(v, "title", {}); }}},
      {"capitalize", {0, {}, [](R, V v, A) { return need_text(v, "capitalize", {}); }}},
      {"replace",
       {2,
        {},
        [](R, V v, A a) {
          return need_text(v, "replace", {a[0], a[1]});
        }}},
      {"string", {0, {}, [](R, V v, A) { return Value::text(print(v)); }}},
      {"safe", {0, {}, [](R, V v, A) { return Value::text(print(v)); }}},
      {"list", {0, {}, [](R run, V v, A) { return Value::list(run.items(v)); }}},
      {"first",
       {0,
        {},
        [](R run, V v, A) {
          List l = run.items(v);
          return l.empty() ? Value(Undefined{"No first item, sequence was empty."}) : l.front();
        }}},
      {"last",
       {0,
        {},
        [](R run, V v, A) {
          List l = run.items(v);
          return l.empty() ? Value(Undefined{"No last item, sequence was empty."}) : l.back();
        }}},
      {"reverse",
       {0,
        {},
        [](R run, V v, A) {
          List l = run.items(v);
          std::reverse(l.begin(), l.end());
          if (!v.str()) return Value::list(std::move(l));
          MarkedText text;
          for (const Value& c : l) text.append(*c.str());
          return Value::text(std::move(text));
        }}},
      {"join",
       {2,
        {"d", "attribute"},
        [](R run, V v, A a) {
          MarkedText text;
          bool first = true;
          for (const Value& item : run.items(v)) {
            if (!first) text.append(print(a[0]));
            first = false;
            const Value* part = &item;
            if (!a[1].is_undefined()) part = item.dict() ? find(*item.dict(), a[1]) : nullptr;
            if (part) text.append(print(*part));
          }
          return Value::text(std::move(text));
        }}},
      {"items",
       {0,
        {},
        [](R, V v, A) {
          if (v.is_undefined()) return Value::list({});
          if (!v.dict()) raise("Can only get item pairs from a mapping.");
          return (*method(v, "items").function())({}, {});
        }}},
      {"abs",
       {0,
        {},
        [](R, V v, A) {
          if (v.is<double>()) return Value(v.real() < 0 ? -v.real() : v.real());
          return Value(v.integer() < 0 ? -v.integer() : v.integer());
        }}},
      {"int",
       {1,
        {"default"},
        [](R, V v, A a) {
          Int otherwise = a[0].is_undefined() ? Int(0) : a[0].integer();
          if (v.is<double>()) {
            if (!(v.real() > -9e18 && v.real() < 9e18)) raise("a float is too large for int");
            return Value(static_cast<Int>(v.real()));
          }
          if (v.is_number()) return Value(v.integer());
          if (!v.str()) return Value(otherwise);
          std::string text = need_text(v, "strip", {}).str()->text;
          int64_t number = 0;
          const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
          auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
          bool good = error == std::errc() && end == text.data() + text.size() && !text.empty();
          return Value(good ? static_cast<Int>(number) : otherwise);
        }}},
      {"map", {2, {"attribute", "default"}, nullptr}},  // see Run::filter
      {"select", {3, {}, [](R r, V v, A a) { return Value::list(select(r, v, a, false, true)); }}},
      {"reject", {3, {}, [](R r, V v, A a) { return Value::list(select(r, v, a, false, false)); }}},
      {"selectattr",
       {3, {}, [](R r, V v, A a) { return Value::list(select(r, v, a, true, true)); }}},
      {"rejectattr",
       {3, {}, [](R r, V v, A a) { return Value::list(select(r, v, a, true, false)); }}},
  };
  return all;
}

}  // namespace

bool known_filter(std::string_view name) {
  return filters().contains(name);
}

namespace {

Value Run::filter(std::string_view name, const Value& value, List args, Kwargs named) {
  auto it = filters().find(name);
  if (it == filters().end()) {
    fail(Status::unsupported, "chat template: the filter '{}' is not supported", name);
  }
  const Filter& f = it->second;
  if (args.size() > f.max_args) raise(fmt::format("the filter '{}': too many arguments", name));
  if (name == "map") {
    List out;
    bool by_attribute = args.empty() && !named.empty() && named[0].first == "attribute";
    if (!by_attribute && (args.empty() || !args[0].str())) raise("map needs a filter or attribute");
    for (const Value& item : items(value)) {
      if (!by_attribute) {
        out.push_back(filter(args[0].str()->text, item, List(args.begin() + 1, args.end()), named));
        continue;
      }
      const Value* found = item.dict() ? find(*item.dict(), named[0].second) : nullptr;
      out.push_back(found               ? *found
                    : named.size() == 2 ? named[1].second
                                        : Value(Undefined{"no such attribute"}));
    }
    return Value::list(std::move(out));
  }
  args.resize(std::max(f.max_args, f.named.size()));
  for (auto& [key, argument] : named) {
    auto parameter = std::find(f.named.begin(), f.named.end(), key);
    if (parameter == f.named.end()) {
      fail(Status::unsupported, "chat template: the filter '{}' with {}= is not supported", name,
           key);
    }
    args[static_cast<size_t>(parameter - f.named.begin())] = argument;
  }
  Value result = f.apply(*this, value, args);
  if (result.str()) spend(result.str()->text.size() / 64);
  return result;
}

constexpr std::string_view tests[] = {
    "defined", "undefined", "none",    "string",   "number",   "integer",  "float",      "boolean",
    "true",    "false",     "mapping", "iterable", "sequence", "callable", "in",         "eq",
    "equalto", "==",        "ne",      "!=",       "lt",       "<",        "gt",         ">",
    "le",      "<=",        "ge",      ">=",       "odd",      "even",     "divisibleby"};

}  // namespace

bool known_test(std::string_view name) {
  return std::find(std::begin(tests), std::end(tests), name) != std::end(tests);
}

namespace {

bool Run::test(std::string_view name, const Value& v, const List& args) {
  auto other = [&]() -> const Value& {
    if (args.size() != 1) raise(fmt::format("the test '{}' takes one argument", name));
    return args[0];
  };
  bool is_bool = v.is<bool>();
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.str() != nullptr;
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is<Int>();
  if (name == "float") return v.is<double>();
  if (name == "boolean") return is_bool;
  if (name == "true") return is_bool && v.truthy();
  if (name == "false") return is_bool && !v.truthy();
  if (name == "mapping") return v.dict() && !v.dict()->is_namespace;
  if (name == "iterable" || name == "sequence") {
    return v.str() || v.list() || v.is_undefined() || (v.dict() && !v.dict()->is_namespace);
  }
  if (name == "callable") return v.function() != nullptr;
  if (name == "odd") return v.integer() % 2 != 0;
  if (name == "even") return v.integer() % 2 == 0;
  if (name == "divisibleby") {
    if (other().integer() == 0) raise("integer modulo by zero");
    return v.integer() % other().integer() == 0;
  }
  if (name == "in") {
    if (other().str())
      return v.str() && other().str()->text.find(v.str()->text) != std::string::npos;
    for (const Value& item : items(other())) {
      if (equal(item, v)) return true;
    }
    return false;
  }
  if (name == "eq" || name == "equalto" || name == "==") return equal(v, other());
  if (name == "ne" || name == "!=") return !equal(v, other());
  if (name == "lt" || name == "<") return less(v, other());
  if (name == "gt" || name == ">") return less(other(), v);
  if (name == "le" || name == "<=") return less(v, other()) || equal(v, other());
  return less(other(), v) || equal(v, other());  // ge
}

}  // namespace
}  // namespace speech::jinja

namespace speech {

JinjaTemplate::JinjaTemplate(std::string_view source) : root_(jinja::parse(source)) {}
JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;

MarkedText JinjaTemplate::render(const nlohmann::ordered_json& variables) const {
  if (!variables.is_object()) fail(Status::invalid_argument, "the variables are not an object");
  return jinja::Run(variables).run(*root_);
}

}  // namespace speech
