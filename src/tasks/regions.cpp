#include "tasks/regions.h"

#include <algorithm>
#include <cmath>

#include "tasks/script.h"

namespace speech {
namespace {

// Detection is quick beside recognition: its share of a request's progress.
constexpr double kDetectionShare = 0.02;

}  // namespace

Options region_options(const ModelInfo& detector, Options given) {
  auto fill = [&](int id, OptionValue value) {
    if (!given.has(id) && detector.find_option(id)) given.set(id, std::move(value));
  };
  fill(option::threshold, 0.5);
  fill(option::speech_pad_ms, int64_t{300});
  fill(option::min_silence_duration_ms, int64_t{500});
  fill(option::max_speech_duration_s, 10.0);
  return given;
}

Cut cut_region(const Region& region, int rate, int64_t samples) {
  auto sample = [&](double seconds) {
    return std::clamp<int64_t>(std::llround(seconds * rate), 0, samples);
  };
  return {sample(region.start), sample(region.end)};
}

void shift_times(Transcript& transcript, double seconds) {
  auto shift = [seconds](auto& list) {
    for (auto& item : list) {
      item.start += seconds;
      item.end += seconds;
    }
  };
  shift(transcript.segments);
  shift(transcript.words);
  shift(transcript.tokens);
}

void TranscriptJoiner::add(Transcript part, double start) {
  if (part.stop == Stop::model_limit) joined_.stop = part.stop;
  for (auto& language : part.languages) {
    if (joined_.languages.empty() || joined_.languages.back() != language) {
      joined_.languages.push_back(std::move(language));
    }
  }
  if (part.text.empty()) return;
  if (needs_space(joined_.text, part.text)) {
    // The space belongs to the first segment and token, so that they still join into the text.
    part.text.insert(0, " ");
    if (!part.segments.empty()) part.segments.front().text.insert(0, " ");
    if (!part.tokens.empty()) part.tokens.front().text.insert(0, " ");
  }
  shift_times(part, start);
  auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  joined_.text += part.text;
  append(joined_.segments, part.segments);
  append(joined_.words, part.words);
  append(joined_.tokens, part.tokens);
}

Transcript transcribe_regions(Recognizer& recognizer, const Options& options, Detector& detector,
                              const Options& detection_options, AudioView audio,
                              const Control& control) {
  Control part = control;
  part.trace = nullptr;  // the stages are the recognition's
  part.progress = [&](double done) {
    return control.progress && control.progress(kDetectionShare * done);
  };
  auto regions = detector.detect(audio, region_options(detector.info(), detection_options), part);

  part.trace = control.trace;
  const auto total = static_cast<int64_t>(audio.samples.size());
  TranscriptJoiner joiner;
  for (const Region& region : regions) {
    Cut cut = cut_region(region, audio.rate, total);
    if (cut.first >= cut.last) continue;
    part.progress = [&](double done) {
      double sample =
          static_cast<double>(cut.first) + done * static_cast<double>(cut.last - cut.first);
      return control.progress && control.progress(kDetectionShare + (1 - kDetectionShare) * sample /
                                                                        static_cast<double>(total));
    };
    AudioView view{audio.samples.subspan(static_cast<size_t>(cut.first),
                                         static_cast<size_t>(cut.last - cut.first)),
                   audio.rate};
    auto transcripts = recognizer.transcribe(std::span(&view, 1), options, part);
    joiner.add(std::move(transcripts.front()), static_cast<double>(cut.first) / audio.rate);
  }
  control.report(1);
  return joiner.take();
}

}  // namespace speech
