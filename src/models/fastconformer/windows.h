// Audio too long to be encoded whole: overlapping windows, and one result from theirs.
// docs/decisions/long-audio-in-windows.md says why it is done so.
#pragma once

#include <cstdint>
#include <vector>

#include "models/fastconformer/decode.h"

namespace speech::fastconformer {

// All in encoder frames (80 ms at the usual hop and subsampling).
struct WindowRule {
  int64_t whole = 3750;   // 5 minutes: up to this length nothing is cut
  int64_t length = 750;   // 1 minute: longest window
  int64_t overlap = 125;  // 10 seconds that neighbours share
  int64_t margin = 25;    // 2 seconds: no cut so close to the edge of a window
};

struct Window {
  int64_t begin, end;  // frames
};

// One window, or several of about equal length that cover [0, frames).
std::vector<Window> plan_windows(int64_t frames, const WindowRule& rule = {});

// Tokens of all windows, each in frames of its own window, as tokens of the whole: neighbours are
// cut in the longest pause that both hear in their common part.
Emissions merge_windows(const std::vector<Window>& windows, std::vector<Emissions> tokens,
                        const WindowRule& rule = {});

}  // namespace speech::fastconformer
