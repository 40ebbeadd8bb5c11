#include "tasks/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// One line of a manifest, with its place for messages.
class ManifestLine {
 public:
  ManifestLine(const std::string& path, int line, std::string_view text)
      : path_(path), line_(line), json_(Json::parse(text, nullptr, false)) {
    if (json_.is_discarded()) bad("it is not JSON");
    if (!json_.is_object()) bad("it is not an object");
  }

  bool is_head() const {
    return line_ == 1 && json_.contains("format") && !json_.contains("audio");
  }

  Utterance read() const {
    Utterance u;
    u.audio = (fs::path(path_).parent_path() / text(json_, "audio")).string();
    u.text = text(json_, "text");
    if (json_.contains("language")) u.unit = unit_of_language(text(json_, "language"));
    if (json_.contains("groups")) {
      for (const auto& [name, value] : object(json_, "groups").items()) {
        if (!value.is_string()) bad(fmt::format("groups: {} is not a string", name));
        u.groups[name] = value;
        // They head rows of tables.
        const auto plain = [](const std::string& text) {
          return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) {
            return c < 0x20 || c == 0x7F || c == '|';
          });
        };
        if (!plain(name) || !plain(u.groups[name])) {
          bad("groups: a name is empty or holds control characters or \"|\"");
        }
      }
    }
    for (const Json& segment : list(json_, "segments")) u.segments.push_back(read_segment(segment));
    check(u);
    return u;
  }

 private:
  [[noreturn]] void bad(const std::string& message,
                        Status status = Status::invalid_argument) const {
    fail_option(status, "quality", "{}:{}: {}", path_, line_, message);
  }

  std::string text(const Json& of, const char* name) const {
    if (!of.contains(name) || !of[name].is_string()) bad(fmt::format("no string \"{}\"", name));
    return of[name];
  }
  bool flag(const Json& of, const char* name) const {
    if (!of.contains(name)) return false;
    if (!of[name].is_boolean()) bad(fmt::format("\"{}\" is not true or false", name));
    return of[name];
  }
  const Json& object(const Json& of, const char* name) const {
    if (!of[name].is_object()) bad(fmt::format("\"{}\" is not an object", name));
    return of[name];
  }
  // An empty one where there is none.
  Json list(const Json& of, const char* name) const {
    if (!of.contains(name)) return Json::array();
    if (!of[name].is_array()) bad(fmt::format("\"{}\" is not a list", name));
    return of[name];
  }
  std::vector<std::string> texts(const Json& of, const char* name) const {
    std::vector<std::string> out;
    for (const Json& entry : list(of, name)) {
      if (!entry.is_string()) bad(fmt::format("\"{}\" is not a list of strings", name));
      out.push_back(entry);
    }
    return out;
  }

  AcceptedSegment read_segment(const Json& json) const {
    if (!json.is_object()) bad("\"segments\" is not a list of objects");
    AcceptedSegment segment;
    segment.bracketed = flag(json, "bracketed");
    segment.optional = flag(json, "optional");
    segment.spellings = texts(json, "spellings");
    for (const Json& piece : list(json, "pieces")) {
      if (!piece.is_object()) bad("\"pieces\" is not a list of objects");
      segment.pieces.push_back({text(piece, "text"), texts(piece, "readings")});
    }
    return segment;
  }

  void check(const Utterance& u) const {
    if (units_of(u.text, u.unit).empty()) {
      bad(fmt::format("the text \"{}\" has nothing to compare", u.text));
    }
    if (!u.segments.empty()) {
      if (auto wrong = wrong_segments(u.text, u.segments, u.unit)) bad(*wrong);
    }
    std::error_code error;
    if (!fs::is_regular_file(u.audio, error)) {
      bad(fmt::format("there is no recording {}", u.audio), Status::io);
    }
  }

  const std::string& path_;
  int line_;
  Json json_;
};

// ---- bootstrap ----

