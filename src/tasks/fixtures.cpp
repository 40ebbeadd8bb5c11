#include "tasks/fixtures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  for (size_t i = 0; (i = text.find_first_not_of(kSpace, i)) != std::string_view::npos; ++words) {
    i = std::min(text.find_first_of(kSpace, i), text.size());
  }
  return words;
}

// Reads the lines of one file, with their place for messages.
class Reader {
 public:
  Reader(const std::string& path, Fixture& fixture) : path_(path), f_(fixture) {}

  void line(std::string_view text) {
    ++line_;
    text = trimmed(text);
    if (text.empty() || text[0] == '#') return;
    size_t colon = text.find(':');
    if (colon == std::string_view::npos) bad("expected KEY: value");
    key_ = std::string(trimmed(text.substr(0, colon)));
    value_ = trimmed(text.substr(colon + 1));
    auto read = readers().find(key_);
    if (read == readers().end()) bad(fmt::format("\"{}\" is not a key of a fixture", key_));
    if (value_.empty()) bad(key_ + " has no value");
    read->second(*this);
  }

  [[noreturn]] void bad(const std::string& message) const {
    fail_option(Status::invalid_argument, "fixtures", "{}:{}: {}", path_, line_, message);
  }

 private:
  using Readers = std::map<std::string, std::function<void(Reader&)>, std::less<>>;
  static const Readers& readers() {
    static const Readers table = {
        {"USER", [](Reader& r) { r.f_.user = r.value_; }},
        {"ELEMENT", [](Reader& r) { r.element(); }},
        {"FREE_TEXT_MODE", [](Reader& r) { r.f_.free_text = r.boolean(); }},
        {"EXPECT_POINT_ID", [](Reader& r) { r.f_.point_ids = {r.integer(r.value_, -1)}; }},
        {"EXPECT_CLICK_ID", [](Reader& r) { r.f_.click_ids = {r.integer(r.value_, -1)}; }},
        {"EXPECT_POINT_ID_ONE_OF", [](Reader& r) { r.f_.point_ids = r.integers(); }},
        {"EXPECT_CLICK_ID_ONE_OF", [](Reader& r) { r.f_.click_ids = r.integers(); }},
        {"SPOKEN_MUST_CONTAIN", [](Reader& r) { r.add_texts(r.f_.spoken_contains); }},
        {"SPOKEN_MUST_NOT_CONTAIN", [](Reader& r) { r.add_texts(r.f_.spoken_excludes); }},
        {"SPOKEN_MUST_MATCH_REGEX", [](Reader& r) { r.pattern(); }},
        {"SPOKEN_MAX_WORDS", [](Reader& r) { r.f_.spoken_max_words = r.integer(r.value_, 0); }},
        {"BODY_MUST_BE_EMPTY", [](Reader& r) { r.body_empty(true); }},
        {"BODY_MUST_NOT_BE_EMPTY", [](Reader& r) { r.body_empty(false); }},
        {"BODY_CONTAIN", [](Reader& r) { r.add_texts(r.f_.body_contains); }},
        {"BODY_MUST_CONTAIN", [](Reader& r) { r.add_texts(r.f_.body_contains); }},
        {"BODY_MIN_WORDS", [](Reader& r) { r.f_.body_min_words = r.integer(r.value_, 0); }},
    };
    return table;
  }

