// Transcription by regions: each stretch in which someone speaks is recognized alone, and the texts
// are joined. Recognizers trained on short utterances skip sentences of long ones and write words
// for silence; regions avoid both, and bound the memory of a request.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"

namespace speech {

// Options of a detection that cuts audio for recognition: what `given` lacks is filled with the
// values for this use, where the detection model takes them.
Options region_options(const ModelInfo& detector, Options given);

// The samples [first, last) of a region, of `samples` at `rate` Hz.
struct Cut {
  int64_t first = 0, last = 0;
};
Cut cut_region(const Region& region, int rate, int64_t samples);

// Joins the transcripts of regions in order.
class TranscriptJoiner {
 public:
  // `start`: seconds of the part's first sample.
  void add(Transcript part, double start);
  Transcript take() { return std::move(joined_); }

 private:
  Transcript joined_;
};

// Times of a transcript, moved by `seconds`.
void shift_times(Transcript& transcript, double seconds);

// Detects, cuts, recognizes and joins. Both models are held by the caller.
Transcript transcribe_regions(Recognizer& recognizer, const Options& options, Detector& detector,
                              const Options& detection_options, AudioView audio,
                              const Control& control);

}  // namespace speech