// Draws sets of as many utterances as there are, and gives the middle 95 % of what `statistic` says
// of them.
Interval bootstrap(size_t count,
                   const std::function<double(std::span<const uint32_t>)>& statistic) {
  if (count == 0) return {};
  std::mt19937_64 random(20240229);  // any number; the same for every table
  std::vector<uint32_t> drawn(count);
  std::vector<double> values(kBootstrapSamples);
  for (double& value : values) {
    // A remainder, not a distribution of the standard library, whose results differ between
    // libraries; its bias is below 1e-12.
    for (uint32_t& i : drawn) i = static_cast<uint32_t>(random() % count);
    value = statistic(drawn);
  }
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(at);
    const double next = values[std::min(below + 1, values.size() - 1)];
    return values[below] + (at - static_cast<double>(below)) * (next - values[below]);
  };
  return {quantile(0.025), quantile(0.975)};
}

double rate_of(std::span<const ErrorCount> counts, std::span<const uint32_t> chosen) {
  int64_t errors = 0, length = 0;
  for (uint32_t i : chosen) {
    errors += counts[i].errors;
    length += counts[i].length;
  }
  return length > 0 ? static_cast<double>(errors) / static_cast<double>(length) : 0;
}

using Counts = std::vector<ErrorCount>;

std::optional<Rate> rate_of(const Counts& counts) {
  if (counts.empty()) return std::nullopt;
  Rate rate;
  for (const ErrorCount& c : counts) {
    rate.errors += c.errors;
    rate.length += c.length;
  }
  rate.value = error_rate(counts);
  rate.interval = bootstrap_rate(counts);
  return rate;
}

// The counts of one run, utterance by utterance.
struct RunCounts {
  struct One {
    std::optional<ErrorCount> words;
    ErrorCount characters, accepted;
  };
  std::vector<One> all;

  RunCounts(std::span<const Utterance> utterances, const std::vector<std::string>& texts) {
    for (size_t i = 0; i < utterances.size(); ++i) {
      const Utterance& u = utterances[i];
      One one;
      one.characters = count_errors(u.text, texts[i], TextUnit::character);
      if (u.unit == TextUnit::word) one.words = count_errors(u.text, texts[i], TextUnit::word);
      one.accepted = !u.segments.empty() ? count_errors(u.text, u.segments, texts[i], u.unit)
                     : one.words         ? *one.words
                                         : one.characters;
      all.push_back(one);
    }
  }

  Counts words() const {
    Counts out;
    for (const One& one : all) {
      if (one.words) out.push_back(*one.words);
    }
    return out;
  }
  Counts characters() const {
    Counts out;
    for (const One& one : all) out.push_back(one.characters);
    return out;
  }
  Counts accepted() const {
    Counts out;
    for (const One& one : all) out.push_back(one.accepted);
    return out;
  }
};

Rates rates_of(const RunCounts& counts, bool with_accepted) {
  Rates rates;
  rates.utterances = static_cast<int64_t>(counts.all.size());
  rates.words = rate_of(counts.words());
  rates.characters = rate_of(counts.characters());
  if (with_accepted) rates.accepted = rate_of(counts.accepted());
  return rates;
}

std::optional<Difference> difference(const Counts& a, const Counts& b) {
  if (a.empty()) return std::nullopt;
  return Difference{error_rate(a) - error_rate(b), bootstrap_difference(a, b)};
}

// ---- output ----

constexpr double kMega = 1e6;

Json interval_json(Json json, const Interval& interval) {
  json["low"] = interval.low;
  json["high"] = interval.high;
  return json;
}

void add_rates(Json& json, const Rates& rates) {
  const auto add = [&](const char* name, const std::optional<Rate>& rate) {
    if (!rate) return;
    json[name] =
        interval_json({{"errors", rate->errors}, {"length", rate->length}, {"rate", rate->value}},
                      rate->interval);
  };
  add("wer", rates.words);
  add("cer", rates.characters);
  add("accepted", rates.accepted);
}

std::string percent(double value) {
  return fmt::format("{:.2f}", 100 * value);
}
std::string percents(const Interval& i) {
  return percent(i.low) + " to " + percent(i.high);
}
std::string cell(const std::optional<Rate>& rate) {
  return rate ? fmt::format("{} ({})", percent(rate->value), percents(rate->interval)) : "-";
}
std::string cell(const std::optional<Difference>& d) {
  if (!d) return "-";
  return fmt::format("{:+.2f} ({:+.2f} to {:+.2f})", 100 * d->value, 100 * d->interval.low,
                     100 * d->interval.high);
}

