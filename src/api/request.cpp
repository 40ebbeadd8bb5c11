// Requests and their results.
#include <algorithm>

#include "api/handles.h"
#include "audio/check_samples.h"
#include "tasks/regions.h"

using namespace speech;
using namespace speech::api;

namespace speech::api {
namespace {

[[noreturn]] void wrong_task(const ModelInfo& info, Task wanted) {
  fail_option(Status::unsupported, "model_path", "{} is a model for {}, not for {}", info.name,
              task_name(info.task), task_name(wanted));
}

}  // namespace

Detector& detector_of(const speech_request& request) {
  auto* detector = dynamic_cast<Detector*>(request.model->model.get());
  if (!detector) wrong_task(request.model->info.info, Task::detection);
  return *detector;
}

Recognizer& recognizer_of(const speech_request& request) {
  auto* recognizer = dynamic_cast<Recognizer*>(request.model->model.get());
  if (!recognizer) wrong_task(request.model->info.info, Task::recognition);
  return *recognizer;
}

}  // namespace speech::api

namespace {

void set_option(speech_request* request, speech_option option, OptionValue value) {
  auto& r = required(request, "request");
  auto checked = check_option(r.model->info.info, option, std::move(value));
  if (checked) r.options.set(option, std::move(*checked));
}

void check_ready(const speech_request& request) {
  if (request.ran) fail(Status::invalid_argument, "the request has run; a request runs once");
  if (request.audio.empty()) {
    fail_option(Status::invalid_argument, "audio", "the request has no audio");
  }
  check_required(request.model->info.info, request.options);
  if (request.cancel) fail(Status::cancelled, "the request was cancelled");
}

AudioView audio_of(const speech_request& request) {
  return {request.audio, request.rate};
}

Control control_of(speech_request& request) {
  Control control;
  control.cancel = &request.cancel;
  control.trace = request.trace ? &request.trace->trace : nullptr;
  if (request.progress) {
    control.progress = [&request](double done) {
      return request.progress(done, request.progress_user) != 0;
    };
  }
  return control;
}

// Runs the work of requests: they count as run unless the model refused an input before working.
template <typename Work>
void run_once(std::span<speech_request* const> requests, Work&& work) {
  for (auto* request : requests) request->ran = true;
  try {
    work();
  } catch (const Error& error) {
    bool refused = !error.option().empty() && (error.status() == Status::invalid_argument ||
                                               error.status() == Status::unsupported ||
                                               error.status() == Status::out_of_range);
    for (auto* request : requests) {
      request->result.reset();
      if (refused) request->ran = false;
    }
    throw;
  }
}

void give(speech_request& request, Transcript transcript, bool has_text = true) {
  request.result = std::make_unique<speech_result>();
  request.result->transcript = std::move(transcript);
  request.result->has_text = has_text;
}

template <typename List>
speech_status read_span(const speech_result* result, List Transcript::*list, size_t index,
                        double* start, double* end, const char** text) {
  return guarded([&] {
    const auto& items = required(result, "result").transcript.*list;
    if (index >= items.size()) {
      fail_option(Status::out_of_range, "index", "there are {}, not {}", items.size(), index + 1);
    }
    if (start) *start = items[index].start;
    if (end) *end = items[index].end;
    if (text) *text = items[index].text.c_str();
  });
}

}  // namespace

speech_status speech_request_new(speech_model* model, speech_request** request) {
  return guarded(
      [&] { required(request, "request") = new speech_request(&required(model, "model")); });
}

void speech_request_free(speech_request* request) {
  delete request;
}

speech_status speech_request_set_audio(speech_request* request, const float* samples, size_t count,
                                       int rate) {
  return guarded([&] {
    auto& r = required(request, "request");
    if (!samples || count == 0) {
      fail_option(Status::invalid_argument, "audio", "the audio has no samples");
    }
    if (rate < 1) fail_option(Status::invalid_argument, "audio", "{} Hz is no sample rate", rate);
    check_samples({samples, count});
    r.audio.assign(samples, samples + count);
    r.rate = rate;
  });
}

speech_status speech_request_set_string(speech_request* request, speech_option option,
                                        const char* value) {
  return guarded(
      [&] { set_option(request, option, OptionValue(std::string(&required(value, "value")))); });
}

speech_status speech_request_set_int(speech_request* request, speech_option option, int64_t value) {
  return guarded([&] { set_option(request, option, OptionValue(value)); });
}

speech_status speech_request_set_float(speech_request* request, speech_option option,
                                       double value) {
  return guarded([&] { set_option(request, option, OptionValue(value)); });
}

speech_status speech_request_set_bool(speech_request* request, speech_option option, int value) {
  return guarded([&] { set_option(request, option, OptionValue(value != 0)); });
}

speech_status speech_request_set_progress(speech_request* request,
                                          speech_progress_callback callback, void* user) {
  return guarded([&] {
    auto& r = required(request, "request");
    r.progress = callback;
    r.progress_user = user;
  });
}

speech_status speech_request_set_trace(speech_request* request, speech_trace* trace) {
  return guarded([&] { required(request, "request").trace = trace; });
}

