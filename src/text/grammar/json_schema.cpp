// JSON schema as a grammar of the JSON texts that it allows.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "text/grammar/expr.h"
#include "text/json_depth.h"
#include "text/utf8.h"

namespace speech::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t max_text = 1 << 20;
constexpr int max_depth = 100;
constexpr size_t max_properties = 2000;
constexpr size_t max_key = 256;  // bytes of a property's name beside additionalProperties

template <typename... Args>
[[noreturn]] void unsupported(const std::string& path, fmt::format_string<Args...> format,
                              Args&&... args) {
  fail_option(Status::unsupported, "json_schema", "JSON schema, {}: {}", path,
              fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void invalid(const std::string& path, fmt::format_string<Args...> format,
                          Args&&... args) {
  fail_option(Status::invalid_argument, "json_schema", "JSON schema, {}: {}", path,
              fmt::format(format, std::forward<Args>(args)...));
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const CharRanges control = {{0, 0x1F}};
const CharRanges digit = {{'0', '9'}};
const CharRanges nonzero = {{'1', '9'}};

// One character inside a string, written in the one way that json.dumps(ensure_ascii=False) has.
ExprPtr canonical_char(const CharRanges& wanted) {
  CharRanges ranges = normalize(wanted);
  std::vector<ExprPtr> out;
  CharRanges escaped = control;
  escaped.insert(escaped.end(), {{'"', '"'}, {'\\', '\\'}});
  for (uint32_t c : {0x22u, 0x5Cu}) {
    for (auto [a, b] : ranges) {
      if (a <= c && c <= b) out.push_back(literal(c == '"' ? "\\\"" : "\\\\"));
    }
  }
  for (auto [a, b] : ranges) {
    for (uint32_t c = a; c <= b && c < 0x20; ++c) {
      std::string text = dump(Json(std::string(1, static_cast<char>(c))));
      out.push_back(literal(std::string_view(text).substr(1, text.size() - 2)));
    }
  }
  // What is left of the ranges without the escaped ones.
  CharRanges outside = complement(ranges);
  outside.insert(outside.end(), escaped.begin(), escaped.end());
  CharRanges raw = complement(outside);
  if (!raw.empty()) out.push_back(chars(raw));
  return choice(std::move(out));
}

// Any character inside a string, in any spelling of JSON.
ExprPtr json_char() {
  CharRanges outside = control;
  outside.insert(outside.end(), {{'"', '"'}, {'\\', '\\'}});
  ExprPtr hex = chars({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  ExprPtr d = chars({{'D', 'D'}, {'d', 'd'}});
  ExprPtr not_surrogate =
      choice({sequence({chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}),
                        repeat(hex, 3, 3)}),
              sequence({d, chars({{'0', '7'}}), hex, hex})});
  ExprPtr pair = sequence({d, chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex, hex, literal("\\u"),
                           d, chars({{'C', 'F'}, {'c', 'f'}}), hex, hex});
  CharRanges simple;
  for (char c : std::string_view("\"\\/bfnrt")) simple.emplace_back(c, c);
  return choice({chars(complement(outside)),
                 sequence({literal("\\"),
                           choice({chars(simple),
                                   sequence({literal("u"), choice({not_surrogate, pair})})})})});
}

ExprPtr quoted(ExprPtr inner) {
  return sequence({literal("\""), std::move(inner), literal("\"")});
}

// Integers lo..hi (0 <= lo <= hi) without leading zeros; no `hi`: without end.
ExprPtr magnitude(uint64_t lo, std::optional<uint64_t> hi) {
  std::vector<ExprPtr> out;
  // All numbers of one length between two of that length.
  auto same_length = [](const std::string& a, const std::string& b) {
    auto between = [](auto& self, std::string_view x, std::string_view y) -> ExprPtr {
      if (x.empty()) return literal("");
      auto range = [](char p, char q) {
        return chars({{static_cast<uint32_t>(p), static_cast<uint32_t>(q)}});
      };
      std::string_view xs = x.substr(1), ys = y.substr(1);
      auto rest = static_cast<int64_t>(xs.size());
      if (x[0] == y[0]) return sequence({range(x[0], x[0]), self(self, xs, ys)});
      std::vector<ExprPtr> parts;
      parts.push_back(sequence({range(x[0], x[0]), self(self, xs, std::string(xs.size(), '9'))}));
      if (y[0] - x[0] > 1) {
        parts.push_back(sequence({range(static_cast<char>(x[0] + 1), static_cast<char>(y[0] - 1)),
                                  repeat(chars(digit), rest, rest)}));
      }
      parts.push_back(sequence({range(y[0], y[0]), self(self, std::string(ys.size(), '0'), ys)}));
      return choice(std::move(parts));
    };
    return between(between, a, b);
  };
  std::string a = std::to_string(lo), b = hi ? std::to_string(*hi) : std::string(a.size(), '9');
  for (size_t size = a.size(); size <= b.size(); ++size) {
    std::string from = size == a.size() ? a : "1" + std::string(size - 1, '0');
    out.push_back(same_length(from, size == b.size() ? b : std::string(size, '9')));
  }
  if (!hi) {
    out.push_back(sequence(
        {chars(nonzero), repeat(chars(digit), static_cast<int64_t>(a.size()), unbounded)}));
  }
  return choice(std::move(out));
}

struct Bound {
  int64_t value = 0;
  bool exclusive = false;
};

// Rules that are made later keep the compiler alive, and they live in the rules: so it only points
// to them.
class SchemaCompiler : public std::enable_shared_from_this<SchemaCompiler> {
 public:
  SchemaCompiler(Json root, Rules* rules) : root_(std::move(root)), rules_(rules) {
    rules_->add("root");
    ws_ = rules_->add(
        "white space",
        optional(
            choice({literal(" "),
                    sequence({literal("\n"), repeat(chars({{' ', ' '}, {'\t', '\t'}}), 0, 32)})})));
    string_ = rules_->add("string", quoted(repeat(json_char(), 0, unbounded)));
    any_ = rules_->add("any value");
    any_object_ = rules_->add("any object");
    ExprPtr member = sequence({call(string_), ws(), literal(":"), ws(), call(any_)});
    rules_->list[any_object_].body = enclosed("{", member, 0, unbounded, "}");
    ExprPtr any_array = enclosed("[", call(any_), 0, unbounded, "]");
    rules_->list[any_].body =
        choice({call(string_), call(any_object_), any_array, number(), integer(), literal("true"),
                literal("false"), literal("null")});
  }

  void run() {
    ExprPtr root = schema(root_, "#", 0);
    if (!root) invalid("#", "no value satisfies it");
    rules_->list[0].body = root;
    while (!pending_.empty()) {
      auto [target, id] = pending_.back();
      pending_.pop_back();
      ExprPtr body = schema(root_.at(Json::json_pointer(target.substr(1))), target, 0);
      rules_->list[id].body = body ? body : choice({});
    }
  }

  void any_object() { rules_->list[0].body = call(any_object_); }

 private:
  ExprPtr ws() const { return call(ws_); }

  // open (item (, item)*)? close, with `min` to `max` items.
  ExprPtr enclosed(std::string_view open, const ExprPtr& item, int64_t min, int64_t max,
                   std::string_view close) const {
    ExprPtr last = literal(close);
    if (max == 0 || !item) return sequence({literal(open), ws(), last});
    ExprPtr more = sequence({ws(), literal(","), ws(), item});
    ExprPtr some = sequence({item,
                             rules_->counted(more, std::max<int64_t>(min - 1, 0),
                                             max == unbounded ? unbounded : max - 1),
                             ws(), last});
    return sequence({literal(open), ws(), min > 0 ? some : choice({some, last})});
  }

  static ExprPtr integer() {
    return sequence({optional(literal("-")), magnitude(0, std::nullopt)});
  }
  // Exponents end at 299, so that readers which check for overflow take every number that has not
  // hundreds of digits besides.
  static ExprPtr number() {
    ExprPtr exponent =
        sequence({chars({{'E', 'E'}, {'e', 'e'}}), optional(chars({{'+', '+'}, {'-', '-'}})),
                  choice({repeat(chars(digit), 1, 2),
                          sequence({chars({{'0', '2'}}), repeat(chars(digit), 2, 2)})})});
    return sequence({integer(), optional(fraction()), optional(exponent)});
  }
  static ExprPtr fraction() { return sequence({literal("."), repeat(chars(digit), 1, unbounded)}); }

  // A schema as an expression; null if no value satisfies it.
  ExprPtr schema(const Json& s, const std::string& path, int depth) {
    if (depth > max_depth) invalid(path, "nested too deeply");
    if (s.is_boolean()) return s.get<bool>() ? call(any_) : nullptr;
    if (!s.is_object()) invalid(path, "a schema is an object or a boolean, not {}", dump(s));
    check_keywords(s, path);
    // Keywords that stand alone.
    static constexpr std::string_view alone[] = {"$ref",  "enum",  "const",
                                                 "anyOf", "oneOf", "allOf"};
    for (std::string_view keyword : alone) {
      if (!s.contains(keyword)) continue;
      for (const auto& [other, value] : s.items()) {
        if (other == keyword || is_annotation(other)) continue;
        if (other == "type" && (keyword == "enum" || keyword == "const")) continue;
        unsupported(path, "\"{}\" beside \"{}\" is not supported", other, keyword);
      }
      const Json& value = s[std::string(keyword)];
      if (keyword == "$ref") return reference(value, path);
      if (keyword == "const") return values(Json::array({value}), s, path);
      if (!value.is_array() || value.empty()) invalid(path, "\"{}\" needs a list", keyword);
      if (keyword == "enum") return values(value, s, path);
      if (keyword == "allOf" && value.size() > 1) {
        unsupported(path, "\"allOf\" of more than one schema is not supported");
      }
      if (keyword == "oneOf") check_disjoint(value, path);
      std::vector<ExprPtr> all;
      for (size_t i = 0; i < value.size(); ++i) {
        ExprPtr e = schema(value[i], fmt::format("{}/{}/{}", path, keyword, i), depth + 1);
        if (e) all.push_back(e);
      }
      return all.empty() ? nullptr : choice(std::move(all));
    }
    std::vector<ExprPtr> all;
    for (const std::string& type : types_of(s, path)) {
      if (ExprPtr e = typed(type, s, path, depth)) all.push_back(e);
    }
    return all.empty() ? nullptr : choice(std::move(all));
  }

  static bool is_annotation(std::string_view key) {
    static const std::set<std::string_view> names = {
        "title",       "description", "default",    "examples", "example",
        "$schema",     "$id",         "id",         "$comment", "$defs",
        "definitions", "$anchor",     "deprecated", "readOnly", "writeOnly"};
    return names.contains(key);
  }

  static void check_keywords(const Json& s, const std::string& path) {
    static const std::set<std::string_view> known = {"type",
                                                     "properties",
                                                     "required",
                                                     "additionalProperties",
                                                     "items",
                                                     "minItems",
                                                     "maxItems",
                                                     "enum",
                                                     "const",
                                                     "anyOf",
                                                     "oneOf",
                                                     "allOf",
                                                     "$ref",
                                                     "minLength",
                                                     "maxLength",
                                                     "pattern",
                                                     "format",
                                                     "minimum",
                                                     "maximum",
                                                     "exclusiveMinimum",
                                                     "exclusiveMaximum"};
    for (const auto& [key, value] : s.items()) {
      if (known.contains(key) || is_annotation(key)) continue;
      if (key == "uniqueItems" && value == false) continue;
      unsupported(path, "the keyword \"{}\" is not supported", key);
    }
  }

  std::vector<std::string> types_of(const Json& s, const std::string& path) {
    static const std::vector<std::string> every = {"object",  "array",   "string", "number",
                                                   "integer", "boolean", "null"};
    std::vector<std::string> out;
    auto add = [&](const Json& type) {
      if (!type.is_string() ||
          std::find(every.begin(), every.end(), type.get<std::string>()) == every.end()) {
        invalid(path, "\"type\" {} is unknown", dump(type));
      }
      out.push_back(type.get<std::string>());
    };
    if (s.contains("type")) {
      if (s["type"].is_array()) {
        for (const Json& type : s["type"]) add(type);
      } else {
        add(s["type"]);
      }
      if (out.empty()) invalid(path, "\"type\" is an empty list");
      return out;
    }
    // Without a type the keywords say which is meant; without any, every value will do.
    auto has = [&](std::initializer_list<const char*> keys) {
      return std::any_of(keys.begin(), keys.end(), [&](const char* k) { return s.contains(k); });
    };
    if (has({"properties", "required", "additionalProperties"})) return {"object"};
    if (has({"items", "minItems", "maxItems"})) return {"array"};
    if (has({"minLength", "maxLength", "pattern", "format"})) return {"string"};
    if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) return {"number"};
    return {"any"};
  }

  ExprPtr typed(const std::string& type, const Json& s, const std::string& path, int depth) {
    if (type == "any") return call(any_);
    if (type == "null") return literal("null");
    if (type == "boolean") return choice({literal("true"), literal("false")});
    if (type == "string") return string(s, path);
    if (type == "array") return array(s, path, depth);
    if (type == "object") return object(s, path, depth);
    return numeric(s, path, type == "integer");
  }

  static int64_t count(const Json& s, const char* key, int64_t otherwise, const std::string& path) {
    if (!s.contains(key)) return otherwise;
    const Json& v = s[key];
    bool whole = v.is_number_integer() ||
                 (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()));
    if (!whole || v.get<double>() < 0) {
      invalid(path, "\"{}\" is {}, not a count", key, dump(v));
    }
    if (v.get<double>() > 1e6) {
      unsupported(path, "\"{}\" is {}; at most 1000000 is possible", key, dump(v));
    }
    return v.get<int64_t>();
  }

  ExprPtr string(const Json& s, const std::string& path) {
    int64_t min = count(s, "minLength", 0, path), max = count(s, "maxLength", unbounded, path);
    std::string pattern;
    if (s.contains("format")) {
      if (!s["format"].is_string()) invalid(path, "\"format\" is no string");
      static const std::string date =
          "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
          "02-(0[1-9]|1[0-9]|2[0-8]))";  // without leap days
      static const std::string time =
          "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?"
          "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
      static const std::map<std::string, std::string> formats = {
          {"date", "^" + date + "$"},
          {"time", "^" + time + "$"},
          {"date-time", "^" + date + "T" + time + "$"},
          {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
      };
      auto it = formats.find(s["format"].get<std::string>());
      if (it == formats.end()) {
        unsupported(path, "the format {} is not supported", dump(s["format"]));
      }
      pattern = it->second;
    }
    if (s.contains("pattern")) {
      if (!s["pattern"].is_string()) invalid(path, "\"pattern\" is no string");
      if (!pattern.empty()) unsupported(path, "\"pattern\" beside \"format\" is not supported");
      pattern = s["pattern"].get<std::string>();
      if (pattern.empty()) pattern = "^";
    }
    if (!pattern.empty()) {
      if (min > 0 || max != unbounded) {
        unsupported(path, "a length beside \"pattern\" or \"format\" is not supported");
      }
      return quoted(parse_regex(pattern, canonical_char));
    }
    if (min == 0 && max == unbounded) return call(string_);
    if (max != unbounded && max < min) return nullptr;
    return quoted(rules_->counted(json_char(), min, max));
  }

  ExprPtr array(const Json& s, const std::string& path, int depth) {
    int64_t min = count(s, "minItems", 0, path), max = count(s, "maxItems", unbounded, path);
    if (max != unbounded && max < min) return nullptr;
    ExprPtr item =
        s.contains("items") ? schema(s["items"], path + "/items", depth + 1) : call(any_);
    if (!item && min > 0) return nullptr;
    if (item && item->kind != Expr::Kind::rule) item = call(rules_->add(path + "/items", item));
    return enclosed("[", item, min, max, "]");
  }

  // ---- numbers

  static std::optional<Bound> bound(const Json& s, const char* inclusive, const char* exclusive,
                                    bool lower, bool integer, const std::string& path) {
    std::optional<Bound> out;
    for (const char* key : {inclusive, exclusive}) {
      if (!s.contains(key)) continue;
      const Json& v = s[key];
      if (!v.is_number()) invalid(path, "\"{}\" is {}, not a number", key, dump(v));
      double d = v.get<double>();
      Bound b{0, key == exclusive};
      if (std::abs(d) > 9e15) unsupported(path, "\"{}\" {} is too large", key, dump(v));
      if (d != std::floor(d)) {
        if (!integer) {
          unsupported(path, "\"{}\" {}: only whole numbers are supported as bounds", key, dump(v));
        }
        b = {static_cast<int64_t>(lower ? std::ceil(d) : std::floor(d)), false};
      } else {
        b.value = static_cast<int64_t>(d);
        if (integer && b.exclusive) b = {b.value + (lower ? 1 : -1), false};
      }
      bool tighter = !out || (lower ? b.value > out->value : b.value < out->value) ||
                     (b.value == out->value && b.exclusive);
      if (tighter) out = b;
    }
    return out;
  }

  // Numbers of one sign whose magnitude is between the bounds.
  static ExprPtr one_sign(bool negative, bool integer, Bound lo, std::optional<Bound> hi) {
    std::vector<ExprPtr> out;
    auto whole = [](int64_t a, std::optional<int64_t> b) {
      return magnitude(static_cast<uint64_t>(a),
                       b ? std::optional<uint64_t>(static_cast<uint64_t>(*b)) : std::nullopt);
    };
    ExprPtr zeros = sequence({literal("."), repeat(literal("0"), 1, unbounded)});
    ExprPtr positive = sequence({literal("."), repeat(chars(digit), 0, unbounded), chars(nonzero),
                                 repeat(chars(digit), 0, unbounded)});
    if (hi && lo.value > hi->value) return nullptr;
    if (hi && lo.value == hi->value) {
      if (lo.exclusive || hi->exclusive) return nullptr;
      out.push_back(integer ? whole(lo.value, lo.value)
                            : sequence({whole(lo.value, lo.value), optional(zeros)}));
    } else if (integer) {
      std::optional<int64_t> end;
      if (hi) end = hi->value;
      out.push_back(whole(lo.value, end));
    } else {
      out.push_back(
          sequence({whole(lo.value, lo.value), lo.exclusive ? positive : optional(fraction())}));
      if (!hi) {
        out.push_back(sequence({whole(lo.value + 1, std::nullopt), optional(fraction())}));
      } else {
        if (hi->value - lo.value > 1) {
          out.push_back(sequence({whole(lo.value + 1, hi->value - 1), optional(fraction())}));
        }
        if (!hi->exclusive) {
          out.push_back(sequence({whole(hi->value, hi->value), optional(zeros)}));
        }
      }
    }
    ExprPtr all = choice(std::move(out));
    return negative ? sequence({literal("-"), all}) : all;
  }

  ExprPtr numeric(const Json& s, const std::string& path, bool whole) {
    auto lo = bound(s, "minimum", "exclusiveMinimum", true, whole, path);
    auto hi = bound(s, "maximum", "exclusiveMaximum", false, whole, path);
    if (!lo && !hi) return whole ? integer() : number();
    std::vector<ExprPtr> out;
    if (!hi || hi->value >= 0) {
      Bound from = lo && lo->value >= 0 ? *lo : Bound{0, false};
      if (ExprPtr e = one_sign(false, whole, from, hi)) out.push_back(e);
    }
    if (!lo || lo->value < 0) {
      Bound from =
          hi && hi->value <= 0 ? Bound{-hi->value, hi->exclusive} : Bound{whole ? 1 : 0, !whole};
      std::optional<Bound> to;
      if (lo) to = Bound{-lo->value, lo->exclusive};
      if (ExprPtr e = one_sign(true, whole, from, to)) out.push_back(e);
    }
    return out.empty() ? nullptr : choice(std::move(out));
  }

  // ---- enum, $ref, oneOf

  static bool is_type(const Json& v, const std::string& type) {
    if (type == "object") return v.is_object();
    if (type == "array") return v.is_array();
    if (type == "string") return v.is_string();
    if (type == "number") return v.is_number();
    if (type == "integer") {
      return v.is_number_integer() ||
             (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()));
    }
    if (type == "boolean") return v.is_boolean();
    return type == "any" || v.is_null();
  }

  // Integers past 64 bits are read as doubles, which would be printed with other digits.
  static void check_digits(const Json& v, const std::string& path) {
    if (v.is_structured()) {
      for (const Json& part : v) check_digits(part, path);
    } else if (v.is_number_float()) {
      double d = v.get<double>();
      if (std::abs(d) < 0x1p53 || d != std::floor(d)) return;
      unsupported(path, "whole numbers as large as {} are not supported as values", dump(v));
    }
  }

  ExprPtr values(const Json& list, const Json& s, const std::string& path) {
    std::vector<std::string> types =
        s.contains("type") ? types_of(s, path) : std::vector<std::string>{"any"};
    std::vector<ExprPtr> out;
    for (const Json& v : list) {
      if (std::any_of(types.begin(), types.end(),
                      [&](const std::string& t) { return is_type(v, t); })) {
        check_digits(v, path);
        out.push_back(literal(dump(v)));
      }
    }
    return out.empty() ? nullptr : choice(std::move(out));
  }

  ExprPtr reference(const Json& ref, const std::string& path) {
    if (!ref.is_string()) invalid(path, "\"$ref\" is no string");
    auto target = ref.get<std::string>();
    if (!target.starts_with('#')) {
      unsupported(path, "\"$ref\" {}: only references inside the schema (#/...) are supported",
                  dump(ref));
    }
    if (target == "#") {
      return call(0);
    }
    auto [it, is_new] = references_.emplace(target, 0);
    if (is_new) {
      try {
        (void)root_.at(Json::json_pointer(target.substr(1)));
      } catch (const Json::exception&) {
        invalid(path, "\"$ref\" {} leads nowhere", dump(ref));
      }
      it->second = rules_->add(target);
      pending_.emplace_back(target, it->second);
    }
    return call(it->second);
  }

  // oneOf is the same as anyOf if no value can satisfy two of its schemas: different types, or a
  // required property with different constants.
  void check_disjoint(const Json& list, const std::string& path) {
    auto resolve = [&](const Json& s) -> const Json& {
      const Json* at = &s;
      for (int i = 0; i < 10 && at->is_object() && at->contains("$ref"); ++i) {
        const Json& ref = (*at)["$ref"];
        if (!ref.is_string() || !ref.get<std::string>().starts_with("#/")) break;
        try {
          at = &root_.at(Json::json_pointer(ref.get<std::string>().substr(1)));
        } catch (const Json::exception&) {
          invalid(path, "\"$ref\" {} leads nowhere", dump(ref));
        }
      }
      return *at;
    };
    auto constants = [&](const Json& s) -> std::optional<Json> {
      if (!s.is_object()) return std::nullopt;
      if (s.contains("const")) return Json::array({s["const"]});
      if (s.contains("enum") && s["enum"].is_array()) return s["enum"];
      return std::nullopt;
    };
    size_t work = 0;  // comparisons, which grow with the square of the schemas and of their values
    auto count = [&](size_t comparisons) {
      work += comparisons;
      if (work > 10'000'000) {
        unsupported(path, "\"oneOf\" of so many schemas or values is not supported; use \"anyOf\"");
      }
    };
    auto apart = [&](const Json& a, const Json& b) {
      auto x = constants(a), y = constants(b);
      if (x && y) {
        count(x->size() * y->size());
        return std::none_of(x->begin(), x->end(), [&](const Json& v) {
          return std::find(y->begin(), y->end(), v) != y->end();
        });
      }
      return false;
    };
    auto disjoint = [&](const Json& a, const Json& b) {
      count(100);
      if (!a.is_object() || !b.is_object()) return a == false || b == false;
      if (apart(a, b)) return true;
      if (a.contains("type") && b.contains("type")) {
        std::vector<std::string> x = types_of(a, path), y = types_of(b, path);
        auto overlap = [](const std::string& p, const std::string& q) {
          return p == q || (p == "number" && q == "integer") || (p == "integer" && q == "number");
        };
        bool any = std::any_of(x.begin(), x.end(), [&](const std::string& p) {
          return std::any_of(y.begin(), y.end(),
                             [&](const std::string& q) { return overlap(p, q); });
        });
        if (!any) return true;
        if (x == y && x == std::vector<std::string>{"object"}) {
          const Json of_a = a.value("properties", Json::object());
          const Json of_b = b.value("properties", Json::object());
          if (!of_a.is_object() || !of_b.is_object()) return false;
          count(of_a.size() * 100);
          for (auto property = of_a.begin(); property != of_a.end(); ++property) {
            const std::string& name = property.key();
            const Json& value = property.value();
            Json other = of_b.value(name, Json());
            auto required = [&](const Json& s) {
              Json r = s.value("required", Json::array());
              return std::find(r.begin(), r.end(), Json(name)) != r.end();
            };
            if (required(a) && required(b) && apart(value, other)) return true;
          }
        }
      }
      return false;
    };
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!disjoint(resolve(list[i]), resolve(list[j]))) {
          unsupported(path,
                      "\"oneOf\" whose schemas {} and {} may both hold is not supported; use "
                      "\"anyOf\"",
                      j, i);
        }
      }
    }
  }

  // ---- objects: declared properties in any order, each once

  struct Property {
    std::string key;  // with quotes, as JSON
    uint32_t value = 0;
    bool required = false;
  };
  struct Object {
    std::string name;
    std::vector<Property> properties;
    ExprPtr additional_key;  // null: no other keys
    uint32_t additional_value = 0;
    std::map<std::vector<bool>, uint32_t> rules;  // what follows when these were seen
  };

  ExprPtr object(const Json& s, const std::string& path, int depth) {
    Json none = Json::object();
    const Json& properties = s.contains("properties") ? s["properties"] : none;
    if (!properties.is_object()) invalid(path, "\"properties\" is no object");
    if (properties.size() > max_properties)
      unsupported(path, "so many properties are not supported");
    auto object = std::make_shared<Object>();
    object->name = path;

    Json additional =
        s.contains("additionalProperties") ? s["additionalProperties"] : Json(properties.empty());
    ExprPtr extra = schema(additional, path + "/additionalProperties", depth + 1);
    std::set<std::string> required;
    if (s.contains("required") && !s["required"].is_array())
      invalid(path, "\"required\" is no list");
    for (const Json& name : s.value("required", Json::array())) {
      if (!name.is_string()) invalid(path, "\"required\" holds {}", dump(name));
      required.insert(name.get<std::string>());
    }
    if (extra) object->additional_value = rule_for(extra, path + "/additionalProperties");
    std::vector<std::string> keys, forbidden;
    for (const auto& [key, value] : properties.items()) {
      ExprPtr e = schema(value, path + "/properties/" + key, depth + 1);
      keys.push_back(key);
      bool needed = required.erase(key) > 0;
      if (!e && needed) return nullptr;
      if (e) object->properties.push_back({dump(Json(key)), rule_for(e, path + "/" + key), needed});
    }
    for (const std::string& key : required) {  // required but not declared
      if (!extra) return nullptr;
      keys.push_back(key);
      object->properties.push_back({dump(Json(key)), object->additional_value, true});
    }
    if (object->properties.empty() && extra && keys.empty() && additional == true) {
      return call(any_object_);
    }
    if (extra) object->additional_key = other_keys(keys, path);
    return sequence({literal("{"), ws(), members(*object, object, {}, true)});
  }

  uint32_t rule_for(const ExprPtr& e, const std::string& name) {
    return e->kind == Expr::Kind::rule ? e->rule : rules_->add(name, e);
  }

  // What may stand behind "{" (`first`) or behind a value, when the properties `seen` were there.
  ExprPtr members(const Object& o, const std::shared_ptr<Object>& shared, std::vector<bool> seen,
                  bool first) {
    seen.resize(o.properties.size());
    std::vector<ExprPtr> next;
    bool complete = true;
    auto colon = [&] { return sequence({ws(), literal(":"), ws()}); };
    for (size_t i = 0; i < o.properties.size(); ++i) {
      if (seen[i]) continue;
      const Property& p = o.properties[i];
      complete = complete && !p.required;
      std::vector<bool> then = seen;
      then[i] = true;
      next.push_back(sequence({literal(p.key), colon(), call(p.value), rest(shared, then)}));
    }
    if (o.additional_key) {
      next.push_back(
          sequence({o.additional_key, colon(), call(o.additional_value), rest(shared, seen)}));
    }
    std::vector<ExprPtr> all;
    if (!next.empty()) {
      ExprPtr member = choice(std::move(next));
      all.push_back(first ? member : sequence({literal(","), ws(), member}));
    }
    if (complete) all.push_back(literal("}"));
    return choice(std::move(all));
  }

  // White space, and then a rule that is made when it is needed: there are 2^properties of them.
  ExprPtr rest(const std::shared_ptr<Object>& o, const std::vector<bool>& seen) {
    auto [it, is_new] = o->rules.emplace(seen, 0);
    if (is_new) {
      it->second = rules_->add(o->name + " (members)");
      Rule& rule = rules_->list[it->second];
      for (size_t i = 0; i < seen.size(); ++i) {
        if (!seen[i] && o->properties[i].required) rule.needs.push_back(o->properties[i].value);
      }
      rule.make = [self = shared_from_this(), o, seen] {
        return self->members(*o, o, seen, false);
      };
    }
    return sequence({ws(), call(it->second)});
  }

  // Keys other than `declared`. They have one spelling only, so that none of `declared` can come
  // back in disguise.
  ExprPtr other_keys(std::vector<std::string> declared, const std::string& path) {
    ExprPtr any = canonical_char({{0, 0x10FFFF}});
    if (declared.empty()) return quoted(repeat(any, 0, unbounded));
    ExprPtr tail = sequence({repeat(any, 0, unbounded), literal("\"")});
    std::vector<std::vector<uint32_t>> keys;
    for (const std::string& key : declared) {
      if (key.size() > max_key) {
        unsupported(path, "a property's name of more than {} bytes beside additionalProperties",
                    max_key);
      }
      std::vector<uint32_t> code_points;
      for (size_t i = 0; i < key.size();) {
        CodePoint c = decode_utf8(key, i);
        code_points.push_back(c.value);
        i += c.size;
      }
      keys.push_back(std::move(code_points));
    }
    std::sort(keys.begin(), keys.end());
    auto other = [&](auto& self, size_t begin, size_t end, size_t depth) -> ExprPtr {
      std::vector<ExprPtr> out;
      bool is_key = begin < end && keys[begin].size() == depth;
      size_t i = begin;
      while (i < end && keys[i].size() == depth) ++i;
      if (!is_key) out.push_back(literal("\""));
      CharRanges used;
      while (i < end) {
        size_t group = i;
        uint32_t c = keys[i][depth];
        while (i < end && keys[i][depth] == c) ++i;
        used.emplace_back(c, c);
        out.push_back(sequence({canonical_char({{c, c}}), self(self, group, i, depth + 1)}));
      }
      out.push_back(sequence({canonical_char(complement(used)), tail}));
      return choice(std::move(out));
    };
    return sequence({literal("\""), other(other, 0, keys.size(), 0)});
  }

  Json root_;
  Rules* rules_;
  uint32_t ws_ = 0, string_ = 0, any_ = 0, any_object_ = 0;
  std::map<std::string, uint32_t> references_;
  std::vector<std::pair<std::string, uint32_t>> pending_;  // references to be compiled
};

}  // namespace

std::shared_ptr<Rules> parse_json_schema(std::string_view text) {
  if (text.size() > max_text)
    fail_option(Status::invalid_argument, "json_schema", "the JSON schema is too long");
  if (json_nests_deeper(text, 4 * max_depth)) {
    fail_option(Status::invalid_argument, "json_schema", "the JSON schema is nested too deeply");
  }
  Json root;
  try {
    root = Json::parse(text);
  } catch (const Json::exception& e) {
    fail_option(Status::invalid_argument, "json_schema", "the JSON schema is not valid JSON: {}",
                e.what());
  }
  auto rules = std::make_shared<Rules>();
  std::make_shared<SchemaCompiler>(std::move(root), rules.get())->run();
  return rules;
}

std::shared_ptr<Rules> json_object_rules() {
  auto rules = std::make_shared<Rules>();
  std::make_shared<SchemaCompiler>(Json(true), rules.get())->any_object();
  return rules;
}

}  // namespace speech::grammar
