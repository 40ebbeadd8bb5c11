// Live transcription: audio comes in pieces, utterances are cut by a detection, and while one grows
// its audio is read again and again, so that the text two readings agree on can be shown early.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "models/model.h"

namespace speech {

struct LiveEvent {
  // speech_live_kind. Of one utterance: started, delta..., stopped, [delta], completed or failed.
  enum Kind : int { started = 0, delta = 1, stopped = 2, completed = 3, failed = 4 };
  Kind kind = started;
  int64_t item = 0;            // utterances count from 0
  double seconds = 0;          // started, stopped: the time; completed: the utterance's length
  std::string text;            // delta: what is new; completed: everything; failed: the message
  Transcript transcript;       // completed; times count from the first sample pushed
  Status status = Status::ok;  // failed
};

class LiveTranscriber {
 public:
  // Samples that may be held and not recognized yet: 25 MiB of 16-bit audio.
  static constexpr size_t max_waiting = 25 * 1024 * 1024 / 2;

  // Recognizes one stretch of audio; called on the thread of this object, never twice at once.
  using Recognize = std::function<Transcript(AudioView audio, const std::atomic<bool>& cancel)>;

  // `keep_seconds`: how far before the audio heard a region may still begin (its padding).
  // `partial` false: no readings of unfinished utterances, no deltas.
  LiveTranscriber(int rate, std::unique_ptr<DetectionStream> detection, double keep_seconds,
                  Recognize recognize, bool partial);
  ~LiveTranscriber();  // cancels what runs

  // Error(out_of_memory) when more than max_waiting samples would be held; nothing is taken then.
  void push(std::span<const float> samples);
  void end();
  size_t waiting() const;

  // The next event; nothing after `timeout` (negative: without limit), or when the audio has ended
  // and all events were taken.
  std::optional<LiveEvent> next(std::chrono::milliseconds timeout, bool* finished);

 private:
  struct Utterance {
    int64_t item = 0;
    int64_t first = 0;  // sample, from the first pushed
    std::vector<float> samples;
    std::string sent;  // deltas so far
  };
  // What is known of the utterance under way.
  struct Reading {
    int64_t serial = -1;  // which utterance `text` and `sent` belong to
    int64_t first = 0;    // its first sample
    int64_t heard = 0;    // samples heard when the last reading began
    std::optional<std::string> text;
    std::string agreed, sent;
  };

  void settle();  // after new audio: regions given, utterance under way, buffer
  void emit(LiveEvent event);
  void send_delta();  // what the readings agree on, once the utterance is announced
  void work();        // the thread
  void recognize_next(std::unique_lock<std::mutex>& lock);
  void read_again(std::unique_lock<std::mutex>& lock);
  bool reading_due() const;

  const int rate_;
  std::unique_ptr<DetectionStream> detection_;
  const int64_t keep_samples_;
  const Recognize recognize_;
  const bool partial_;

  mutable std::mutex mutex_;
  std::condition_variable work_, events_changed_;
  std::vector<float> buffer_;  // from sample buffer_first_ to heard_
  int64_t buffer_first_ = 0, heard_ = 0;
  size_t regions_taken_ = 0;
  int64_t next_item_ = 0;
  std::optional<int64_t> announced_;  // item of the utterance under way
  std::optional<int64_t> speaking_;   // first sample of the utterance under way
  int64_t serial_ = 0;                // rises when the utterance under way is another one
  Reading reading_;
  std::deque<Utterance> queue_;
  size_t queued_samples_ = 0;
  std::deque<LiveEvent> events_;
  std::atomic<bool> cancel_reading_{false}, cancel_all_{false};
  bool ended_ = false, working_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace speech
