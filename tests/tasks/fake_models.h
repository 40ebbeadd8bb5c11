// Models whose answers follow from the audio by a rule that a test can compute.
#pragma once

#include <cmath>
#include <string>

#include "base/error.h"
#include "models/model.h"

namespace speech::testing {

// Hears speech where samples are not 0. A region is given once `lag` samples of 0 follow it.
class FakeDetector final : public Detector {
 public:
  FakeDetector() {
    info_.name = "fake-vad";
    info_.task = Task::detection;
    info_.sample_rate = 16000;
    info_.options = {{.id = option::threshold, .minimum = 0, .maximum = 1}};
  }
  std::string device() const override { return "cpu"; }
  int threads() const override { return 1; }

  std::vector<Region> detect(AudioView audio, const Options& options,
                             const Control& control) override {
    control.report(0.5);
    auto whole = stream(audio.rate, options);
    whole->push(audio.samples);
    whole->end();
    return whole->regions();
  }

  std::unique_ptr<DetectionStream> stream(int rate, const Options&) override {
    return std::make_unique<Stream>(rate);
  }

 private:
  class Stream final : public DetectionStream {
   public:
    explicit Stream(int rate) : rate_(rate), lag_(rate / 10) {}
    void push(std::span<const float> samples) override {
      for (float x : samples) {
        if (x != 0) {
          if (start_ < 0) start_ = n_;
          end_ = n_ + 1;
        } else if (start_ >= 0 && n_ - end_ >= lag_) {
          give();
        }
        ++n_;
      }
    }
    void end() override {
      if (start_ >= 0) give();
    }
    const std::vector<Region>& regions() const override { return regions_; }
    std::optional<double> speaking(bool* kept) const override {
      if (kept) *kept = start_ >= 0 && n_ - start_ > lag_;
      if (start_ < 0) return std::nullopt;
      return static_cast<double>(start_) / rate_;
    }

   private:
    void give() {
      regions_.push_back({static_cast<double>(start_) / rate_, static_cast<double>(end_) / rate_});
      start_ = -1;
    }
    int64_t rate_, lag_, n_ = 0, start_ = -1, end_ = 0;
    std::vector<Region> regions_;
  };
};

// Writes one word per 100 ms of samples: the value of the first sample times 10, as "w7"; silence
// is left out. Segments and tokens are the words.
class FakeRecognizer final : public Recognizer {
 public:
  FakeRecognizer() {
    info_.name = "fake-asr";
    info_.task = Task::recognition;
    info_.sample_rate = 16000;
    info_.languages = {"en"};
    info_.options = {{.id = option::language, .steers = false}, {.id = option::timestamps}};
  }
  std::string device() const override { return "cpu"; }
  int threads() const override { return 1; }

  std::vector<Transcript> transcribe(std::span<const AudioView> audio, const Options& options,
                                     const Control& control) override {
    ++calls;
    std::vector<Transcript> out;
    for (size_t i = 0; i < audio.size(); ++i) {
      control.report(static_cast<double>(i) / static_cast<double>(audio.size()));
      out.push_back(one(audio[i], options));
    }
    return out;
  }

  static Transcript one(AudioView audio, const Options& options) {
    if (audio.samples.size() < 160) {
      fail_option(Status::out_of_range, "audio", "the audio is shorter than 10 ms");
    }
    Transcript out;
    const size_t step = static_cast<size_t>(audio.rate) / 10;
    for (size_t i = 0; i < audio.samples.size(); i += step) {
      if (audio.samples[i] == 0) continue;
      std::string word = "w" + std::to_string(std::lround(audio.samples[i] * 10));
      double start = static_cast<double>(i) / audio.rate;
      if (!out.text.empty()) word = " " + word;
      out.text += word;
      if (!options.get<bool>(option::timestamps, false)) continue;
      out.segments.push_back({start, start + 0.1, word});
      out.words.push_back({start, start + 0.1, word});
      out.tokens.push_back({.id = 1, .text = word, .start = start, .end = start + 0.1});
    }
    return out;
  }

  int calls = 0;
};

// Seconds of audio at 16 kHz: 0 is silence, other values are held for 100 ms each.
inline std::vector<float> steps(std::initializer_list<float> values) {
  std::vector<float> out;
  for (float value : values) out.insert(out.end(), 1600, value);
  return out;
}

}  // namespace speech::testing
