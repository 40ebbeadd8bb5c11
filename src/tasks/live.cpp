#include "tasks/live.h"

#include <algorithm>
#include <cmath>

#include "tasks/regions.h"
#include "tasks/script.h"

namespace speech {
namespace {

// A reading is due when so much new audio has come.
constexpr double kReadingSeconds = 0.2;
// What a detection may lag behind the audio: a chunk and the resampler's delay.
constexpr double kDetectionLag = 0.1;

}  // namespace

LiveTranscriber::LiveTranscriber(int rate, std::unique_ptr<DetectionStream> detection,
                                 double keep_seconds, Recognize recognize, bool partial)
    : rate_(rate),
      detection_(std::move(detection)),
      keep_samples_(std::llround((keep_seconds + kDetectionLag) * rate)),
      recognize_(std::move(recognize)),
      partial_(partial),
      thread_([this] { work(); }) {}

LiveTranscriber::~LiveTranscriber() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    cancel_all_ = cancel_reading_ = true;
  }
  work_.notify_all();
  thread_.join();
}

size_t LiveTranscriber::waiting() const {
  std::lock_guard lock(mutex_);
  return queued_samples_ + buffer_.size();
}

void LiveTranscriber::emit(LiveEvent event) {
  events_.push_back(std::move(event));
  events_changed_.notify_all();
}

void LiveTranscriber::push(std::span<const float> samples) {
  std::lock_guard lock(mutex_);
  if (ended_) fail(Status::invalid_argument, "audio was pushed after the end");
  if (queued_samples_ + buffer_.size() + samples.size() > max_waiting) {
    fail(Status::out_of_memory,
         "{} samples wait for recognition, which is the most that is held: recognition is slower "
         "than the audio",
         queued_samples_ + buffer_.size());
  }
  detection_->push(samples);
  buffer_.insert(buffer_.end(), samples.begin(), samples.end());
  heard_ += static_cast<int64_t>(samples.size());
  settle();
}

void LiveTranscriber::end() {
  std::lock_guard lock(mutex_);
  if (ended_) fail(Status::invalid_argument, "the audio was ended before");
  detection_->end();
  settle();
  ended_ = true;
  speaking_.reset();
  buffer_.clear();
  cancel_reading_ = true;
  work_.notify_all();
  events_changed_.notify_all();
}

void LiveTranscriber::settle() {
  const auto& regions = detection_->regions();
  for (; regions_taken_ < regions.size(); ++regions_taken_) {
    const Region& region = regions[regions_taken_];
    Cut cut = cut_region(region, rate_, heard_);
    cut.first = std::max(cut.first, buffer_first_);
    cut.last = std::max(cut.last, cut.first);
    Utterance utterance;
    utterance.first = cut.first;
    utterance.samples.assign(buffer_.begin() + (cut.first - buffer_first_),
                             buffer_.begin() + (cut.last - buffer_first_));
    if (!announced_) {
      announced_ = next_item_++;
      emit({.kind = LiveEvent::started, .item = *announced_, .seconds = region.start});
      send_delta();
    }
    utterance.item = *announced_;
    if (reading_.serial == serial_) utterance.sent = reading_.sent;
    emit({.kind = LiveEvent::stopped, .item = utterance.item, .seconds = region.end});
    queued_samples_ += utterance.samples.size();
    queue_.push_back(std::move(utterance));
    announced_.reset();
    speaking_.reset();
    ++serial_;
    cancel_reading_ = true;
  }
  bool kept = false;
  std::optional<double> start = detection_->speaking(&kept);
  std::optional<int64_t> first;
  if (start) first = std::max(buffer_first_, cut_region({*start, *start}, rate_, heard_).first);
  if (first != speaking_) {
    // Another one began, or what seemed to be speech was dropped; an announced one stays.
    if (!announced_) {
      ++serial_;
      cancel_reading_ = true;
    }
    speaking_ = first;
  }
  if (start && kept && !announced_) {
    announced_ = next_item_++;
    emit({.kind = LiveEvent::started, .item = *announced_, .seconds = *start});
    send_delta();
  }
  int64_t keep_from = std::min(speaking_.value_or(heard_), heard_ - keep_samples_);
  if (keep_from > buffer_first_) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + (keep_from - buffer_first_));
    buffer_first_ = keep_from;
  }
  work_.notify_all();
}

