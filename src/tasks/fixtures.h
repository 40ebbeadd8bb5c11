// Fixtures: small tasks for a language model that plans what to say and where to point on a screen,
// each with checks of its answer. The format is that of posttrainllm's fm-fixtures: a text file
// with one "KEY: value" a line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/regex.h"

namespace speech {

// "ELEMENT: [N] role|x,y|label|text"
struct ScreenElement {
  int64_t id = 0;
  std::string label;
  std::string line;  // as it stands in the fixture, behind the key
};

// What a model answered, taken apart.
struct FixtureAnswer {
  std::string spoken, point_label, click_label, body;
  std::string error;  // why it could not be taken apart; empty: it could
};

struct Fixture {
  std::string name;
  std::string user;                     // USER: the utterance
  std::vector<ScreenElement> elements;  // ELEMENT
  bool free_text = false;               // FREE_TEXT_MODE: true. The answer is plain text, not JSON

  // Ids one of which the label must stand for (EXPECT_POINT_ID, ..._ONE_OF); -1: none.
  std::vector<int64_t> point_ids, click_ids;
  // SPOKEN_..., without regard to case.
  std::vector<std::string> spoken_contains, spoken_excludes;
  std::vector<std::pair<std::string, Regex>> spoken_patterns;  // found anywhere
  std::optional<int64_t> spoken_max_words;
  // BODY_MUST_(NOT_)BE_EMPTY, BODY_CONTAIN or BODY_MUST_CONTAIN, BODY_MIN_WORDS.
  std::optional<bool> body_empty;
  std::vector<std::string> body_contains;
  std::optional<int64_t> body_min_words;

  // A fixture without checks is asked and not counted.
  bool scored() const;
};

// Parses a fixture; `path` is for messages, the file's name without .txt becomes the fixture's.
// Lines that are empty or begin with # are skipped. Error(invalid_argument) names the line.
Fixture parse_fixture(std::string_view text, const std::string& path);

// All of a folder, by name, and what is pinned with them.
struct FixtureSet {
  std::vector<Fixture> fixtures;  // NAME.txt
  std::string system_prompt;      // system_prompt.md; empty: none
  std::string schema;             // schema.json, else planner_schema()
  std::string sha256;             // of all three
};
// Error(io), Error(invalid_argument): there is no fixture, or one is malformed.
FixtureSet read_fixtures(const std::string& folder);

// The JSON schema of a planner's answer: spokenText (2 to 300 characters), pointAtLabel and
// clickLabel (at most 100), bodyText (at most 800).
const std::string& planner_schema();

// The message that asks a fixture: the elements, then what the user said.
std::string fixture_message(const Fixture& fixture);

FixtureAnswer parse_answer(const Fixture& fixture, const std::string& content);

// The element that a label means: the first of the same text, else the first of which it is a part,
// else the first whose label is a part of it, all without regard to case; -1: none.
int64_t element_id(const std::vector<ScreenElement>& elements, std::string_view label);

// What is wrong with an answer, a line each; nothing: it passes. Error(invalid_argument): a pattern
// takes too long to search in it.
std::vector<std::string> check_answer(const Fixture& fixture, const FixtureAnswer& answer);

}  // namespace speech