  int64_t integer(std::string_view text, int64_t least) const {
    int64_t number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < least) {
      bad(fmt::format("{}: \"{}\" is not a whole number from {}", key_, text, least));
    }
    return number;
  }

  bool boolean() const {
    std::string text = lower_case(value_);
    if (text != "true" && text != "false") bad(key_ + ": expected true or false");
    return text == "true";
  }

  std::vector<std::string_view> list() const {
    std::vector<std::string_view> items;
    for (std::string_view rest = value_; !rest.empty();) {
      size_t comma = std::min(rest.find(','), rest.size());
      std::string_view item = trimmed(rest.substr(0, comma));
      if (!item.empty()) items.push_back(item);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    if (items.empty()) bad(key_ + ": the list is empty");
    return items;
  }

  std::vector<int64_t> integers() const {
    std::vector<int64_t> numbers;
    for (std::string_view item : list()) numbers.push_back(integer(item, -1));
    return numbers;
  }

  void add_texts(std::vector<std::string>& to) const {
    for (std::string_view item : list()) to.push_back(lower_case(item));
  }

  void body_empty(bool empty) {
    if (boolean()) f_.body_empty = empty;
  }

  void pattern() {
    try {
      f_.spoken_patterns.emplace_back(value_, Regex(value_));
    } catch (const Error& e) {
      bad(fmt::format("{}: \"{}\" is not a regular expression this program reads: {}", key_, value_,
                      e.what()));
    }
  }

  void element() {
    ScreenElement e{.line = std::string(value_)};
    size_t bracket = value_.find(']');
    std::string_view rest = bracket == std::string_view::npos ? "" : value_.substr(bracket + 1);
    size_t role = rest.find('|');
    size_t place = role == std::string_view::npos ? role : rest.find('|', role + 1);
    size_t label = place == std::string_view::npos ? place : rest.find('|', place + 1);
    if (value_[0] != '[' || label == std::string_view::npos) {
      bad("ELEMENT: expected [N] role|x,y|label|text");
    }
    e.id = integer(trimmed(value_.substr(1, bracket - 1)), 0);
    e.label = trimmed(rest.substr(place + 1, label - place - 1));
    for (const ScreenElement& other : f_.elements) {
      if (other.id == e.id) bad(fmt::format("ELEMENT: the id {} is taken already", e.id));
    }
    f_.elements.push_back(std::move(e));
  }

  const std::string& path_;
  Fixture& f_;
  int line_ = 0;
  std::string key_;
  std::string_view value_;
};

void check_element(const char* what, const std::vector<int64_t>& expected, const Fixture& fixture,
                   const std::string& label, std::vector<std::string>& wrong) {
  if (expected.empty()) return;
  int64_t id = element_id(fixture.elements, label);
  if (std::find(expected.begin(), expected.end(), id) != expected.end()) return;
  wrong.push_back(fmt::format("{} \"{}\", element {}; expected {}", what, label, id,
                              fmt::join(expected, " or ")));
}

}  // namespace

bool Fixture::scored() const {
  return !point_ids.empty() || !click_ids.empty() || !spoken_contains.empty() ||
         !spoken_excludes.empty() || !spoken_patterns.empty() || spoken_max_words || body_empty ||
         !body_contains.empty() || body_min_words;
}

Fixture parse_fixture(std::string_view text, const std::string& path) {
  Fixture f;
  f.name = fs::path(path).stem().string();
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  Reader reader(path, f);
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    reader.line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (f.user.empty()) {
    fail_option(Status::invalid_argument, "fixtures", "{}: there is no line USER: ...", path);
  }
  for (const auto* ids : {&f.point_ids, &f.click_ids}) {
    for (int64_t id : *ids) {
      bool known = id < 0 || std::any_of(f.elements.begin(), f.elements.end(),
                                         [&](const ScreenElement& e) { return e.id == id; });
      if (known) continue;
      fail_option(Status::invalid_argument, "fixtures",
                  "{}: element {} is expected and not on the screen", path, id);
    }
  }
  return f;
}

FixtureSet read_fixtures(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (error) fail_option(Status::io, "fixtures", "{}: {}", folder, error.message());
  if (files.empty()) {
    fail_option(Status::invalid_argument, "fixtures", "{} holds no fixture (NAME.txt)", folder);
  }
  std::sort(files.begin(), files.end());
  FixtureSet set;
  Sha256 hash;
  auto pin = [&](const std::string& name, const std::string& text) {
    std::string head = fmt::format("{} {}\n", name, text.size());
    hash.update(std::as_bytes(std::span(head)));
    hash.update(std::as_bytes(std::span(text)));
  };
  for (const fs::path& file : files) {
    std::string text = read_text_file(file.string());
    set.fixtures.push_back(parse_fixture(text, file.string()));
    pin(file.filename().string(), text);
  }
  auto optional = [&](const char* name) {
    fs::path path = fs::path(folder) / name;
    return fs::exists(path) ? read_text_file(path.string()) : std::string();
  };
  set.system_prompt = trimmed(optional("system_prompt.md"));
  set.schema = optional("schema.json");
  if (set.schema.empty()) set.schema = planner_schema();
  pin("system_prompt", set.system_prompt);
  pin("schema", set.schema);
  set.sha256 = hash.hex();
  return set;
}

