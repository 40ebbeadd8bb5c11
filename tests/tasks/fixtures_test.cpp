// The format of fixtures and the rules by which answers pass (posttrainllm's fm-fixtures).
#include "tasks/fixtures.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "test_data.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* const kScreen =
    "USER: save it\n"
    "ELEMENT: [3] button|10,20|Save|\n"
    "ELEMENT: [4] button|30,20|Save as...|opens a dialog\n"
    "ELEMENT: [7] field|30,90||typed text\n";

Fixture fixture(const std::string& checks) {
  return parse_fixture(kScreen + checks, "some/where/save.txt");
}

std::string answer(const std::string& spoken, const std::string& point = "",
                   const std::string& click = "", const std::string& body = "") {
  return Json{
      {"spokenText", spoken}, {"pointAtLabel", point}, {"clickLabel", click}, {"bodyText", body}}
      .dump();
}

bool passes(const std::string& checks, const std::string& content) {
  Fixture f = fixture(checks);
  EXPECT_TRUE(f.scored()) << checks;
  return check_answer(f, parse_answer(f, content)).empty();
}

std::string refusal(const std::string& text) {
  try {
    parse_fixture(text, "bad.txt");
    return "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::invalid_argument);
    EXPECT_EQ(e.option(), "fixtures");
    return e.what();
  }
}

TEST(Fixtures, AreReadLineByLine) {
  Fixture f = parse_fixture(std::string("\xEF\xBB\xBF# a comment\r\n\r\n") + kScreen +
                                "FREE_TEXT_MODE: true\r\nSPOKEN_MAX_WORDS:  4 ",
                            "some/where/save.txt");
  EXPECT_EQ(f.name, "save");
  EXPECT_EQ(f.user, "save it");
  ASSERT_EQ(f.elements.size(), 3u);
  EXPECT_EQ(f.elements[1].id, 4);
  EXPECT_EQ(f.elements[1].label, "Save as...");
  EXPECT_EQ(f.elements[2].label, "");
  EXPECT_TRUE(f.free_text);
  EXPECT_EQ(f.spoken_max_words, 4);
  EXPECT_EQ(fixture_message(f),
            "on-screen elements:\n"
            "[3] button|10,20|Save|\n"
            "[4] button|30,20|Save as...|opens a dialog\n"
            "[7] field|30,90||typed text\n"
            "\n"
            "user said: save it");
  EXPECT_EQ(fixture_message(parse_fixture("USER: hi", "a.txt")), "user said: hi");
  EXPECT_FALSE(fixture("").scored());
}

