#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace speech::jinja {
namespace {

constexpr int max_depth = 200;

bool is_blank(uint32_t c) {
  return char_class(c) == CharClass::space || (c >= 0x1C && c <= 0x1F);  // str.isspace()
}

std::string int_text(Int value) {
  if (value == 0) return "0";
  std::string out;
  bool negative = value < 0;
  for (; value != 0; value /= 10)
    out += static_cast<char>('0' + std::abs(static_cast<int>(value % 10)));
  if (negative) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

void dump(const Value& value, int indent, int level, MarkedText& out) {
  if (level > max_depth) raise("a value is nested too deeply for tojson");
  auto line = [&](int depth) {
    if (indent >= 0)
      out.append("\n" + std::string(static_cast<size_t>(indent * depth), ' '), false);
  };
  auto string = [&](const MarkedText& s) {
    out.append("\"", false);
    for (size_t i = 0; i < s.text.size(); ++i) {
      auto c = static_cast<uint8_t>(s.text[i]);
      std::string piece(1, s.text[i]);
      switch (c) {
        case '"':
          piece = "\\\"";
          break;
        case '\\':
          piece = "\\\\";
          break;
        case '\n':
          piece = "\\n";
          break;
        case '\r':
          piece = "\\r";
          break;
        case '\t':
          piece = "\\t";
          break;
        case '\b':
          piece = "\\b";
          break;
        case '\f':
          piece = "\\f";
          break;
        default:
          if (c < 0x20) piece = fmt::format("\\u{:04x}", c);
      }
      out.append(piece, s.marks[i] != 0);
    }
    out.append("\"", false);
  };
  if (value.is_undefined()) raise("Object of type Undefined is not JSON serializable");
  if (value.is_none()) {
    out.append("null", false);
  } else if (value.is<bool>()) {
    out.append(value.truthy() ? "true" : "false", false);
  } else if (const MarkedText* s = value.str()) {
    string(*s);
  } else if (const List* list = value.list()) {
    out.append("[", false);
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out.append(indent >= 0 ? "," : ", ", false);
      line(level + 1);
      dump((*list)[i], indent, level + 1, out);
    }
    if (!list->empty()) line(level);
    out.append("]", false);
  } else if (const Dict* dict = value.dict(); dict && !dict->is_namespace) {
    out.append("{", false);
    for (size_t i = 0; i < dict->members.size(); ++i) {
      if (i > 0) out.append(indent >= 0 ? "," : ", ", false);
      line(level + 1);
      const Value& key = dict->members[i].first;
      string(key.str() ? *key.str() : print(key));
      out.append(": ", false);
      dump(dict->members[i].second, indent, level + 1, out);
    }
    if (!dict->members.empty()) line(level);
    out.append("}", false);
  } else if (value.is_number()) {
    out.append(print(value));
  } else {
    raise(fmt::format("Object of type {} is not JSON serializable", value.type()));
  }
}

}  // namespace

void raise(const std::string& message) {
  fail(Status::invalid_argument, "chat template: {}", message);
}

void Value::contain(const Value& part) {
  if (part.dict() && part.dict()->is_namespace) {
    fail(Status::unsupported, "chat template: a namespace inside another value is not supported");
  }
  depth = std::max(depth, part.depth + 1);
  if (depth > max_depth) raise("a value is nested too deeply");
}

Value Value::list(List l) {
  Value out;
  for (const Value& part : l) out.contain(part);
  out.v = std::make_shared<List>(std::move(l));
  return out;
}

Value Value::dict(Members m) {
  Value out;
  for (const auto& member : m) out.contain(member.second);
  out.v = std::make_shared<Dict>(Dict{std::move(m), false});
  return out;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (auto b = std::get_if<bool>(&v)) return *b;
  if (auto i = std::get_if<Int>(&v)) return *i != 0;
  if (auto d = std::get_if<double>(&v)) return *d != 0;
  if (auto s = str()) return !s->text.empty();
  if (auto l = list()) return !l->empty();
  if (auto d = dict()) return d->is_namespace || !d->members.empty();
  return true;
}

std::string_view Value::type() const {
  static constexpr std::string_view names[] = {"Undefined", "NoneType", "bool", "int",     "float",
                                               "str",       "list",     "dict", "function"};
  return names[v.index()];
}

Int Value::integer() const {
  if (auto i = std::get_if<Int>(&v)) return *i;
  if (auto b = std::get_if<bool>(&v)) return *b ? 1 : 0;
  raise(fmt::format("expected an integer, found '{}'", type()));
}

double Value::real() const {
  if (auto d = std::get_if<double>(&v)) return *d;
  return static_cast<double>(integer());
}

