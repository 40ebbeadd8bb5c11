#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "text/json_schema.h"
#include "text/qwen3_data.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t im_end = 151645, endoftext = 151643;

std::shared_ptr<const TokenTrie> trie() {
  static const auto t = std::make_shared<const TokenTrie>(
      testing::qwen3_tokenizer(), std::vector<int32_t>{im_end, endoftext}, 151936);
  return t;
}

// Does the grammar take the text, byte by byte (each byte is a token), and may it end there?
bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text,
           bool whole = true) {
  GrammarState state(grammar);
  for (char c : text) {
    int32_t id = testing::qwen3_tokenizer()->find(std::string(1, c));
    if (!state.allows(id)) return false;
    state.accept(id);
  }
  return !whole || state.can_end();
}

std::shared_ptr<const Grammar> schema(const Json& s) {
  return Grammar::from_json_schema(s.dump(), trie());
}
std::shared_ptr<const Grammar> gbnf(const std::string& text) {
  return Grammar::from_gbnf(text, trie());
}

template <typename F>
std::string failure(Status status, F make) {
  try {
    make();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    return e.what();
  }
  return "no error";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nshould contain: " << part;
}

TEST(Gbnf, Constructs) {
  auto g = gbnf(
      "root ::= greeting (\" \" name){1,2} [!?]? # comment\n"
      "greeting ::= \"hi\" | \"hello\"\nname ::= [A-Z] [a-z]*\n");
  EXPECT_TRUE(takes(g, "hi Bob"));
  EXPECT_TRUE(takes(g, "hello Al B!"));
  EXPECT_FALSE(takes(g, "hi"));
  EXPECT_FALSE(takes(g, "hi bob", false));
  EXPECT_FALSE(takes(g, "hi A B C", false));
  g = gbnf("root ::= (\"a\" |\n  \"b\"\n)+ [^x-z\\]\\n] . \"\\x41\\u00e9\\\"\"");
  EXPECT_TRUE(takes(g, "abbaw\u20ACA\u00E9\""));
  EXPECT_FALSE(takes(g, "ax", false));
  EXPECT_FALSE(takes(g, "a]", false));
  g = gbnf("root ::= \"x\"{3} \"y\"{2,} \"z\"*");
  EXPECT_TRUE(takes(g, "xxxyyyz"));
  EXPECT_FALSE(takes(g, "xxxy"));
  EXPECT_FALSE(takes(g, "xxy", false));
  EXPECT_FALSE(takes(g, "xxxyz", false));
}

TEST(Gbnf, RecursionAndLoopsDoNotMix) {
  auto g = gbnf("root ::= \"(\" root \")\" root | \"\"");
  EXPECT_TRUE(takes(g, "(()())()"));
  EXPECT_FALSE(takes(g, "(()"));
  EXPECT_FALSE(takes(g, "())", false));
  g = gbnf("root ::= (\"a\"* | \"b\"*) \"c\"");
  EXPECT_TRUE(takes(g, "aac"));
  EXPECT_TRUE(takes(g, "bbc"));
  EXPECT_FALSE(takes(g, "ab", false));
  g = gbnf("root ::= (\"a\"*)* \"b\"?");
  EXPECT_TRUE(takes(g, "aaab"));
  EXPECT_TRUE(takes(g, ""));
}

TEST(Gbnf, CountsOverBlocksAreExact) {
  auto g = gbnf("root ::= \"a\"{300,700} \"b\"");
  for (int n : {299, 300, 301, 363, 364, 427, 428, 500, 699, 700, 701}) {
    EXPECT_EQ(takes(g, std::string(static_cast<size_t>(n), 'a') + "b"), n >= 300 && n <= 700) << n;
  }
}

TEST(Gbnf, AddedTokensByName) {
  auto g = gbnf("root ::= <tool_call> \"x\" <[151658]>");
  GrammarState s(g);
  EXPECT_TRUE(s.allowed().test(151657));
  EXPECT_FALSE(s.allowed().test(testing::qwen3_tokenizer()->find("<")));
  s.accept(151657);
  s.accept(testing::qwen3_tokenizer()->find("x"));
  EXPECT_TRUE(s.allowed().test(151658));
  s.accept(151658);
  EXPECT_TRUE(s.can_end());
}