TEST(Fixtures, MalformedLinesAreNamed) {
  auto names = [](const std::string& text, const std::string& part) {
    std::string message = refusal(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  names("", "bad.txt: there is no line USER");
  names("USER: a\nEXPECT_INTENT: refuse", "bad.txt:2: \"EXPECT_INTENT\"");
  names("USER: a\nhello", "bad.txt:2: expected KEY: value");
  names("USER:", "bad.txt:1: USER has no value");
  names("USER: a\nEXPECT_POINT_ID: two", "bad.txt:2: EXPECT_POINT_ID: \"two\"");
  names("USER: a\nEXPECT_POINT_ID: -2", "whole number from -1");
  names("USER: a\nEXPECT_POINT_ID: 99999999999999999999", "whole number");
  names("USER: a\nEXPECT_POINT_ID: 5", "element 5 is expected and not on the screen");
  names("USER: a\nEXPECT_CLICK_ID_ONE_OF: , ,", "the list is empty");
  names("USER: a\nSPOKEN_MAX_WORDS: 3x", "SPOKEN_MAX_WORDS");
  names("USER: a\nFREE_TEXT_MODE: yes", "true or false");
  names("USER: a\nSPOKEN_MUST_MATCH_REGEX: (", "regular expression");
  names("USER: a\nSPOKEN_MUST_MATCH_REGEX: " + std::string(1001, 'a'), "1000 bytes");
  for (const char* element : {"1 button|1,2|a|b", "[x] button|1,2|a|b", "[1 button|1,2|a|b",
                              "[1] button|1,2", "[] button|1,2|a|b"}) {
    names(std::string("USER: a\nELEMENT: ") + element, "bad.txt:2: ");
  }
  names("USER: a\nELEMENT: [1] b|1,2|x|\nELEMENT: [1] b|1,2|y|", "taken already");
}

TEST(Fixtures, LabelsStandForElements) {
  std::vector<ScreenElement> elements = fixture("").elements;
  EXPECT_EQ(element_id(elements, "Save"), 3);
  EXPECT_EQ(element_id(elements, " sAVE AS... "), 4);  // exact, though the first holds a part of it
  EXPECT_EQ(element_id(elements, "as"), 4);            // a part of a label
  EXPECT_EQ(element_id(elements, "the save button"), 3);  // a label is a part of it
  EXPECT_EQ(element_id(elements, "Open"), -1);
  EXPECT_EQ(element_id(elements, ""), -1);  // not the element without a label
  EXPECT_EQ(element_id(elements, "  "), -1);
  EXPECT_EQ(element_id({}, "Save"), -1);
  ScreenElement umlaut{.id = 9, .label = "\u00D6ffnen", .line = {}};
  EXPECT_EQ(element_id({umlaut}, "\u00F6FFNEN"), 9);
}

TEST(Fixtures, EachCheckCanFail) {
  struct Case {
    const char* check;
    std::string good, bad;
  };
  for (const Case& c : {
           Case{"EXPECT_POINT_ID: 3", answer("ok", "Save"), answer("ok", "Save as...")},
           Case{"EXPECT_POINT_ID: -1", answer("ok"), answer("ok", "Save")},
           Case{"EXPECT_POINT_ID_ONE_OF: 3, 4", answer("ok", "Save as..."), answer("ok")},
           Case{"EXPECT_CLICK_ID: 4", answer("ok", "", "save as..."), answer("ok", "Save as...")},
           Case{"EXPECT_CLICK_ID_ONE_OF: 3,-1", answer("ok"), answer("ok", "", "Save as...")},
           Case{"SPOKEN_MUST_CONTAIN: pace, Time", answer("my PACE in time"), answer("my pace")},
           Case{"SPOKEN_MUST_NOT_CONTAIN: id, coord", answer("fine"), answer("the ID is 3")},
           Case{"SPOKEN_MUST_MATCH_REGEX: \\[K:[a-z]+\\]", answer("do [K:x]"), answer("do [K:]")},
           Case{"SPOKEN_MUST_MATCH_REGEX: a\nSPOKEN_MUST_MATCH_REGEX: b", answer("cab"),
                answer("ca")},
           Case{"SPOKEN_MAX_WORDS: 2", answer(" two  words "), answer("now three words")},
           Case{"BODY_MUST_BE_EMPTY: true", answer("ok", "", "", " \n"), answer("ok", "", "", "x")},
           Case{"BODY_MUST_NOT_BE_EMPTY: true", answer("ok", "", "", "x"), answer("ok")},
           Case{"BODY_CONTAIN: dear, bye", answer("ok", "", "", "Dear ... Bye"),
                answer("ok", "", "", "Dear")},
           Case{"BODY_MUST_CONTAIN: dear", answer("dear", "", "", "dear"), answer("dear")},
           Case{"BODY_MIN_WORDS: 3", answer("ok", "", "", "a b c"), answer("a b c", "", "", "a b")},
           Case{"FREE_TEXT_MODE: true\nSPOKEN_MUST_CONTAIN: zz", "plain ZZ",
                "{\"spokenText\": \"y\"}"},
       }) {
    EXPECT_TRUE(passes(c.check, c.good)) << c.check;
    EXPECT_FALSE(passes(c.check, c.bad)) << c.check;
  }
  // What is no JSON object passes nothing, not even a check that nothing is said.
  for (const char* text : {"", "{\"spokenText\": \"cut o", "[]", "3", "null"}) {
    EXPECT_FALSE(passes("SPOKEN_MUST_NOT_CONTAIN: x", text)) << text;
  }
  // Every failure is told.
  Fixture f = fixture("EXPECT_POINT_ID: 3\nSPOKEN_MUST_CONTAIN: a,b\nSPOKEN_MAX_WORDS: 1");
  EXPECT_EQ(check_answer(f, parse_answer(f, answer("c d"))).size(), 4u);
}

TEST(Fixtures, SearchesThatDoNotEndAreErrors) {
  Fixture f = fixture("SPOKEN_MUST_MATCH_REGEX: (a+)+$");
  std::string a(40, 'a');
  EXPECT_TRUE(check_answer(f, parse_answer(f, answer(a))).empty());
  try {
    check_answer(f, parse_answer(f, answer(a + "!")));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("save: SPOKEN_MUST_MATCH_REGEX: (a+)+$: "),
              std::string::npos)
        << e.what();
  }
  // Where the answer is at fault, it fails.
  std::string endless(Regex::longest_text + 1, 'a');
  EXPECT_EQ(check_answer(f, parse_answer(f, answer(endless))).size(), 1u);
}

TEST(Fixtures, TheRepositorysCanBePassed) {
  FixtureSet set = read_fixtures(testing::data_path("../../fixtures/planner"));
  EXPECT_GE(set.fixtures.size(), 12u);
  EXPECT_NE(set.system_prompt, "");
  EXPECT_EQ(set.schema, planner_schema());
  // Answers a person gave: one that passes and one that does not.
  Json answers = Json::parse(read_text_file(testing::data_path("eval/planner_answers.json")));
  for (const Fixture& f : set.fixtures) {
    EXPECT_TRUE(f.scored()) << f.name;
    ASSERT_TRUE(answers.contains(f.name)) << f.name;
    auto failures = [&](const char* which) {
      const Json& a = answers[f.name][which];
      return check_answer(f, parse_answer(f, a.is_string() ? a.get<std::string>() : a.dump()));
    };
    EXPECT_EQ(failures("good"), std::vector<std::string>{}) << f.name;
    EXPECT_NE(failures("bad"), std::vector<std::string>{}) << f.name;
  }
  EXPECT_EQ(answers.size(), set.fixtures.size());
}

TEST(Fixtures, AFolderIsPinnedWithItsPromptAndSchema) {
  fs::path folder = fs::path(::testing::TempDir()) / ("fixtures_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  auto write = [&](const char* name, const std::string& text) {
    OutputFile file((folder / name).string());
    file.write(text);
    file.commit();
  };
  EXPECT_THROW(read_fixtures((folder / "missing").string()), Error);
  EXPECT_THROW(read_fixtures(folder.string()), Error);
  write("b.txt", "USER: b\nSPOKEN_MAX_WORDS: 1");
  write("a.txt", "USER: a");
  write("notes.md", "not a fixture");
  std::set<std::string> pins;
  auto pin = [&] { return pins.insert(read_fixtures(folder.string()).sha256).second; };
  EXPECT_TRUE(pin());
  EXPECT_FALSE(pin());
  EXPECT_EQ(read_fixtures(folder.string()).fixtures[0].name, "a");
  write("system_prompt.md", "Be kind.\n");
  EXPECT_TRUE(pin());
  write("schema.json", "{\"type\": \"object\"}");
  EXPECT_TRUE(pin());
  write("a.txt", "USER: A");
  EXPECT_TRUE(pin());
  fs::remove_all(folder);
}

}  // namespace
}  // namespace speech
