// How well recognition models write what was said: error rates of several models on one set of
// recordings, with intervals, and what follows from them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tasks/error_rate.h"

namespace speech {

struct Utterance {
  std::string audio;  // path of the recording
  std::string text;   // what is said
  TextUnit unit = TextUnit::word;
  std::vector<AcceptedSegment> segments;  // other ways of writing it; empty: none are known
  std::map<std::string, std::string> groups;
};

// Reads a manifest, one JSON object a line: "audio" (a path from the manifest's folder), "text",
// and, if wanted, "language" (its unit; default: words), "segments" (accepted spellings, as
// docs/cli.md says), "groups" ({"voice": "...", ...}). Other members, empty lines and a first line
// {"format": 1} are passed over. Error(io | invalid_argument, "quality") names file and line: a
// line that is no such object, a text without anything to compare, a recording that is not there.
std::vector<Utterance> read_manifest(const std::string& path);

// What one model wrote, and what it took.
struct QualityRun {
  std::string model, file, type, decoding;  // type: "q8_0"
  std::string device, processor;
  int threads = 0;
  uint64_t file_bytes = 0;
  double load_seconds = 0;
  double audio_seconds = 0, seconds = 0;      // of all recordings, and to recognize them
  uint64_t peak_memory = 0, file_memory = 0;  // bytes resident at most; of mapped files at the end
  std::vector<std::string> texts;             // of each utterance
};
std::string quality_run_json(const QualityRun& run);
QualityRun parse_quality_run(const std::string& json);  // Error(internal): it is none

// ---- rates ----

struct Interval {
  double low = 0, high = 0;
};

// The errors of all over the length of all; 0 of nothing.
double error_rate(std::span<const ErrorCount> counts);

// 95 % intervals by the percentile bootstrap: utterances are drawn with replacement
// kBootstrapSamples times, always in the same way. They speak of other utterances of these
// speakers, not of other speakers.
inline constexpr int kBootstrapSamples = 2000;
Interval bootstrap_rate(std::span<const ErrorCount> counts);
// Of rate(a) - rate(b) on the same utterances, drawn together.
Interval bootstrap_difference(std::span<const ErrorCount> a, std::span<const ErrorCount> b);

struct Rate {
  int64_t errors = 0, length = 0;
  double value = 0;
  Interval interval;
};

// The rates of one run on some of the utterances. Words: of those in languages compared by words.
// Accepted: with accepted spellings where they are known, as written elsewhere; only if any are
// known. The unit is that of each utterance's language.
struct Rates {
  int64_t utterances = 0;
  std::optional<Rate> words, characters, accepted;
};
struct Difference {
  double value = 0;
  Interval interval;
};

struct QualityReport {
  struct Row {
    QualityRun run;
    Rates all;
    std::map<std::pair<std::string, std::string>, Rates> groups;  // by {"voice", "slt"}
    int64_t empty = 0;                                            // utterances without text
    std::optional<Difference> words, characters;  // to the first row of the same decoding
  };
  std::vector<Row> rows;
  bool by_words = true;  // the rate that counts is that of words
  int64_t utterances = 0;
};

// Every run must be of all utterances.
QualityReport score_quality(std::span<const Utterance> utterances, std::vector<QualityRun> runs);

// Which type the bare name of these models stands for, by the rows with the first row's decoding:
// q8_0 if its error rate is at most 0.2 points above that of f16, as written and with accepted
// spellings, else f16. The K types never are, whatever their numbers. An empty type: rows are
// missing, which `reason` names.
struct BareType {
  std::string type, reason;
};
BareType choose_bare_type(const QualityReport& report);

std::string quality_json(const QualityReport& report);
std::string quality_text(const QualityReport& report);
std::string quality_markdown(const QualityReport& report);

}  // namespace speech
