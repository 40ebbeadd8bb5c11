// What the opaque handles of speech.h are, and the guard around every entry point.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compute/trace.h"
#include "models/model.h"
#include "speech.h"

struct speech_load_params {
  speech::LoadParams params;
  bool warmup = false;
};

struct speech_model_info {
  explicit speech_model_info(speech::ModelInfo model_info, std::string device_name = {},
                             int thread_count = 0);

  speech::ModelInfo info;
  std::string device;  // of a loaded model
  int threads = 0;
  std::string json;
};

struct speech_model {
  explicit speech_model(std::unique_ptr<speech::Model> loaded);

  std::unique_ptr<speech::Model> model;
  speech_model_info info;
  std::mutex mutex;
  std::atomic<std::thread::id> owner;
};

struct speech_result {
  speech::Transcript transcript;
  bool has_text = true;
};

struct speech_text {
  std::string text;
};

struct speech_trace {
  speech::Trace trace;
};

struct speech_request {
  explicit speech_request(speech_model* owner) : model(owner) {}

  speech_model* model;
  speech::Options options;
  std::vector<float> audio;
  int rate = 0;
  speech_progress_callback progress = nullptr;
  void* progress_user = nullptr;
  speech_trace* trace = nullptr;
  std::atomic<bool> cancel{false};
  bool ran = false;
  std::unique_ptr<speech_result> result;
};

namespace speech::api {

// Sets the error of this thread.
void clear_error();
void set_error(std::string message, std::string option);

// Runs the body of an entry point: no exception leaves it.
template <typename Body>
speech_status guarded(Body&& body) noexcept {
  try {
    clear_error();
    body();
    return SPEECH_OK;
  } catch (const Error& error) {
    set_error(error.what(), error.option());
    return static_cast<speech_status>(error.status());
  } catch (const std::bad_alloc&) {
    set_error("out of memory", {});
    return SPEECH_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_error(error.what(), {});
    return SPEECH_INTERNAL;
  } catch (...) {
    set_error("unknown error", {});
    return SPEECH_INTERNAL;
  }
}

// Error(invalid_argument) for a null pointer, naming the parameter.
template <typename T>
T& required(T* pointer, const char* name) {
  if (!pointer) fail_option(Status::invalid_argument, name, "{} is null", name);
  return *pointer;
}
std::string required_text(const char* text, const char* name);  // not empty either

// What a load runs with: the defaults for null; Error(device) for a device that is not here.
LoadParams checked_params(const speech_load_params* params);

// Holds a model for one request. A callback that uses the model it was called for is refused
// instead of waiting for itself for ever.
class Lease {
 public:
  explicit Lease(speech_model& model);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  speech_model& model_;
};

// The model of a request as one of a task; Error(unsupported).
Detector& detector_of(const speech_request& request);
Recognizer& recognizer_of(const speech_request& request);

// The streaming detection of a request, holding its model for every call.
std::unique_ptr<DetectionStream> start_detection(const speech_request& request, int rate,
                                                 const Options& options);

}  // namespace speech::api