void speech_request_cancel(speech_request* request) {
  if (request) request->cancel = true;
}

speech_status speech_transcribe(speech_request* request) {
  return speech_transcribe_batch(&request, 1);
}

speech_status speech_transcribe_batch(speech_request* const* requests, size_t count) {
  return guarded([&] {
    std::vector<speech_request*> all;
    for (size_t i = 0; i < count; ++i) {
      auto& request = required(required(requests, "requests") ? requests[i] : nullptr, "request");
      if (request.model != requests[0]->model) {
        fail(Status::invalid_argument, "the requests of a batch are of different models");
      }
      if (std::find(all.begin(), all.end(), &request) != all.end()) {
        fail(Status::invalid_argument, "a request is twice in the batch");
      }
      recognizer_of(request);
      check_ready(request);
      all.push_back(&request);
    }
    if (all.empty()) return;
    Recognizer& recognizer = recognizer_of(*all[0]);
    Lease lease(*all[0]->model);
    run_once(all, [&] {
      // Requests with the same options run together, in their order.
      std::vector<bool> done(all.size());
      size_t finished = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (done[i]) continue;
        std::vector<speech_request*> group;
        std::vector<AudioView> audio;
        for (size_t j = i; j < all.size(); ++j) {
          if (done[j] || all[j]->options.values() != all[i]->options.values() ||
              all[j]->trace != all[i]->trace) {
            continue;
          }
          done[j] = true;
          group.push_back(all[j]);
          audio.push_back(audio_of(*all[j]));
        }
        Control control;
        if (all.size() == 1) {
          control = control_of(*all[0]);
        } else {
          // A cancelled request stops the batch at its next report of progress.
          control.trace = group[0]->trace ? &group[0]->trace->trace : nullptr;
          control.progress = [&, share = static_cast<double>(group.size())](double part) {
            double whole =
                (static_cast<double>(finished) + part * share) / static_cast<double>(all.size());
            bool stop = false;
            for (auto* request : all) {
              stop = stop || request->cancel ||
                     (request->progress && request->progress(whole, request->progress_user) != 0);
            }
            return stop;
          };
        }
        auto transcripts = recognizer.transcribe(audio, all[i]->options, control);
        if (transcripts.size() != group.size()) {
          fail(Status::internal, "{} transcripts for {} requests", transcripts.size(),
               group.size());
        }
        for (size_t j = 0; j < group.size(); ++j) give(*group[j], std::move(transcripts[j]));
        finished += group.size();
      }
    });
  });
}

speech_status speech_detect(speech_request* request) {
  return guarded([&] {
    auto& r = required(request, "request");
    Detector& detector = detector_of(r);
    check_ready(r);
    Lease lease(*r.model);
    run_once(std::span(&request, 1), [&] {
      Transcript regions;
      for (const Region& region : detector.detect(audio_of(r), r.options, control_of(r))) {
        regions.segments.push_back({region.start, region.end, ""});
      }
      give(r, std::move(regions), false);
    });
  });
}

speech_status speech_transcribe_regions(speech_request* request, const speech_request* detection) {
  return guarded([&] {
    auto& r = required(request, "request");
    const auto& d = required(detection, "detection");
    Recognizer& recognizer = recognizer_of(r);
    Detector& detector = detector_of(d);
    check_ready(r);
    Lease recognition_lease(*r.model);
    Lease detection_lease(*d.model);
    run_once(std::span(&request, 1), [&] {
      give(r, transcribe_regions(recognizer, r.options, detector, d.options, audio_of(r),
                                 control_of(r)));
    });
  });
}

const speech_result* speech_request_result(const speech_request* request) {
  return request ? request->result.get() : nullptr;
}

speech_stop speech_result_stop(const speech_result* result) {
  return result ? static_cast<speech_stop>(result->transcript.stop) : SPEECH_STOP_COMPLETE;
}

const char* speech_result_text(const speech_result* result) {
  return result && result->has_text ? result->transcript.text.c_str() : nullptr;
}

size_t speech_result_segment_count(const speech_result* result) {
  return result ? result->transcript.segments.size() : 0;
}

speech_status speech_result_segment(const speech_result* result, size_t index, double* start,
                                    double* end, const char** text) {
  return read_span(result, &Transcript::segments, index, start, end, text);
}

size_t speech_result_word_count(const speech_result* result) {
  return result ? result->transcript.words.size() : 0;
}

speech_status speech_result_word(const speech_result* result, size_t index, double* start,
                                 double* end, const char** text) {
  return read_span(result, &Transcript::words, index, start, end, text);
}

size_t speech_result_token_count(const speech_result* result) {
  return result ? result->transcript.tokens.size() : 0;
}

speech_status speech_result_token(const speech_result* result, size_t index, double* start,
                                  double* end, const char** text) {
  return read_span(result, &Transcript::tokens, index, start, end, text);
}

size_t speech_result_language_count(const speech_result* result) {
  return result ? result->transcript.languages.size() : 0;
}

const char* speech_result_language(const speech_result* result, size_t index) {
  return index < speech_result_language_count(result) ? result->transcript.languages[index].c_str()
                                                      : nullptr;
}