void LiveTranscriber::send_delta() {
  if (!announced_ || reading_.serial != serial_) return;
  const std::string& agreed = reading_.agreed;
  if (agreed.size() <= reading_.sent.size() || !agreed.starts_with(reading_.sent)) return;
  emit(
      {.kind = LiveEvent::delta, .item = *announced_, .text = agreed.substr(reading_.sent.size())});
  reading_.sent = agreed;
}

bool LiveTranscriber::reading_due() const {
  if (!partial_ || !speaking_ || ended_) return false;
  int64_t since = reading_.serial == serial_ ? reading_.heard : *speaking_;
  return static_cast<double>(heard_ - since) >= kReadingSeconds * rate_;
}

void LiveTranscriber::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !queue_.empty() || reading_due(); });
    if (stop_) return;
    working_ = true;
    if (!queue_.empty()) {
      recognize_next(lock);
    } else {
      read_again(lock);
    }
    working_ = false;
    events_changed_.notify_all();
  }
}

void LiveTranscriber::recognize_next(std::unique_lock<std::mutex>& lock) {
  Utterance utterance = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  LiveEvent event{.kind = LiveEvent::completed, .item = utterance.item};
  event.seconds = static_cast<double>(utterance.samples.size()) / rate_;
  try {
    event.transcript = recognize_({utterance.samples, rate_}, cancel_all_);
    shift_times(event.transcript, static_cast<double>(utterance.first) / rate_);
    event.text = event.transcript.text;
  } catch (const Error& error) {
    event.kind = LiveEvent::failed;
    event.status = error.status();
    event.text = error.what();
  } catch (const std::bad_alloc&) {
    event.kind = LiveEvent::failed;
    event.status = Status::out_of_memory;
    event.text = "out of memory";
  } catch (const std::exception& error) {
    event.kind = LiveEvent::failed;
    event.status = Status::internal;
    event.text = error.what();
  }
  lock.lock();
  queued_samples_ -= utterance.samples.size();
  if (event.kind == LiveEvent::completed && partial_ && event.text.size() > utterance.sent.size() &&
      event.text.starts_with(utterance.sent)) {
    emit({.kind = LiveEvent::delta,
          .item = utterance.item,
          .text = event.text.substr(utterance.sent.size())});
  }
  emit(std::move(event));
}

void LiveTranscriber::read_again(std::unique_lock<std::mutex>& lock) {
  if (reading_.serial != serial_) {
    reading_ = Reading();
    reading_.serial = serial_;
  }
  reading_.heard = heard_;
  cancel_reading_ = false;
  const int64_t serial = serial_;
  std::vector<float> samples(buffer_.begin() + (*speaking_ - buffer_first_), buffer_.end());
  lock.unlock();
  std::optional<std::string> text;
  try {
    text = recognize_({samples, rate_}, cancel_reading_).text;
  } catch (const std::exception&) {
    // A reading fails silently (too little audio, cancelled): the utterance's own recognition
    // reports what is wrong.
  }
  lock.lock();
  if (!text || serial != serial_) return;
  if (reading_.text) {
    std::string agreed = agreed_text(*reading_.text, *text);
    if (agreed.starts_with(reading_.sent)) reading_.agreed = std::move(agreed);
  }
  reading_.text = std::move(text);
  send_delta();
}

std::optional<LiveEvent> LiveTranscriber::next(std::chrono::milliseconds timeout, bool* finished) {
  std::unique_lock lock(mutex_);
  auto done = [&] { return ended_ && queue_.empty() && !working_; };
  auto ready = [&] { return !events_.empty() || done(); };
  if (timeout.count() < 0) {
    events_changed_.wait(lock, ready);
  } else {
    events_changed_.wait_for(lock, timeout, ready);
  }
  *finished = events_.empty() && done();
  if (events_.empty()) return std::nullopt;
  LiveEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace speech