using Table = std::vector<std::vector<std::string>>;

Table model_table(const QualityReport& report) {
  const auto any = [&](auto has) {
    return std::any_of(report.rows.begin(), report.rows.end(), has);
  };
  const bool words = any([](const auto& r) { return r.all.words.has_value(); });
  const bool accepted = any([](const auto& r) { return r.all.accepted.has_value(); });
  const bool several = report.rows.size() > 1;
  Table table{{"model", "type", "decoding", "MB"}};
  auto& head = table[0];
  if (words) head.emplace_back("WER % (95 %)");
  if (words && several) head.emplace_back("to the first");
  head.emplace_back("CER % (95 %)");
  if (several && !report.by_words) head.emplace_back("to the first");
  if (accepted) head.emplace_back("accepted % (95 %)");
  for (const char* name : {"load s", "RTF", "peak MB", "of files MB"}) head.emplace_back(name);
  for (const auto& row : report.rows) {
    const QualityRun& r = row.run;
    std::vector<std::string> line{r.model, r.type, r.decoding.empty() ? "default" : r.decoding,
                                  fmt::format("{:.2f}", static_cast<double>(r.file_bytes) / kMega)};
    if (words) line.push_back(cell(row.all.words));
    if (words && several) line.push_back(cell(row.words));
    line.push_back(cell(row.all.characters));
    if (several && !report.by_words) line.push_back(cell(row.characters));
    if (accepted) line.push_back(cell(row.all.accepted));
    line.push_back(fmt::format("{:.3f}", r.load_seconds));
    line.push_back(fmt::format("{:.4f}", r.audio_seconds > 0 ? r.seconds / r.audio_seconds : 0));
    line.push_back(fmt::format("{:.1f}", static_cast<double>(r.peak_memory) / kMega));
    line.push_back(fmt::format("{:.1f}", static_cast<double>(r.file_memory) / kMega));
    table.push_back(std::move(line));
  }
  return table;
}

std::string label(const QualityReport& report, const QualityRun& run) {
  std::string text = run.type;
  std::set<std::string> models, decodings;
  for (const auto& row : report.rows) {
    models.insert(row.run.model);
    decodings.insert(row.run.decoding);
  }
  if (models.size() > 1) text = run.model + " " + text;
  if (decodings.size() > 1) text += " " + (run.decoding.empty() ? "default" : run.decoding);
  return text;
}

// The rate that counts by group: a line for each group, a column for each run.
Table group_table(const QualityReport& report) {
  if (report.rows.empty() || report.rows[0].groups.empty()) return {};
  Table table{{"group", "utterances", report.by_words ? "words" : "characters"}};
  for (const auto& row : report.rows) table[0].push_back(label(report, row.run));
  for (const auto& [key, first] : report.rows[0].groups) {
    const auto& of_first = report.by_words ? first.words : first.characters;
    table.push_back({key.first + " " + key.second, fmt::format("{}", first.utterances),
                     of_first ? fmt::format("{}", of_first->length) : "-"});
    for (const auto& row : report.rows) {
      const Rates& rates = row.groups.at(key);
      table.back().push_back(cell(report.by_words ? rates.words : rates.characters));
    }
  }
  return table;
}

std::string write_text(const Table& table) {
  std::vector<size_t> widths;
  for (const auto& line : table) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : table) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) text += fmt::format("{:<{}}  ", line[i], widths[i]);
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string write_markdown(const Table& table) {
  std::string out;
  for (size_t row = 0; row < table.size(); ++row) {
    for (const std::string& text : table[row]) out += "| " + text + " ";
    out += "|\n";
    if (row > 0) continue;
    for (size_t i = 0; i < table[0].size(); ++i) out += "|---";
    out += "|\n";
  }
  return out;
}