Value from_json(const nlohmann::ordered_json& j, int depth) {
  if (depth > max_depth) raise("a variable is nested too deeply");
  switch (j.type()) {
    case nlohmann::json::value_t::boolean:
      return Value(j.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value(static_cast<Int>(j.get<int64_t>()));
    case nlohmann::json::value_t::number_unsigned:
      return Value(static_cast<Int>(j.get<uint64_t>()));
    case nlohmann::json::value_t::number_float:
      return Value(j.get<double>());
    case nlohmann::json::value_t::string:
      return Value::text(replace_invalid_utf8(j.get_ref<const std::string&>()), true);
    case nlohmann::json::value_t::array: {
      List list;
      for (const auto& item : j) list.push_back(from_json(item, depth + 1));
      return Value::list(std::move(list));
    }
    case nlohmann::json::value_t::object: {
      Members members;
      for (const auto& [key, item] : j.items()) {
        members.emplace_back(Value::text(replace_invalid_utf8(key), true),
                             from_json(item, depth + 1));
      }
      return Value::dict(std::move(members));
    }
    default:
      return Value::none();
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  if (depth > max_depth) raise("values are nested too deeply to be compared");
  if (a.is_number() && b.is_number()) {
    return a.is<double>() || b.is<double>() ? a.real() == b.real() : a.integer() == b.integer();
  }
  if (a.v.index() != b.v.index()) return false;
  if (a.str()) return a.str()->text == b.str()->text;
  if (a.list()) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, depth + 1); });
  }
  if (a.dict()) {
    if (a.dict()->members.size() != b.dict()->members.size()) return false;
    return std::all_of(a.dict()->members.begin(), a.dict()->members.end(), [&](const auto& m) {
      const Value* other = find(*b.dict(), m.first);
      return other && equal(m.second, *other, depth + 1);
    });
  }
  return !a.function();
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is<double>() || b.is<double>() ? a.real() < b.real() : a.integer() < b.integer();
  }
  if (a.str() && b.str()) return a.str()->text < b.str()->text;  // UTF-8 keeps code point order
  raise(fmt::format("'{}' and '{}' cannot be ordered", a.type(), b.type()));
}

