// Subtitle files made of a transcript's segments.
#pragma once

#include <span>
#include <string>

#include "models/model.h"

namespace speech {

// SubRip: numbered cues, "00:00:01,500 --> 00:00:02,000".
std::string to_srt(std::span<const Segment> segments);
// WebVTT (W3C): the same with a head line, points for commas, and & < > escaped.
std::string to_vtt(std::span<const Segment> segments);
// A head line, then start and end in milliseconds and the text, separated by tabs.
std::string to_tsv(std::span<const Segment> segments);

}  // namespace speech