// What the tables were made of, and what follows from them.
std::string head_line(const QualityReport& report) {
  const QualityRun& r = report.rows[0].run;
  const Rates& all = report.rows[0].all;
  const auto& counted = report.by_words ? all.words : all.characters;
  return fmt::format("{} utterances, {} {}, {:.1f} minutes; {}, {} thread{}", report.utterances,
                     counted ? counted->length : 0, report.by_words ? "words" : "characters",
                     r.audio_seconds / 60, r.processor.empty() ? r.device : r.processor, r.threads,
                     r.threads == 1 ? "" : "s");
}

std::string bare_line(const QualityReport& report) {
  const BareType bare = choose_bare_type(report);
  return bare.type.empty() ? "type of the bare name: not decided, " + bare.reason
                           : fmt::format("type of the bare name: {}, {}", bare.type, bare.reason);
}

std::string render(const QualityReport& report, std::string (*write)(const Table&)) {
  if (report.rows.empty()) return {};
  std::string out = head_line(report) + "\n\n" + write(model_table(report));
  const Table groups = group_table(report);
  if (!groups.empty()) {
    out += fmt::format("\n{} % by group\n\n", report.by_words ? "WER" : "CER") + write(groups);
  }
  return out + "\n" + bare_line(report) + "\n";
}

}  // namespace

std::vector<Utterance> read_manifest(const std::string& path) {
  const std::string all = read_text_file(path);
  std::string_view text = all;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<Utterance> out;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const ManifestLine read(path, number, line);
    if (!read.is_head()) out.push_back(read.read());
  }
  if (out.empty()) {
    fail_option(Status::invalid_argument, "quality", "{}: there is no utterance", path);
  }
  return out;
}

