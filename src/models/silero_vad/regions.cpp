#include "models/silero_vad/regions.h"

#include <algorithm>

namespace speech::silero_vad {

// Comparisons are in double, of the float32 probability with the double threshold: a probability
// that is the float32 of 0.7 is below 0.7.
void RegionFinder::add(float probability) {
  double p = probability;
  int64_t now = rule_.chunk * chunks_++;
  bool speech = p >= rule_.threshold;
  if (speech && silence_) {
    int64_t length = now - *silence_;
    if (static_cast<double>(length) > rule_.min_cut_silence) {
      candidates_.push_back({*silence_, length});
    }
    silence_.reset();
  }
  if (speech && !start_) {
    start_ = now;
    return;
  }
  if (start_ && static_cast<double>(now - *start_) > cut_after_) {
    // Too long: cut at the longest silence, the first of equals, or here if there was none. What
    // is cut need not have the least length of speech.
    if (candidates_.empty()) {
      append(*start_, now);
      end_region();
      return;
    }
    Silence cut =
        *std::max_element(candidates_.begin(), candidates_.end(),
                          [](const Silence& a, const Silence& b) { return a.length < b.length; });
    append(*start_, cut.start);
    end_region();
    start_ = cut.start + cut.length;
  }
  if (p < rule_.neg_threshold && start_) {
    if (!silence_) silence_ = now;
    if (static_cast<double>(now - *silence_) < rule_.min_silence) return;
    if (long_enough(*silence_)) append(*start_, *silence_);
    end_region();
  }
}

void RegionFinder::end_region() {
  start_.reset();
  silence_.reset();
  candidates_.clear();
}

int64_t RegionFinder::earliest_end(int64_t heard) const {
  return silence_ ? *silence_ : std::min(rule_.chunk * chunks_, heard);
}

void RegionFinder::settle(int64_t heard) {
  if (!pending_) return;
  int64_t end = pending_->end;
  double wide = 2 * rule_.pad;
  if (start_) {
    if (long_enough(earliest_end(heard))) {
      give(*start_, heard);  // the region under way will be kept: the gap is known
    } else if (static_cast<double>(*start_ - end) >= wide) {
      give({}, heard);
    }
  } else if (static_cast<double>(rule_.chunk * chunks_ - end) >= wide &&
             static_cast<double>(end) + rule_.pad <= static_cast<double>(heard)) {
    give({}, heard);
  }
}

void RegionFinder::end(int64_t samples) {
  if (start_ && long_enough(samples)) append(*start_, samples);
  end_region();
  if (pending_) give({}, samples);
}

std::optional<int64_t> RegionFinder::open(int64_t heard, bool* kept) const {
  bool certain = pending_.has_value();
  std::optional<int64_t> start;
  if (pending_) {
    start = pending_->start;
  } else if (start_) {
    start = padded_start(*start_);
    certain = long_enough(earliest_end(heard));
  }
  if (kept) *kept = certain;
  return start;
}

int64_t RegionFinder::padded_start(int64_t start) const {
  if (last_end_ && static_cast<double>(start - *last_end_) < 2 * rule_.pad) {
    return std::max<int64_t>(0, start - (start - *last_end_) / 2);
  }
  return static_cast<int64_t>(std::max(0.0, static_cast<double>(start) - rule_.pad));
}

void RegionFinder::append(int64_t start, int64_t end) {
  int64_t padded = padded_start(start);
  if (pending_) give(start, start);
  pending_ = {padded, end};
  last_end_ = end;
}

// `next`: the start of the region that follows, without padding, if there is one.
void RegionFinder::give(std::optional<int64_t> next, int64_t length) {
  auto [start, end] = *pending_;
  if (next && static_cast<double>(*next - end) < 2 * rule_.pad) {
    end += (*next - end) / 2;
  } else {
    end = static_cast<int64_t>(
        std::min(static_cast<double>(length), static_cast<double>(end) + rule_.pad));
  }
  given_.push_back({start, end});
  pending_.reset();
}

}  // namespace speech::silero_vad
