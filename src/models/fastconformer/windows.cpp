#include "models/fastconformer/windows.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace speech::fastconformer {
namespace {

// Frames from `frame` to the nearest token; a token is at least one frame long.
int64_t distance(const Emissions& tokens, int64_t frame) {
  int64_t nearest = std::numeric_limits<int64_t>::max();
  for (const Emission& t : tokens) {
    const int64_t end = std::max(t.end, t.start + 1);
    const int64_t d = frame < t.start ? t.start - frame : frame >= end ? frame - end + 1 : 0;
    nearest = std::min(nearest, d);
  }
  return nearest;
}

// The frame of [begin, end) that is furthest from any token of both, the middlemost of equals.
int64_t best_cut(const Emissions& left, const Emissions& right, int64_t begin, int64_t end) {
  const int64_t middle = (begin + end) / 2;
  int64_t best = middle, best_distance = -1;
  for (int64_t frame = begin; frame < end; ++frame) {
    const int64_t d = std::min(distance(left, frame), distance(right, frame));
    if (d > best_distance ||
        (d == best_distance && std::abs(frame - middle) < std::abs(best - middle))) {
      best = frame;
      best_distance = d;
    }
  }
  return best;
}

// Tokens with a start in [begin, end).
Emissions within(const Emissions& tokens, int64_t begin, int64_t end) {
  Emissions out;
  for (const Emission& t : tokens) {
    if (t.start >= begin && t.start < end) out.push_back(t);
  }
  return out;
}

}  // namespace

std::vector<Window> plan_windows(int64_t frames, const WindowRule& rule) {
  if (frames <= rule.whole) return {{0, frames}};
  const int64_t stride = rule.length - rule.overlap;
  const int64_t count = (frames - rule.overlap + stride - 1) / stride;
  std::vector<Window> windows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * (frames - rule.overlap) / count;
    windows.push_back({begin, (i + 1) * (frames - rule.overlap) / count + rule.overlap});
  }
  return windows;
}

Emissions merge_windows(const std::vector<Window>& windows, std::vector<Emissions> tokens,
                        const WindowRule& rule) {
  Emissions out;
  int64_t kept_from = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    for (Emission& t : tokens[i]) {
      t.start += windows[i].begin;
      t.end += windows[i].begin;
    }
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    int64_t cut = std::numeric_limits<int64_t>::max();
    if (i + 1 < windows.size()) {
      const int64_t begin = windows[i + 1].begin + rule.margin, end = windows[i].end - rule.margin;
      cut = best_cut(within(tokens[i], begin - rule.margin, end + rule.margin),
                     within(tokens[i + 1], begin - rule.margin, end + rule.margin), begin, end);
    }
    const Emissions kept = within(tokens[i], kept_from, cut);
    out.insert(out.end(), kept.begin(), kept.end());
    kept_from = cut;
  }
  return out;
}

}  // namespace speech::fastconformer
