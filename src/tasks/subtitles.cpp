#include "tasks/subtitles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace speech {
namespace {

int64_t milliseconds(double seconds) {
  return std::max<int64_t>(0, std::llround(seconds * 1000));
}

std::string stamp(double seconds, char point) {
  int64_t ms = milliseconds(seconds);
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60,
                     point, ms % 1000);
}

// A cue's text on one line, without spaces at its ends.
std::string cue_text(const std::string& text) {
  size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  std::string out = text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return out;
}

std::string escape_markup(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string to_srt(std::span<const Segment> segments) {
  std::string out;
  int number = 0;
  for (const auto& segment : segments) {
    std::string text = cue_text(segment.text);
    if (text.empty()) continue;
    out += fmt::format("{}\n{} --> {}\n{}\n\n", ++number, stamp(segment.start, ','),
                       stamp(segment.end, ','), text);
  }
  return out;
}

std::string to_vtt(std::span<const Segment> segments) {
  std::string out = "WEBVTT\n\n";
  for (const auto& segment : segments) {
    std::string text = cue_text(segment.text);
    if (text.empty()) continue;
    out += fmt::format("{} --> {}\n{}\n\n", stamp(segment.start, '.'), stamp(segment.end, '.'),
                       escape_markup(text));
  }
  return out;
}

std::string to_tsv(std::span<const Segment> segments) {
  std::string out = "start\tend\ttext\n";
  for (const auto& segment : segments) {
    out += fmt::format("{}\t{}\t{}\n", milliseconds(segment.start), milliseconds(segment.end),
                       cue_text(segment.text));
  }
  return out;
}

}  // namespace speech
