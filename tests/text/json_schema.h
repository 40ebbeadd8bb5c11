// JSON schemas for property tests: a validator that shares nothing with the grammar compiler, and
// random schemas.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>

namespace speech::testing {

using Json = nlohmann::ordered_json;

// Whether `v` follows the schema `s`, a part of `root`; of the keywords that the library supports.
inline bool validates(const Json& v, const Json& s, const Json& root) {
  if (s.is_boolean()) return s.get<bool>();
  if (s.contains("$ref")) {
    auto pointer = s["$ref"].get<std::string>().substr(1);
    return validates(v, pointer.empty() ? root : root.at(Json::json_pointer(pointer)), root);
  }
  if (s.contains("const")) return v == s["const"];
  if (s.contains("enum")) {
    return std::find(s["enum"].begin(), s["enum"].end(), v) != s["enum"].end();
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!s.contains(key)) continue;
    auto good = std::count_if(s[key].begin(), s[key].end(),
                              [&](const Json& x) { return validates(v, x, root); });
    return std::string(key) == "anyOf" ? good > 0 : good == 1;
  }
  if (!s.contains("type")) return true;
  Json types = s["type"].is_array() ? s["type"] : Json::array({s["type"]});
  for (const Json& type : types) {
    if (type == "null" && v.is_null()) return true;
    if (type == "boolean" && v.is_boolean()) return true;
    if ((type == "number" && v.is_number()) ||
        (type == "integer" && v.is_number() && v.get<double>() == std::floor(v.get<double>()))) {
      double d = v.get<double>();
      return d >= s.value("minimum", -INFINITY) && d <= s.value("maximum", INFINITY) &&
             d > s.value("exclusiveMinimum", -INFINITY) &&
             d < s.value("exclusiveMaximum", INFINITY);
    }
    if (type == "string" && v.is_string()) {
      const auto& text = v.get_ref<const std::string&>();
      auto length =
          std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
      if (s.contains("pattern")) {
        return std::regex_search(text, std::regex(s["pattern"].get<std::string>()));
      }
      return length >= s.value("minLength", 0) && length <= s.value("maxLength", 1 << 30);
    }
    if (type == "array" && v.is_array()) {
      auto size = static_cast<int>(v.size());
      Json items = s.value("items", Json(true));
      return size >= s.value("minItems", 0) && size <= s.value("maxItems", 1 << 30) &&
             std::all_of(v.begin(), v.end(),
                         [&](const Json& x) { return validates(x, items, root); });
    }
    if (type == "object" && v.is_object()) {
      Json properties = s.value("properties", Json::object());
      for (const Json& name : s.value("required", Json::array())) {
        if (!v.contains(name.get<std::string>())) return false;
      }
      Json other = s.value("additionalProperties", Json(properties.empty()));
      for (const auto& [key, value] : v.items()) {
        if (!validates(value, properties.contains(key) ? properties[key] : other, root))
          return false;
      }
      return true;
    }
  }
  return false;
}

// A schema of the supported keywords, `depth` levels deep at most.
inline Json random_schema(std::mt19937& random, int depth) {
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  switch (pick(depth > 0 ? 14 : 9)) {
    case 0:
      return {{"type", "boolean"}};
    case 1:
      return {{"type", {"null", "integer"}}};
    case 2: {
      int lo = pick(400) - 200;
      return {{"type", "integer"}, {"minimum", lo}, {"maximum", lo + pick(2000)}};
    }
    case 3: {
      int lo = pick(40) - 20;
      return {{"type", "number"}, {"exclusiveMinimum", lo}, {"maximum", lo + 1 + pick(50)}};
    }
    case 4: {
      int lo = pick(4);
      return {{"type", "string"}, {"minLength", lo}, {"maxLength", lo + pick(200)}};
    }
    case 5:
      return {{"type", "string"}};
    case 6:
      return {{"enum", {"a\"b", "a\\", 5, "\u00E9", nullptr, 1.5, {1, 2}}}};
    case 7:
      return {{"type", "string"}, {"pattern", "^(x|yz)+[0-9]{2,4}$"}};
    case 8:
      return {{"const", {{"k", "v"}}}};
    case 9: {
      int lo = pick(3);
      return {{"type", "array"},
              {"items", random_schema(random, depth - 1)},
              {"minItems", lo},
              {"maxItems", lo + pick(4)}};
    }
    case 10:
      return {{"anyOf", {random_schema(random, depth - 1), random_schema(random, depth - 1)}}};
    case 11:
      return {{"type", "object"}};
    default: {
      Json s = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
      static const char* names[] = {"a", "ab", "name", "na\"me", "\u00FC", "x y", "", "zz"};
      for (const char* name : names) {
        if (pick(2)) continue;
        s["properties"][name] = random_schema(random, depth - 1);
        if (pick(2)) s["required"].push_back(name);
      }
      if (pick(3) == 0) s["additionalProperties"] = random_schema(random, 0);
      return s;
    }
  }
}

}  // namespace speech::testing
