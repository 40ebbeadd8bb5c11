// From a probability per chunk to regions of speech.
//
// The rule is that of get_speech_timestamps() in snakers4/silero-vad (src/silero_vad/utils_vad.py,
// package 6.2.3), in a form that gives each region as soon as nothing that follows can change it:
// at the end the regions are those of the whole, sample for sample.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace speech::silero_vad {

// Counts of samples are doubles and not rounded, as in the official code: rate * ms / 1000.
struct RegionRule {
  int64_t chunk = 512;            // samples per probability
  double threshold = 0.5;         // p >= threshold is speech
  double neg_threshold = 0.35;    // p < neg_threshold is silence; between the two nothing changes
  double min_speech = 4000;       // a region must be longer
  double min_silence = 1600;      // a silence of this much ends a region
  double pad = 480;               // added on both sides, at most half of a gap
  double min_cut_silence = 1568;  // a longer silence is a place to cut a region that is too long
  double max_speech = std::numeric_limits<double>::infinity();  // of a region with its padding

  // max_speech less the chunk in which it is noticed and the padding; may be negative.
  double cut_after() const { return max_speech - static_cast<double>(chunk) - 2 * pad; }
};

struct SampleRegion {
  int64_t start = 0, end = 0;  // samples
  bool operator==(const SampleRegion&) const = default;
};

class RegionFinder {
 public:
  explicit RegionFinder(const RegionRule& rule) : rule_(rule), cut_after_(rule.cut_after()) {}

  void add(float probability);  // of the next chunk
  // Gives what has become certain, `heard` samples having arrived (whole chunks or not).
  void settle(int64_t heard);
  void end(int64_t samples);  // the length of the audio

  const std::vector<SampleRegion>& regions() const { return given_; }
  // The padded start of a region that has begun and is not given yet, the oldest first; `kept`
  // tells whether it is certain to be given.
  std::optional<int64_t> open(int64_t heard, bool* kept) const;

 private:
  struct Silence {
    int64_t start, length;
  };

  int64_t padded_start(int64_t start) const;
  void append(int64_t start, int64_t end);
  void give(std::optional<int64_t> next, int64_t length);
  // Where the region under way ends at the earliest.
  int64_t earliest_end(int64_t heard) const;
  bool long_enough(int64_t end) const {
    return static_cast<double>(end - *start_) > rule_.min_speech;
  }
  void end_region();

  RegionRule rule_;
  double cut_after_;
  int64_t chunks_ = 0;
  std::optional<int64_t> start_;         // of the region under way, without padding
  std::optional<int64_t> silence_;       // start of the silence under way inside it
  std::vector<Silence> candidates_;      // silences inside it where it may be cut
  std::optional<SampleRegion> pending_;  // ended: start padded, end not yet
  std::optional<int64_t> last_end_;      // of the latest region that ended, without padding
  std::vector<SampleRegion> given_;
};

}  // namespace speech::silero_vad