std::string quality_run_json(const QualityRun& r) {
  return Json{{"model", r.model},
              {"file", r.file},
              {"type", r.type},
              {"decoding", r.decoding},
              {"device", r.device},
              {"processor", r.processor},
              {"threads", r.threads},
              {"file_bytes", r.file_bytes},
              {"load_seconds", r.load_seconds},
              {"audio_seconds", r.audio_seconds},
              {"seconds", r.seconds},
              {"real_time_factor", r.audio_seconds > 0 ? r.seconds / r.audio_seconds : 0},
              {"peak_memory_bytes", r.peak_memory},
              {"file_memory_bytes", r.file_memory},
              {"texts", r.texts}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

QualityRun parse_quality_run(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    return {.model = j.at("model"),
            .file = j.at("file"),
            .type = j.at("type"),
            .decoding = j.at("decoding"),
            .device = j.at("device"),
            .processor = j.at("processor"),
            .threads = j.at("threads"),
            .file_bytes = j.at("file_bytes"),
            .load_seconds = j.at("load_seconds"),
            .audio_seconds = j.at("audio_seconds"),
            .seconds = j.at("seconds"),
            .peak_memory = j.at("peak_memory_bytes"),
            .file_memory = j.at("file_memory_bytes"),
            .texts = j.at("texts")};
  } catch (const Json::exception& error) {
    fail(Status::internal, "not what a model wrote: {}", error.what());
  }
}

double error_rate(std::span<const ErrorCount> counts) {
  int64_t errors = 0, length = 0;
  for (const ErrorCount& c : counts) {
    errors += c.errors;
    length += c.length;
  }
  return length > 0 ? static_cast<double>(errors) / static_cast<double>(length) : 0;
}

Interval bootstrap_rate(std::span<const ErrorCount> counts) {
  return bootstrap(counts.size(), [&](auto drawn) { return rate_of(counts, drawn); });
}

Interval bootstrap_difference(std::span<const ErrorCount> a, std::span<const ErrorCount> b) {
  return bootstrap(std::min(a.size(), b.size()),
                   [&](auto drawn) { return rate_of(a, drawn) - rate_of(b, drawn); });
}

QualityReport score_quality(std::span<const Utterance> utterances, std::vector<QualityRun> runs) {
  QualityReport report;
  report.utterances = static_cast<int64_t>(utterances.size());
  const auto by_words = std::count_if(utterances.begin(), utterances.end(),
                                      [](const auto& u) { return u.unit == TextUnit::word; });
  report.by_words = 2 * by_words >= report.utterances;
  const bool accepted = std::any_of(utterances.begin(), utterances.end(),
                                    [](const Utterance& u) { return !u.segments.empty(); });
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> groups;
  for (size_t i = 0; i < utterances.size(); ++i) {
    for (const auto& group : utterances[i].groups) groups[group].push_back(i);
  }
  std::map<std::string, RunCounts> firsts;  // of each way of decoding
  for (QualityRun& run : runs) {
    if (run.texts.size() != utterances.size()) {
      fail(Status::internal, "{}: {} texts of {} utterances", run.file, run.texts.size(),
           utterances.size());
    }
    const RunCounts counts(utterances, run.texts);
    const RunCounts& first = firsts.try_emplace(run.decoding, counts).first->second;
    QualityReport::Row row;
    row.all = rates_of(counts, accepted);
    row.empty = std::count(run.texts.begin(), run.texts.end(), "");
    row.words = difference(counts.words(), first.words());
    row.characters = difference(counts.characters(), first.characters());
    for (const auto& [key, members] : groups) {
      RunCounts part({}, {});
      for (size_t i : members) part.all.push_back(counts.all[i]);
      row.groups[key] = rates_of(part, accepted);
    }
    row.run = std::move(run);
    report.rows.push_back(std::move(row));
  }
  return report;
}

BareType choose_bare_type(const QualityReport& report) {
  const QualityReport::Row *f16 = nullptr, *q8_0 = nullptr;
  for (const auto& row : report.rows) {
    if (row.run.decoding != report.rows[0].run.decoding) continue;
    if (row.run.type == "f16" && !f16) f16 = &row;
    if (row.run.type == "q8_0" && !q8_0) q8_0 = &row;
  }
  if (!f16 || !q8_0) return {"", "it takes a row of f16 and one of q8_0"};
  constexpr double kPoints = 0.002, kRounding = 1e-12;
  const auto above = [](const std::optional<Rate>& a, const std::optional<Rate>& b) {
    return a && b ? a->value - b->value : 0;
  };
  const double written = report.by_words ? above(q8_0->all.words, f16->all.words)
                                         : above(q8_0->all.characters, f16->all.characters);
  const double accepted = above(q8_0->all.accepted, f16->all.accepted);
  std::string reason = fmt::format("q8_0 is {:+.2f} points from f16 as written", 100 * written);
  if (q8_0->all.accepted) {
    reason += fmt::format(", {:+.2f} with accepted spellings", 100 * accepted);
  }
  const bool near = written <= kPoints + kRounding && accepted <= kPoints + kRounding;
  return {near ? "q8_0" : "f16", reason + (near ? " (at most 0.2)" : " (more than 0.2)")};
}

std::string quality_json(const QualityReport& report) {
  Json rows = Json::array();
  for (const auto& row : report.rows) {
    Json json = Json::parse(quality_run_json(row.run));
    json["empty"] = row.empty;
    add_rates(json, row.all);
    const auto add = [&](const char* name, const std::optional<Difference>& d) {
      if (d) json[name] = interval_json({{"difference", d->value}}, d->interval);
    };
    add("wer_to_first", row.words);
    add("cer_to_first", row.characters);
    Json groups = Json::array();
    for (const auto& [key, rates] : row.groups) {
      Json group{{"group", key.first}, {"value", key.second}, {"utterances", rates.utterances}};
      add_rates(group, rates);
      groups.push_back(std::move(group));
    }
    json["groups"] = std::move(groups);
    rows.push_back(std::move(json));
  }
  const BareType bare = choose_bare_type(report);
  return Json{{"utterances", report.utterances},
              {"unit", report.by_words ? "word" : "character"},
              {"bootstrap_samples", kBootstrapSamples},
              {"runs", std::move(rows)},
              {"bare_type",
               {{"type", bare.type.empty() ? Json() : Json(bare.type)}, {"reason", bare.reason}}}}
      .dump();
}

std::string quality_text(const QualityReport& report) {
  return render(report, write_text);
}

std::string quality_markdown(const QualityReport& report) {
  return render(report, write_markdown);
}

}  // namespace speech