const Value* find(const Dict& dict, const Value& key) {
  for (const auto& [k, value] : dict.members) {
    if (equal(k, key)) return &value;
  }
  return nullptr;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[64];
  auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string s(buffer, end);
  std::string sign = s[0] == '-' ? "-" : "";
  size_t e = s.find('e');
  int exponent = std::stoi(s.substr(e + 1));
  std::string digits;
  for (char c : s.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string fraction = count > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? "-" : "+",
                       std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  return sign + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

MarkedText print(const Value& value) {
  MarkedText out;
  if (auto s = value.str()) return *s;
  if (value.is_none()) out.append("None", false);
  if (auto b = std::get_if<bool>(&value.v)) out.append(*b ? "True" : "False", false);
  if (auto i = std::get_if<Int>(&value.v)) out.append(int_text(*i), false);
  if (auto d = std::get_if<double>(&value.v)) {
    out.append(std::isnan(*d)   ? "nan"
               : std::isinf(*d) ? (*d < 0 ? "-inf" : "inf")
                                : float_text(*d),
               false);
  }
  if (value.list() || value.dict() || value.function()) {
    raise(fmt::format("a {} is printed without tojson, which is not supported", value.type()));
  }
  return out;
}

MarkedText to_json(const Value& value, int indent) {
  MarkedText out;
  dump(value, indent, 0, out);
  return out;
}

size_t code_points(std::string_view s) {
  return static_cast<size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

MarkedText part(const MarkedText& s, size_t begin, size_t end) {
  return {s.text.substr(begin, end - begin), s.marks.substr(begin, end - begin)};
}

std::vector<MarkedText> characters(const MarkedText& s) {
  std::vector<MarkedText> out;
  for (size_t i = 0; i < s.text.size();) {
    size_t size = decode_utf8(s.text, i).size;
    out.push_back(part(s, i, i + size));
    i += size;
  }
  return out;
}

namespace {

MarkedText strip(const MarkedText& s, const Value& chars, bool left, bool right) {
  std::vector<uint32_t> set;
  if (chars.str()) {
    const std::string& text = chars.str()->text;
    for (size_t i = 0; i < text.size();) {
      CodePoint c = decode_utf8(text, i);
      set.push_back(c.value);
      i += c.size;
    }
  } else if (!chars.is_none()) {
    raise(fmt::format("strip arg must be None or str, not {}", chars.type()));
  }
  auto member = [&](uint32_t c) {
    return chars.str() ? std::find(set.begin(), set.end(), c) != set.end() : is_blank(c);
  };
  size_t begin = 0, end = s.text.size();
  while (left && begin < end) {
    CodePoint c = decode_utf8(s.text, begin);
    if (!member(c.value)) break;
    begin += c.size;
  }
  while (right && end > begin) {
    size_t i = end - 1;
    while (i > begin && (s.text[i] & 0xC0) == 0x80) --i;
    if (!member(decode_utf8(s.text, i).value)) break;
    end = i;
  }
  return part(s, begin, end);
}

Value split(const MarkedText& s, const Value& separator, Int limit, bool from_right) {
  List out;
  if (separator.is_none()) {
    if (from_right) raise("rsplit() without a separator is not supported");
    size_t i = 0, size = s.text.size();
    auto blank = [&](size_t at) { return is_blank(decode_utf8(s.text, at).value); };
    while (true) {
      while (i < size && blank(i)) i += decode_utf8(s.text, i).size;
      if (i >= size) break;
      size_t begin = i;
      if (limit >= 0 && static_cast<Int>(out.size()) >= limit) {
        out.push_back(Value::text(part(s, begin, size)));
        break;
      }
      while (i < size && !blank(i)) i += decode_utf8(s.text, i).size;
      out.push_back(Value::text(part(s, begin, i)));
    }
    return Value::list(std::move(out));
  }
  if (!separator.str()) raise(fmt::format("must be str or None, not {}", separator.type()));
  const std::string& by = separator.str()->text;
  if (by.empty()) raise("empty separator");
  size_t begin = 0, end = s.text.size();
  while (limit < 0 || static_cast<Int>(out.size()) < limit) {
    if (from_right) {
      size_t at = end < by.size() ? std::string::npos : s.text.rfind(by, end - by.size());
      if (at == std::string::npos) break;
      out.push_back(Value::text(part(s, at + by.size(), end)));
      end = at;
    } else {
      size_t at = s.text.find(by, begin);
      if (at == std::string::npos) break;
      out.push_back(Value::text(part(s, begin, at)));
      begin = at + by.size();
    }
  }
  out.push_back(Value::text(part(s, begin, end)));
  if (from_right) std::reverse(out.begin(), out.end());
  return Value::list(std::move(out));
}

MarkedText replace(const MarkedText& s, const MarkedText& from, const MarkedText& to, Int limit) {
  if (from.text.empty()) raise("replace() of an empty string is not supported");
  MarkedText out;
  size_t begin = 0;
  for (size_t at; limit != 0 && (at = s.text.find(from.text, begin)) != std::string::npos;
       --limit) {
    out.append(part(s, begin, at));
    out.append(to);
    begin = at + from.text.size();
  }
  out.append(part(s, begin, s.text.size()));
  return out;
}

// Upper and lower case of ASCII; other letters are refused rather than mapped by other tables.
MarkedText change_case(MarkedText s, std::string_view how) {
  bool start = true;
  for (char& c : s.text) {
    if (static_cast<uint8_t>(c) >= 0x80) {
      raise(fmt::format("{}() of text other than ASCII is not supported", how));
    }
    bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
    bool to_upper = how == "upper" || (start && (how == "title" || how == "capitalize"));
    if (to_upper && lower) c = static_cast<char>(c - 32);
    if (!to_upper && upper) c = static_cast<char>(c + 32);
    start = how == "title" && !lower && !upper;
  }
  return s;
}

using Method = Value (*)(const Value& self, const List& args);

Value argument(const List& args, size_t i, Value otherwise = Value::none()) {
  return i < args.size() ? args[i] : otherwise;
}

const MarkedText& text_argument(const List& args, size_t i) {
  if (i >= args.size() || !args[i].str()) raise("a method of str needs a string here");
  return *args[i].str();
}

bool affix(const MarkedText& s, const Value& arg, bool front) {
  if (arg.list()) {
    return std::any_of(arg.list()->begin(), arg.list()->end(),
                       [&](const Value& a) { return affix(s, a, front); });
  }
  if (!arg.str()) raise("startswith/endswith needs a string");
  return front ? s.text.starts_with(arg.str()->text) : s.text.ends_with(arg.str()->text);
}

const std::map<std::string, Method, std::less<>>& str_methods() {
  using V = const Value&;
  using A = const List&;
  static const std::map<std::string, Method, std::less<>> methods = {
      {"startswith", [](V s, A a) { return Value(affix(*s.str(), argument(a, 0), true)); }},
      {"endswith", [](V s, A a) { return Value(affix(*s.str(), argument(a, 0), false)); }},
      {"strip", [](V s, A a) { return Value::text(strip(*s.str(), argument(a, 0), true, true)); }},
      {"lstrip",
       [](V s, A a) { return Value::text(strip(*s.str(), argument(a, 0), true, false)); }},
      {"rstrip",
       [](V s, A a) { return Value::text(strip(*s.str(), argument(a, 0), false, true)); }},
      {"split",
       [](V s, A a) {
         return split(*s.str(), argument(a, 0), argument(a, 1, Value(Int(-1))).integer(), false);
       }},
      {"rsplit",
       [](V s, A a) {
         return split(*s.str(), argument(a, 0), argument(a, 1, Value(Int(-1))).integer(), true);
       }},
      {"replace",
       [](V s, A a) {
         return Value::text(replace(*s.str(), text_argument(a, 0), text_argument(a, 1),
                                    argument(a, 2, Value(Int(-1))).integer()));
       }},
      {"removeprefix",
       [](V s, A a) {
         bool has = s.str()->text.starts_with(text_argument(a, 0).text);
         return Value::text(
             part(*s.str(), has ? text_argument(a, 0).text.size() : 0, s.str()->text.size()));
       }},
      {"removesuffix",
       [](V s, A a) {
         size_t size = s.str()->text.size();
         bool has = s.str()->text.ends_with(text_argument(a, 0).text);
         return Value::text(part(*s.str(), 0, has ? size - text_argument(a, 0).text.size() : size));
       }},
      {"find",
       [](V s, A a) {
         size_t at = s.str()->text.find(text_argument(a, 0).text);
         if (at == std::string::npos) return Value(Int(-1));
         return Value(Int(code_points(std::string_view(s.str()->text).substr(0, at))));
       }},
      {"upper", [](V s, A) { return Value::text(change_case(*s.str(), "upper")); }},
      {"lower", [](V s, A) { return Value::text(change_case(*s.str(), "lower")); }},
      {"title", [](V s, A) { return Value::text(change_case(*s.str(), "title")); }},
      {"capitalize", [](V s, A) { return Value::text(change_case(*s.str(), "capitalize")); }},
  };
  return methods;
}

const std::map<std::string, Method, std::less<>>& dict_methods() {
  using V = const Value&;
  using A = const List&;
  static const std::map<std::string, Method, std::less<>> methods = {
      {"get",
       [](V s, A a) {
         const Value* found = find(*s.dict(), argument(a, 0));
         return found ? *found : argument(a, 1);
       }},
      {"items",
       [](V s, A) {
         List out;
         for (const auto& [k, v] : s.dict()->members) out.push_back(Value::list({k, v}));
         return Value::list(std::move(out));
       }},
      {"keys",
       [](V s, A) {
         List out;
         for (const auto& m : s.dict()->members) out.push_back(m.first);
         return Value::list(std::move(out));
       }},
      {"values",
       [](V s, A) {
         List out;
         for (const auto& m : s.dict()->members) out.push_back(m.second);
         return Value::list(std::move(out));
       }},
  };
  return methods;
}

// Attributes that Python has and this renderer does not: calling them is an error that says so,
// because a template that uses them would silently come out differently.
constexpr std::string_view other_attributes[] = {
    "append",   "casefold",   "center",      "clear",      "copy",       "count",    "decode",
    "encode",   "expandtabs", "extend",      "format",     "format_map", "fromkeys", "index",
    "insert",   "isalnum",    "isalpha",     "isascii",    "isdecimal",  "isdigit",  "isidentifier",
    "islower",  "isnumeric",  "isprintable", "isspace",    "istitle",    "isupper",  "join",
    "ljust",    "maketrans",  "partition",   "pop",        "popitem",    "remove",   "reverse",
    "rfind",    "rindex",     "rjust",       "rpartition", "setdefault", "sort",     "splitlines",
    "swapcase", "translate",  "update",      "zfill"};

}  // namespace

Value method(const Value& self, std::string_view name) {
  const auto* methods = self.str()                                  ? &str_methods()
                        : self.dict() && !self.dict()->is_namespace ? &dict_methods()
                                                                    : nullptr;
  if (methods) {
    if (auto it = methods->find(name); it != methods->end()) {
      Value bound =
          Value::function([self, m = it->second, name = std::string(name)](List args, Kwargs kw) {
            if (!kw.empty()) fail(Status::unsupported, "chat template: {}() with a keyword", name);
            return m(self, args);
          });
      bound.contain(self);
      return bound;
    }
  }
  bool has_attributes = methods || self.list();
  // dict's own "index", "count", "format" ... are members like any other: only dict's methods hide
  // members of the same name.
  static constexpr std::string_view of_dict[] = {"clear",   "copy",       "fromkeys", "pop",
                                                 "popitem", "setdefault", "update"};
  bool known = self.dict()
                   ? std::find(std::begin(of_dict), std::end(of_dict), name) != std::end(of_dict)
                   : std::find(std::begin(other_attributes), std::end(other_attributes), name) !=
                         std::end(other_attributes);
  if (has_attributes && known) {
    return Value::function([type = std::string(self.type()), name = std::string(name)](
                               List, Kwargs) -> Value {
      fail(Status::unsupported, "chat template: the method {}.{}() is not supported", type, name);
    });
  }
  return Value(Undefined{fmt::format("'{} object' has no attribute '{}'", self.type(), name)});
}

}  // namespace speech::jinja