const std::string& planner_schema() {
  static const std::string schema = [] {
    auto text = [](int least, int most) {
      Json s{{"type", "string"}};
      if (least > 0) s["minLength"] = least;
      s["maxLength"] = most;
      return s;
    };
    return Json{{"type", "object"},
                {"properties",
                 {{"spokenText", text(2, 300)},
                  {"pointAtLabel", text(0, 100)},
                  {"clickLabel", text(0, 100)},
                  {"bodyText", text(0, 800)}}},
                {"required", {"spokenText", "pointAtLabel", "clickLabel", "bodyText"}},
                {"additionalProperties", false}}
        .dump();
  }();
  return schema;
}

std::string fixture_message(const Fixture& fixture) {
  std::string text;
  if (!fixture.elements.empty()) {
    text = "on-screen elements:\n";
    for (const ScreenElement& e : fixture.elements) text += e.line + "\n";
    text += "\n";
  }
  return replace_invalid_utf8(text + "user said: " + fixture.user);
}

FixtureAnswer parse_answer(const Fixture& fixture, const std::string& content) {
  FixtureAnswer answer;
  if (fixture.free_text) {
    answer.spoken = content;
    return answer;
  }
  Json json = Json::parse(content, nullptr, false);
  if (!json.is_object()) {
    answer.error = "the answer is not a JSON object";
    return answer;
  }
  auto text = [&](const char* key) {
    auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  answer.spoken = text("spokenText");
  answer.point_label = text("pointAtLabel");
  answer.click_label = text("clickLabel");
  answer.body = text("bodyText");
  return answer;
}

int64_t element_id(const std::vector<ScreenElement>& elements, std::string_view label) {
  std::string wanted = lower_case(trimmed(label));
  if (wanted.empty()) return -1;
  std::vector<std::string> labels;
  for (const ScreenElement& e : elements) labels.push_back(lower_case(e.label));
  auto first = [&](auto fits) {
    auto it = std::find_if(labels.begin(), labels.end(), fits);
    return it == labels.end() ? -1 : elements[static_cast<size_t>(it - labels.begin())].id;
  };
  int64_t id = first([&](const std::string& l) { return l == wanted; });
  if (id < 0) id = first([&](const std::string& l) { return l.find(wanted) != l.npos; });
  if (id < 0) {
    id = first([&](const std::string& l) { return !l.empty() && wanted.find(l) != l.npos; });
  }
  return id;
}

std::vector<std::string> check_answer(const Fixture& fixture, const FixtureAnswer& answer) {
  if (!answer.error.empty()) return {answer.error};
  std::vector<std::string> wrong;
  check_element("points at", fixture.point_ids, fixture, answer.point_label, wrong);
  check_element("clicks", fixture.click_ids, fixture, answer.click_label, wrong);
  std::string spoken = lower_case(answer.spoken), body = lower_case(answer.body);
  for (const std::string& part : fixture.spoken_contains) {
    if (spoken.find(part) == spoken.npos) wrong.push_back(fmt::format("does not say \"{}\"", part));
  }
  for (const std::string& part : fixture.spoken_excludes) {
    if (spoken.find(part) != spoken.npos) wrong.push_back(fmt::format("says \"{}\"", part));
  }
  for (const auto& [text, pattern] : fixture.spoken_patterns) {
    if (answer.spoken.size() > Regex::longest_text) {
      wrong.push_back(
          fmt::format("says {} bytes, too long to be searched for {}", answer.spoken.size(), text));
      continue;
    }
    try {
      if (pattern.search(answer.spoken)) continue;
    } catch (const Error& e) {
      fail_option(Status::invalid_argument, "fixtures", "{}: SPOKEN_MUST_MATCH_REGEX: {}: {}",
                  fixture.name, text, e.what());
    }
    wrong.push_back(fmt::format("what is said does not match {}", text));
  }
  int64_t words = count_words(answer.spoken), body_words = count_words(answer.body);
  if (fixture.spoken_max_words && words > *fixture.spoken_max_words) {
    wrong.push_back(fmt::format("says {} words; at most {}", words, *fixture.spoken_max_words));
  }
  if (fixture.body_empty && *fixture.body_empty != (body_words == 0)) {
    wrong.push_back(*fixture.body_empty ? "the body is not empty" : "the body is empty");
  }
  for (const std::string& part : fixture.body_contains) {
    if (body.find(part) == body.npos) {
      wrong.push_back(fmt::format("the body does not contain \"{}\"", part));
    }
  }
  if (fixture.body_min_words && body_words < *fixture.body_min_words) {
    wrong.push_back(
        fmt::format("the body has {} words; at least {}", body_words, *fixture.body_min_words));
  }
  return wrong;
}

}  // namespace speech
