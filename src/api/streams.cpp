// Streaming detection and live transcription.
#include "api/handles.h"
#include "audio/check_samples.h"
#include "tasks/live.h"
#include "tasks/regions.h"

using namespace speech;
using namespace speech::api;

struct speech_detection {
  std::unique_ptr<DetectionStream> stream;
  enum { open, ended, failed } state = open;
};

struct speech_live {
  std::unique_ptr<LiveTranscriber> transcriber;
};

struct speech_live_event {
  LiveEvent event;
  speech_result result;
};

namespace {

class LockedStream final : public DetectionStream {
 public:
  LockedStream(speech_model& model, std::unique_ptr<DetectionStream> stream)
      : model_(model), stream_(std::move(stream)) {}

  void push(std::span<const float> samples) override {
    Lease lease(model_);
    stream_->push(samples);
  }
  void end() override {
    Lease lease(model_);
    stream_->end();
  }
  const std::vector<Region>& regions() const override { return stream_->regions(); }
  std::optional<double> speaking(bool* kept) const override { return stream_->speaking(kept); }

 private:
  speech_model& model_;
  std::unique_ptr<DetectionStream> stream_;
};

std::span<const float> checked_samples(const float* samples, size_t count) {
  if (count > 0) required(samples, "audio");
  std::span<const float> view(samples, count);
  check_samples(view);
  return view;
}

// Runs an operation of a detection that is open; after a failure the detection is of no more use.
template <typename Work>
void advance(speech_detection* detection, Work&& work) {
  auto& d = required(detection, "detection");
  if (d.state != speech_detection::open) {
    fail(Status::invalid_argument, "the detection has {}",
         d.state == speech_detection::ended ? "ended" : "failed before");
  }
  try {
    work(d);
  } catch (...) {
    d.state = speech_detection::failed;
    throw;
  }
}

}  // namespace

namespace speech::api {

std::unique_ptr<DetectionStream> start_detection(const speech_request& request, int rate,
                                                 const Options& options) {
  Detector& detector = detector_of(request);
  if (!request.audio.empty()) {
    fail_option(Status::invalid_argument, "audio",
                "the request has audio; a detection in pieces gets it by pushing");
  }
  if (rate < 1) fail_option(Status::invalid_argument, "audio", "{} Hz is no sample rate", rate);
  check_required(request.model->info.info, options);
  Lease lease(*request.model);
  return std::make_unique<LockedStream>(*request.model, detector.stream(rate, options));
}

}  // namespace speech::api

speech_status speech_detection_start(const speech_request* request, int rate,
                                     speech_detection** detection) {
  return guarded([&] {
    const auto& r = required(request, "request");
    required(detection, "detection");
    auto started = std::make_unique<speech_detection>();
    started->stream = start_detection(r, rate, r.options);
    *detection = started.release();
  });
}

speech_status speech_detection_push(speech_detection* detection, const float* samples,
                                    size_t count) {
  return guarded([&] {
    advance(detection,
            [&](speech_detection& d) { d.stream->push(checked_samples(samples, count)); });
  });
}

speech_status speech_detection_end(speech_detection* detection) {
  return guarded([&] {
    advance(detection, [&](speech_detection& d) {
      d.stream->end();
      d.state = speech_detection::ended;
    });
  });
}

size_t speech_detection_region_count(const speech_detection* detection) {
  return detection ? detection->stream->regions().size() : 0;
}

speech_status speech_detection_region(const speech_detection* detection, size_t index,
                                      double* start, double* end) {
  return guarded([&] {
    const auto& regions = required(detection, "detection").stream->regions();
    if (index >= regions.size()) {
      fail_option(Status::out_of_range, "index", "there are {} regions, not {}", regions.size(),
                  index + 1);
    }
    if (start) *start = regions[index].start;
    if (end) *end = regions[index].end;
  });
}

int speech_detection_speaking(const speech_detection* detection, double* start, int* kept) {
  int speaking = 0;
  guarded([&] {
    bool certain = false;
    auto begun = detection ? detection->stream->speaking(&certain) : std::nullopt;
    if (!begun) return;
    speaking = 1;
    if (start) *start = *begun;
    if (kept) *kept = certain;
  });
  return speaking;
}

void speech_detection_free(speech_detection* detection) {
  delete detection;
}

speech_status speech_live_start(const speech_request* recognition, const speech_request* detection,
                                int rate, int partial, speech_live** live) {
  return guarded([&] {
    const auto& r = required(recognition, "recognition");
    const auto& d = required(detection, "detection");
    required(live, "live");
    Recognizer& recognizer = recognizer_of(r);
    if (!r.audio.empty()) {
      fail_option(Status::invalid_argument, "audio",
                  "the request has audio; a live transcription gets it by pushing");
    }
    check_required(r.model->info.info, r.options);
    detector_of(d);
    Options options = region_options(d.model->info.info, d.options);
    double keep = static_cast<double>(options.get<int64_t>(option::speech_pad_ms, 300)) / 1000;
    auto recognize = [&recognizer, model = r.model, given = r.options](
                         AudioView audio, const std::atomic<bool>& cancel) {
      Lease lease(*model);
      Control control;
      control.cancel = &cancel;
      return std::move(recognizer.transcribe(std::span(&audio, 1), given, control).front());
    };
    auto started = std::make_unique<speech_live>();
    started->transcriber = std::make_unique<LiveTranscriber>(
        rate, start_detection(d, rate, options), keep, recognize, partial != 0);
    *live = started.release();
  });
}

speech_status speech_live_push(speech_live* live, const float* samples, size_t count) {
  return guarded(
      [&] { required(live, "live").transcriber->push(checked_samples(samples, count)); });
}

size_t speech_live_waiting(const speech_live* live) {
  size_t waiting = 0;
  guarded([&] {
    if (live) waiting = live->transcriber->waiting();
  });
  return waiting;
}

speech_status speech_live_end(speech_live* live) {
  return guarded([&] { required(live, "live").transcriber->end(); });
}

speech_status speech_live_next(speech_live* live, int timeout_ms, speech_live_event** event,
                               int* finished) {
  return guarded([&] {
    required(event, "event");
    bool all = false;
    auto next =
        required(live, "live").transcriber->next(std::chrono::milliseconds(timeout_ms), &all);
    if (finished) *finished = all;
    if (!next) {
      *event = nullptr;
      return;
    }
    auto given = std::make_unique<speech_live_event>();
    given->event = std::move(*next);
    given->result.transcript = std::move(given->event.transcript);
    *event = given.release();
  });
}

void speech_live_free(speech_live* live) {
  delete live;
}

speech_live_kind speech_live_event_kind(const speech_live_event* event) {
  return event ? static_cast<speech_live_kind>(event->event.kind) : SPEECH_LIVE_FAILED;
}

int64_t speech_live_event_item(const speech_live_event* event) {
  return event ? event->event.item : -1;
}

double speech_live_event_time(const speech_live_event* event) {
  return event ? event->event.seconds : 0;
}

const char* speech_live_event_text(const speech_live_event* event) {
  return event ? event->event.text.c_str() : nullptr;
}

speech_status speech_live_event_status(const speech_live_event* event) {
  return event ? static_cast<speech_status>(event->event.status) : SPEECH_OK;
}

const speech_result* speech_live_event_result(const speech_live_event* event) {
  return event && event->event.kind == LiveEvent::completed ? &event->result : nullptr;
}

void speech_live_event_free(speech_live_event* event) {
  delete event;
}