TEST(Gbnf, Refusals) {
  auto bad = [](const std::string& text, Status status = Status::invalid_argument) {
    return failure(status, [&] { gbnf(text); });
  };
  expect_has(bad(""), "'root' is not defined");
  expect_has(bad("root ::= x"), "'x' is not defined");
  expect_has(bad("root ::= root \"a\" | \"b\""), "left recursion");
  expect_has(bad("root ::= x root | \"b\"\nx ::= \"q\"?"), "left recursion");
  expect_has(bad("root ::= a\na ::= b\nb ::= a | \"x\""), "left recursion");
  expect_has(bad("root ::= \"a\" root"), "nothing that ends");
  expect_has(bad("root ::= \"a\nb\""), "line 1");
  expect_has(bad("root ::= \"a\"\nroot ::= \"b\""), "defined twice");
  expect_has(bad("root ::= [z-a]"), "larger character");
  expect_has(bad("root ::= \"a\"{99999}"), "at most");
  expect_has(bad("root ::= (\"a\""), "expected ')'");
  expect_has(bad("root ::= \"\\q\""), "escape");
  expect_has(bad("root ::= <nothing>"), "added token");
  expect_has(bad("root ::= !<think>", Status::unsupported), "negated");
  expect_has(bad("root ::= ((\"a\"{1000}){1000}){1000}", Status::out_of_range), "too large");
  expect_has(bad("root ::= (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){40}", Status::out_of_range),
             "too large");
  std::string deep(100000, '(');
  expect_has(bad("root ::= " + deep), "nested too deeply");
}

