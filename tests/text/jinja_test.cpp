#include "text/jinja/jinja.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "text/qwen3_data.h"

namespace speech {
namespace {

using testing::read_json;
using Json = nlohmann::ordered_json;

std::string failure(const std::string& source, const Json& variables = Json::object(),
                    Status expected = Status::unsupported) {
  try {
    JinjaTemplate(source).render(variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), expected) << e.what();
    return e.what();
  }
  return "no error";
}

TEST(Jinja, RendersAsJinja2Does) {
  Json file = read_json("text/jinja.json");
  for (const Json& c : file["cases"]) {
    auto source = c["template"].get<std::string>();
    SCOPED_TRACE(source);
    if (c.contains("error")) {
      EXPECT_NE(failure(source, file["variables"], Status::invalid_argument), "no error");
      continue;
    }
    try {
      EXPECT_EQ(JinjaTemplate(source).render(file["variables"]).text, c["text"].get<std::string>());
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

TEST(Jinja, RendersTheOfficialChats) {
  auto config = read_json("text/qwen3/tokenizer_config.json");
  JinjaTemplate chat(config["chat_template"].get<std::string>());
  Json file = read_json("text/qwen3/chat.json");
  EXPECT_GT(file["cases"].size(), 30u);
  for (const Json& c : file["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    Json variables;
    for (const char* key : {"messages", "tools", "add_generation_prompt", "enable_thinking"}) {
      if (c.contains(key)) variables[key] = c[key];
    }
    if (c.contains("error")) {
      EXPECT_THROW(chat.render(variables), Error);
      continue;
    }
    MarkedText prompt = chat.render(variables);
    EXPECT_EQ(prompt.text, c["text"].get<std::string>());
    EXPECT_EQ(prompt.marks.size(), prompt.text.size());
    EXPECT_EQ(testing::qwen3_tokenizer()->encode(prompt.text),
              c["ids"].get<std::vector<int32_t>>());
  }
}

TEST(Jinja, MarksWhatComesFromTheVariables) {
  JinjaTemplate t("<a>{{ x.strip() + '<b>' }}{{ [x] | tojson }}{{ x.split('-')[1] | upper }}");
  MarkedText out = t.render({{"x", " p-q "}});
  EXPECT_EQ(out.text, "<a>p-q<b>[\" p-q \"]Q ");
  std::string marks = out.marks;
  std::transform(marks.begin(), marks.end(), marks.begin(), [](char c) { return c ? 'x' : '.'; });
  EXPECT_EQ(marks, "...xxx.....xxxxx..xx");
}

TEST(Jinja, NamesWhatItDoesNotSupport) {
  auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(failure("\n{% include 'x' %}"), "line 2: the statement 'include'");
  has(failure("{{ x | xmlattr }}"), "the filter 'xmlattr'");
  has(failure("{{ x is upper }}"), "the test 'upper'");
  has(failure("{{ 'x'.center(5) }}"), "str.center()");
  has(failure("{% for x in y recursive %}{% endfor %}"), "recursive");
  has(failure("{{ x | tojson(sort_keys=true) }}", {{"x", 1}}), "sort_keys");
  has(failure("{% if x %}", Json::object(), Status::model_file), "'endif' is missing");
  has(failure("{{ x", Json::object(), Status::model_file), "without end");
  has(failure("{{ 1 + }}", Json::object(), Status::model_file), "expected a value");
  has(failure("{% endif %}", Json::object(), Status::model_file), "unexpected 'endif'");
  has(failure("{{ [1, 2] }}", Json::object(), Status::invalid_argument), "tojson");
}

TEST(Jinja, HostileTemplatesEnd) {
  Json none = Json::object();
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "(";
  failure("{{ " + deep + " }}", none, Status::model_file);
  deep.clear();
  for (int i = 0; i < 100000; ++i) deep += "1+";
  failure("{{ " + deep + "1 }}", none, Status::model_file);
  deep.clear();
  for (int i = 0; i < 10000; ++i) deep += "{% if x %}";
  failure(deep, none, Status::model_file);
  deep.clear();
  for (int i = 0; i < 10000; ++i) deep += "not ";
  failure("{{ " + deep + "1 }}", none, Status::model_file);
  failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", none, Status::out_of_range);
  failure("{% for i in range(100000000) %}{% endfor %}", none, Status::out_of_range);
  failure("{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}", none,
          Status::out_of_range);
  failure(
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}",
      none, Status::out_of_range);
  failure(
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}",
      none, Status::invalid_argument);
  failure("{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}", none, Status::unsupported);
}

}  // namespace
}  // namespace speech