TEST(JsonSchema, Objects) {
  auto g = schema({{"type", "object"},
                   {"properties", {{"a", {{"type", "integer"}}}, {"ab", {{"type", "string"}}}}},
                   {"required", {"a"}}});
  EXPECT_TRUE(takes(g, R"({"a": 1, "ab": "x"})"));
  EXPECT_TRUE(takes(g, R"({"ab":"x","a":-12})"));
  EXPECT_TRUE(takes(g, "{\n  \"a\": 0\n}"));
  EXPECT_FALSE(takes(g, R"({"ab":"x"})", true));
  EXPECT_FALSE(takes(g, R"({"a":1,"a")", false));
  EXPECT_FALSE(takes(g, R"({"c")", false));
  EXPECT_FALSE(takes(g, R"({"a":01)", false));
  g = schema({{"type", "object"},
              {"properties", {{"a", {{"type", "integer"}}}, {"ab", {{"type", "boolean"}}}}},
              {"additionalProperties", {{"type", "null"}}}});
  EXPECT_TRUE(takes(g, R"({"b": null, "abc": null, "": null, "a\"": null, "a": 1})"));
  EXPECT_FALSE(takes(g, R"({"a": n)", false));
  EXPECT_FALSE(takes(g, R"({"\u0061)", false));
  EXPECT_FALSE(takes(g, R"({"abc": 1)", false));
  g = schema({{"type", "object"}});
  EXPECT_TRUE(takes(g, R"({"x": {"y": [1.5e-3, "\ud83d\ude00", true, null, {}, []]}})"));
  EXPECT_FALSE(takes(g, R"({"x": "\ud83d")", false));
  EXPECT_FALSE(takes(g, "[", false));
}

TEST(JsonSchema, StringsCountCodePoints) {
  auto g = schema({{"type", "string"}, {"minLength", 2}, {"maxLength", 3}});
  EXPECT_TRUE(takes(g, "\"\u20AC\U0001F600\""));
  EXPECT_TRUE(takes(g, R"("\n\ud83d\ude00x")"));
  EXPECT_FALSE(takes(g, "\"a\""));
  EXPECT_FALSE(takes(g, "\"abcd", false));
  g = schema({{"type", "string"}, {"pattern", "^[a-c]+-\\d{2}(x|\")?$"}});
  EXPECT_TRUE(takes(g, R"("abc-12")"));
  EXPECT_TRUE(takes(g, R"("a-12\"")"));
  EXPECT_FALSE(takes(g, R"("a-1")"));
  EXPECT_FALSE(takes(g, R"("d)", false));
  g = schema({{"type", "string"}, {"pattern", "b"}});
  EXPECT_TRUE(takes(g, R"("abc")"));
  EXPECT_FALSE(takes(g, R"("ac")"));
  g = schema({{"type", "string"}, {"format", "date"}});
  EXPECT_TRUE(takes(g, R"("2024-02-28")"));
  EXPECT_FALSE(takes(g, R"("2024-04-31)", false));
}

TEST(JsonSchema, NumbersInBounds) {
  for (bool exclusive : {false, true}) {
    for (int64_t lo : {-120, -7, 0, 5, 99}) {
      for (int64_t hi : {-7, 0, 12, 100, 1234}) {
        Json s = {{"type", "integer"},
                  {exclusive ? "exclusiveMinimum" : "minimum", lo},
                  {exclusive ? "exclusiveMaximum" : "maximum", hi}};
        int64_t first = lo + exclusive, last = hi - exclusive;
        if (first > last) {
          EXPECT_THROW(schema(s), Error) << s;
          continue;
        }
        auto g = schema(s);
        for (int64_t v = -130; v<1300; v += v> - 10 && v < 110 ? 1 : 13) {
          EXPECT_EQ(takes(g, std::to_string(v)), v >= first && v <= last) << s << " " << v;
        }
        for (int64_t v : {first - 1, first, last, last + 1}) {
          EXPECT_EQ(takes(g, std::to_string(v)), v >= first && v <= last) << s << " " << v;
        }
      }
    }
  }
  auto g = schema({{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}});
  EXPECT_TRUE(takes(g, "0"));
  EXPECT_TRUE(takes(g, "0.75"));
  EXPECT_FALSE(takes(g, "1", false));
  EXPECT_FALSE(takes(g, "-", false));
  g = schema({{"type", "number"}, {"exclusiveMinimum", -2}, {"maximum", 3}});
  EXPECT_TRUE(takes(g, "-1.99"));
  EXPECT_TRUE(takes(g, "3.00"));
  EXPECT_FALSE(takes(g, "3.01", false));
  EXPECT_FALSE(takes(g, "-2", false));
  // A bare number at the root may end, and may go on.
  g = schema({{"type", "number"}});
  GrammarState s(g);
  s.accept(testing::qwen3_tokenizer()->find("7"));
  EXPECT_TRUE(s.can_end());
  EXPECT_TRUE(s.allowed().test(im_end));
  EXPECT_TRUE(s.allowed().test(testing::qwen3_tokenizer()->find("7")));
}

TEST(JsonSchema, Refusals) {
  auto bad = [](const Json& s, Status status = Status::unsupported) {
    return failure(status, [&] { schema(s); });
  };
  for (const char* keyword :
       {"not", "if", "patternProperties", "multipleOf", "contains", "prefixItems", "minProperties",
        "dependentRequired", "uniqueItems", "propertyNames", "nonsense"}) {
    expect_has(bad({{"type", "object"}, {keyword, true}}), "\"" + std::string(keyword) + "\"");
  }
  expect_has(bad({{"allOf", {{{"type", "object"}}, {{"type", "object"}}}}}), "allOf");
  expect_has(bad({{"oneOf", {{{"type", "integer"}}, {{"type", "number"}}}}}), "oneOf");
  expect_has(bad({{"$ref", "http://x/y"}}), "$ref");
  expect_has(bad({{"$ref", "#/$defs/x"}}, Status::invalid_argument), "leads nowhere");
  expect_has(bad({{"$ref", "#"}}, Status::invalid_argument), "nothing that ends");
  expect_has(bad({{"type", "thing"}}, Status::invalid_argument), "thing");
  expect_has(bad({{"type", "string"}, {"pattern", "(?=x)"}}), "pattern");
  expect_has(bad({{"type", "string"}, {"pattern", "\\bx"}}), "pattern");
  expect_has(bad({{"type", "string"}, {"format", "uri"}}), "format");
  expect_has(bad({{"type", "string"}, {"maxLength", -1}}, Status::invalid_argument), "maxLength");
  expect_has(bad({{"type", "string"}, {"maxLength", 5e9}}), "maxLength");
  expect_has(bad({{"type", "number"}, {"minimum", 0.5}}), "minimum");
  // Past 64 bits digits would be lost; up to there none are.
  for (const char* text : {R"({"const":100000000000000000001})", R"({"enum":["a",[-1e30]]})"}) {
    expect_has(failure(Status::unsupported, [&] { Grammar::from_json_schema(text, trie()); }),
               "whole numbers as large as");
  }
  EXPECT_TRUE(takes(schema({{"const", UINT64_MAX}}), "18446744073709551615"));
  expect_has(
      bad({{"type", "object"}, {"properties", {{"self", {{"$ref", "#"}}}}}, {"required", {"self"}}},
          Status::invalid_argument),
      "nothing that ends");
  expect_has(failure(Status::invalid_argument, [] { Grammar::from_json_schema("{", trie()); }),
             "not valid JSON");
  std::string deep;
  for (int i = 0; i < 50000; ++i) deep += "{\"items\":";
  expect_has(failure(Status::invalid_argument, [&] { Grammar::from_json_schema(deep, trie()); }),
             "deep");
}

// ---- masks

// The mask by definition: each token tried on its own.
void check_mask(GrammarState& state) {
  const Bitmask& mask = state.allowed();
  for (int32_t id = 0; id < 151936; ++id) {
    ASSERT_EQ(mask.test(id), state.allows(id))
        << id << " " << testing::qwen3_tokenizer()->bytes(id);
  }
}

TEST(Grammar, MasksAreWhatEachTokenSays) {
  auto g = schema({{"type", "object"},
                   {"properties",
                    {{"name", {{"type", "string"}, {"maxLength", 5}}},
                     {"list", {{"type", "array"}, {"items", {{"type", "number"}}}}},
                     {"any", true}}},
                   {"required", {"name"}}});
  GrammarState state(g);
  check_mask(state);
  for (char c : std::string("{\"name\": \"a\\n\", \"list\": [1.5, -2], \"any\": {\"k\": [[")) {
    state.accept(testing::qwen3_tokenizer()->find(std::string(1, c)));
    check_mask(state);
  }
}

TEST(Grammar, StatesEndAndAreCopied) {
  auto g = gbnf("root ::= \"ab\" \"c\"?");
  auto t = testing::qwen3_tokenizer();
  GrammarState s(g);
  EXPECT_FALSE(s.allowed().test(im_end));
  EXPECT_FALSE(s.allowed().test(151667));  // <think>
  EXPECT_FALSE(s.allowed().test(151800));  // padding
  EXPECT_THROW(s.accept(t->find("b")), Error);
  EXPECT_THROW(s.accept(im_end), Error);
  s.accept(t->find("ab"));
  GrammarState copy = s;
  copy.accept(t->find("c"));
  EXPECT_TRUE(s.allowed().test(t->find("c")));
  EXPECT_TRUE(s.allowed().test(im_end));
  EXPECT_TRUE(s.allowed().test(endoftext));
  EXPECT_FALSE(copy.allowed().test(t->find("c")));
  EXPECT_TRUE(copy.can_end());
  copy.accept(im_end);
  EXPECT_TRUE(copy.finished());
  EXPECT_FALSE(copy.allowed().any());
  EXPECT_FALSE(s.finished());
}

TEST(Grammar, NestingEndsAtALimit) {
  GrammarState s(Grammar::json_object(trie()));
  auto t = testing::qwen3_tokenizer();
  for (char c : std::string("{\"a\":")) s.accept(t->find(std::string(1, c)));
  int depth = 0;
  while (s.allows(t->find("["))) {
    s.accept(t->find("["));
    if (++depth % 16 == 0) check_mask(s);
    ASSERT_LT(depth, 10000);
  }
  EXPECT_GT(depth, 100);
  check_mask(s);
  for (; depth > 0; --depth) s.accept(t->find("]"));
  s.accept(t->find("}"));
  EXPECT_TRUE(s.can_end());
}

// ---- random schemas, random tokens: what comes out parses and validates

TEST(Grammar, RandomTokensGiveValidJson) {
  auto tokenizer = testing::qwen3_tokenizer();
  std::mt19937 random(7);
  int ended = 0;
  for (int round = 0; round < 150; ++round) {
    Json s = testing::random_schema(random, 3);
    SCOPED_TRACE(s.dump());
    GrammarState state(schema(s));
    std::string text;
    for (int step = 0; step < 400 && !state.finished(); ++step) {
      const Bitmask& mask = state.allowed();
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < 151936; ++id) {
        if (mask.test(id)) ids.push_back(id);
      }
      ASSERT_FALSE(ids.empty()) << text;
      int32_t id = ids[random() % ids.size()];
      // As a model would: ends when it may, and closes what is open rather soon.
      if (state.can_end() && random() % 2) id = im_end;
      for (const char* close : {"\"", "}", "]"}) {
        int32_t c = tokenizer->find(close);
        if (step > 40 && mask.test(c) && random() % 2) id = c;
      }
      state.accept(id);
      if (!state.finished()) text += tokenizer->bytes(id);
    }
    if (!state.finished()) continue;  // cut at the limit, as max_tokens would
    ++ended;
    Json value = Json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text;
    ASSERT_TRUE(testing::validates(value, s, s)) << text;
  }
  EXPECT_GT(ended, 120);
}

TEST(Grammar, RecursiveSchemasWork) {
  auto g = schema({{"$ref", "#/$defs/tree"},
                   {"$defs",
                    {{"tree",
                      {{"type", "object"},
                       {"properties",
                        {{"v", {{"type", "integer"}}},
                         {"kids", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}}}}},
                       {"required", {"v"}}}}}}});
  EXPECT_TRUE(takes(g, R"({"v": 1, "kids": [{"v": 2}, {"kids": [], "v": 3}]})"));
  EXPECT_FALSE(takes(g,
                     R"({"v": 1, "kids": [{)"
                     "}",
                     false));
}

}  // namespace
}  // namespace speech
