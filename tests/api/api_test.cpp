// The rules of speech.h, on models whose answers are known.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/handles.h"
#include "base/log.h"
#include "speech.h"
#include "tasks/fake_models.h"

namespace speech {
namespace {

using testing::FakeDetector;
using testing::FakeRecognizer;
using testing::steps;

class Api : public ::testing::Test {
 protected:
  speech_request* request(speech_model& model, const std::vector<float>& audio = {}) {
    speech_request* r = nullptr;
    EXPECT_EQ(speech_request_new(&model, &r), SPEECH_OK);
    requests_.push_back(r);
    if (!audio.empty()) {
      EXPECT_EQ(speech_request_set_audio(r, audio.data(), audio.size(), 16000), SPEECH_OK);
    }
    return r;
  }
  void TearDown() override {
    for (auto* r : requests_) speech_request_free(r);
  }
  static std::string option() {
    const char* name = speech_last_error_option();
    return name ? name : "";
  }

  speech_model detector_{std::make_unique<FakeDetector>()};
  speech_model recognizer_{std::make_unique<FakeRecognizer>()};
  std::vector<speech_request*> requests_;
};

TEST_F(Api, NamesAndNumbers) {
  EXPECT_EQ(speech_api_version_major(), 1);
  EXPECT_STREQ(speech_status_name(SPEECH_OUT_OF_RANGE), "out_of_range");
  EXPECT_STREQ(speech_stop_name(SPEECH_STOP_MODEL_LIMIT), "model_limit");
  EXPECT_STREQ(speech_task_name(SPEECH_TASK_DETECTION), "detection");
  EXPECT_STREQ(speech_option_name(SPEECH_OPT_MAX_SPEECH_DURATION_S), "max_speech_duration_s");
  EXPECT_STREQ(speech_option_name(SPEECH_OPT_TIMESTAMPS), "timestamps");
  EXPECT_EQ(speech_option_name(speech_option_count()), nullptr);
  speech_option o = -1;
  EXPECT_EQ(speech_option_from_name("threshold", &o), SPEECH_OK);
  EXPECT_EQ(o, SPEECH_OPT_THRESHOLD);
  EXPECT_EQ(speech_option_from_name("treshold", &o), SPEECH_INVALID_ARGUMENT);
  speech_value_type type;
  EXPECT_EQ(speech_option_type(SPEECH_OPT_PROMPT, &type), SPEECH_OK);
  EXPECT_EQ(type, SPEECH_TYPE_STRING);
  EXPECT_EQ(speech_device_count(), 1u);
  EXPECT_STREQ(speech_device_name(0), "cpu");
  EXPECT_EQ(speech_device_name(1), nullptr);
  uint64_t total = 0, available = 0;
  EXPECT_EQ(speech_device_memory(0, &total, &available), SPEECH_OK);
  EXPECT_GT(total, 0u);
  EXPECT_LE(available, total);
}

TEST_F(Api, NullsAreErrorsNotCrashes) {
  EXPECT_EQ(speech_model_load(nullptr, nullptr, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(option(), "model_path");
  EXPECT_EQ(speech_model_load("", nullptr, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_request_new(nullptr, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_transcribe(nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_transcribe_batch(nullptr, 0), SPEECH_OK);
  EXPECT_EQ(speech_detect(nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_detection_push(nullptr, nullptr, 0), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_live_start(nullptr, nullptr, 16000, 0, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_audio_open(nullptr, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_trace_write(nullptr, "x"), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_quantize(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_profile(nullptr, nullptr, nullptr, nullptr), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_profile_params_set_runs(nullptr, 1), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_result_text(nullptr), nullptr);
  EXPECT_EQ(speech_model_info_name(nullptr), nullptr);
  EXPECT_EQ(speech_request_result(nullptr), nullptr);
  speech_request_cancel(nullptr);
  speech_request_free(nullptr);
  speech_model_free(nullptr);
  speech_live_free(nullptr);
  speech_detection_free(nullptr);
}

TEST_F(Api, LoadingSaysWhatIsWrong) {
  speech_model* model = nullptr;
  EXPECT_EQ(speech_model_load("/nonexistent/x.gguf", nullptr, &model), SPEECH_IO);
  EXPECT_NE(std::string(speech_last_error()).find("/nonexistent/x.gguf"), std::string::npos);
  auto* params = speech_load_params_new();
  EXPECT_EQ(speech_load_params_set_threads(params, 0), SPEECH_OUT_OF_RANGE);
  EXPECT_EQ(speech_load_params_set_kv_cache(params, "f16"), SPEECH_OK);
  EXPECT_EQ(speech_load_params_set_kv_cache(params, "q8_0"), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(option(), "kv_cache");
  EXPECT_EQ(speech_load_params_set_device(params, "gpu"), SPEECH_OK);
  EXPECT_EQ(speech_model_load("/nonexistent/x.gguf", params, &model), SPEECH_DEVICE);
  EXPECT_EQ(option(), "device");
  speech_load_params_free(params);
  EXPECT_EQ(model, nullptr);
}

TEST_F(Api, InformationOfAModel) {
  const speech_model_info* info = nullptr;
  ASSERT_EQ(speech_model_get_info(&recognizer_, &info), SPEECH_OK);
  EXPECT_STREQ(speech_model_info_name(info), "fake-asr");
  EXPECT_EQ(speech_model_info_task(info), SPEECH_TASK_RECOGNITION);
  EXPECT_STREQ(speech_model_info_language(info, 0), "en");
  EXPECT_EQ(speech_model_info_language(info, 1), nullptr);
  EXPECT_TRUE(speech_model_info_takes(info, SPEECH_OPT_TIMESTAMPS));
  EXPECT_FALSE(speech_model_info_takes(info, SPEECH_OPT_THRESHOLD));
  EXPECT_FALSE(speech_model_info_option_steers(info, SPEECH_OPT_LANGUAGE));
  EXPECT_STREQ(speech_model_info_device(info), "cpu");
  EXPECT_EQ(nlohmann::json::parse(speech_model_info_json(info))["threads"], 1);
  ASSERT_EQ(speech_model_get_info(&detector_, &info), SPEECH_OK);
  double low = -1, high = -1;
  int exclusive = -1;
  EXPECT_EQ(speech_model_info_option_range(info, SPEECH_OPT_THRESHOLD, &low, &high, &exclusive), 1);
  EXPECT_EQ(low, 0);
  EXPECT_EQ(high, 1);
  EXPECT_EQ(exclusive, 0);
}

TEST_F(Api, ValuesAreCheckedWhenSetAndARefusedOneChangesNothing) {
  auto* r = request(detector_);
  EXPECT_EQ(speech_request_set_float(r, SPEECH_OPT_THRESHOLD, 0.25), SPEECH_OK);
  EXPECT_EQ(speech_request_set_float(r, SPEECH_OPT_THRESHOLD, 2), SPEECH_OUT_OF_RANGE);
  EXPECT_EQ(option(), "threshold");
  EXPECT_EQ(r->options.get(SPEECH_OPT_THRESHOLD, 0.0), 0.25);
  EXPECT_EQ(speech_request_set_int(r, SPEECH_OPT_THRESHOLD, 1), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_request_set_bool(r, SPEECH_OPT_TIMESTAMPS, 0), SPEECH_OK);
  EXPECT_EQ(speech_request_set_bool(r, SPEECH_OPT_TIMESTAMPS, 1), SPEECH_UNSUPPORTED);
  EXPECT_EQ(speech_request_set_string(r, SPEECH_OPT_LANGUAGE, nullptr), SPEECH_INVALID_ARGUMENT);

  float bad[] = {0, NAN, 0};
  EXPECT_EQ(speech_request_set_audio(r, bad, 3, 16000), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(option(), "audio");
  float loud[] = {0, -1e30f};
  EXPECT_EQ(speech_request_set_audio(r, loud, 2, 16000), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(option(), "audio");
  EXPECT_EQ(speech_request_set_audio(r, bad, 0, 16000), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_request_set_audio(r, bad, 1, 0), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_detect(r), SPEECH_INVALID_ARGUMENT);  // no audio
  EXPECT_EQ(option(), "audio");
  // A call that succeeds clears the error.
  EXPECT_EQ(speech_request_set_audio(r, bad, 1, 16000), SPEECH_OK);
  EXPECT_STREQ(speech_last_error(), "");
  EXPECT_EQ(speech_last_error_option(), nullptr);
}

TEST_F(Api, DetectionGivesSegmentsWithoutText) {
  auto* r = request(detector_, steps({0, .5f, .5f, 0, 0, 0, .5f}));
  ASSERT_EQ(speech_detect(r), SPEECH_OK);
  const speech_result* result = speech_request_result(r);
  EXPECT_EQ(speech_result_text(result), nullptr);
  ASSERT_EQ(speech_result_segment_count(result), 2u);
  double start = 0, end = 0;
  const char* text = nullptr;
  ASSERT_EQ(speech_result_segment(result, 0, &start, &end, &text), SPEECH_OK);
  EXPECT_DOUBLE_EQ(start, 0.1);
  EXPECT_DOUBLE_EQ(end, 0.3);
  EXPECT_STREQ(text, "");
  EXPECT_EQ(speech_result_segment(result, 2, &start, &end, &text), SPEECH_OUT_OF_RANGE);
  EXPECT_EQ(speech_detect(r), SPEECH_INVALID_ARGUMENT);  // it has run
  EXPECT_EQ(speech_transcribe(request(detector_, steps({1}))), SPEECH_UNSUPPORTED);
}

TEST_F(Api, ARefusedRequestCanBeMended) {
  std::vector<float> audio(100, 0.5f);
  auto* r = request(recognizer_, audio);
  EXPECT_EQ(speech_transcribe(r), SPEECH_OUT_OF_RANGE);
  EXPECT_EQ(option(), "audio");
  EXPECT_EQ(speech_request_result(r), nullptr);
  audio = steps({.1f, .2f});
  ASSERT_EQ(speech_request_set_audio(r, audio.data(), audio.size(), 16000), SPEECH_OK);
  ASSERT_EQ(speech_transcribe(r), SPEECH_OK);
  EXPECT_STREQ(speech_result_text(speech_request_result(r)), "w1 w2");
}

TEST_F(Api, BatchGivesTheSameAsOneByOneEvenWithDifferentOptions) {
  auto* a = request(recognizer_, steps({.1f}));
  auto* b = request(recognizer_, steps({.2f, .3f}));
  auto* c = request(recognizer_, steps({.4f}));
  ASSERT_EQ(speech_request_set_bool(b, SPEECH_OPT_TIMESTAMPS, 1), SPEECH_OK);
  speech_request* twice[] = {a, a};
  EXPECT_EQ(speech_transcribe_batch(twice, 2), SPEECH_INVALID_ARGUMENT);
  speech_request* mixed[] = {a, request(detector_, steps({1}))};
  EXPECT_EQ(speech_transcribe_batch(mixed, 2), SPEECH_INVALID_ARGUMENT);
  speech_request* all[] = {a, b, c};
  ASSERT_EQ(speech_transcribe_batch(all, 3), SPEECH_OK);
  EXPECT_STREQ(speech_result_text(speech_request_result(a)), "w1");
  EXPECT_STREQ(speech_result_text(speech_request_result(b)), "w2 w3");
  EXPECT_STREQ(speech_result_text(speech_request_result(c)), "w4");
  EXPECT_EQ(speech_result_word_count(speech_request_result(a)), 0u);
  EXPECT_EQ(speech_result_word_count(speech_request_result(b)), 2u);
  EXPECT_EQ(static_cast<FakeRecognizer&>(*recognizer_.model).calls, 2);
}

TEST_F(Api, ProgressStopsAndCancelStops) {
  auto* r = request(recognizer_, steps({.1f}));
  auto stop = [](double, void* calls) { return ++*static_cast<int*>(calls); };
  int calls = 0;
  ASSERT_EQ(speech_request_set_progress(r, stop, &calls), SPEECH_OK);
  EXPECT_EQ(speech_transcribe(r), SPEECH_CANCELLED);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(speech_transcribe(r), SPEECH_INVALID_ARGUMENT);  // it began its work

  auto* cancelled = request(recognizer_, steps({.1f}));
  std::thread([&] { speech_request_cancel(cancelled); }).join();
  EXPECT_EQ(speech_transcribe(cancelled), SPEECH_CANCELLED);
  auto* other = request(recognizer_, steps({.1f}));
  EXPECT_EQ(speech_transcribe(other), SPEECH_OK);
}

TEST_F(Api, ACallbackThatUsesItsOwnModelIsRefused) {
  auto* inner = request(recognizer_, steps({.2f}));
  auto* outer = request(recognizer_, steps({.1f}));
  struct Seen {
    speech_request* inner;
    speech_status status = SPEECH_OK;
  } seen{inner};
  auto nested = [](double, void* user) {
    auto* s = static_cast<Seen*>(user);
    s->status = speech_transcribe(s->inner);
    return 0;
  };
  ASSERT_EQ(speech_request_set_progress(outer, nested, &seen), SPEECH_OK);
  EXPECT_EQ(speech_transcribe(outer), SPEECH_OK);
  EXPECT_EQ(seen.status, SPEECH_INVALID_ARGUMENT);
}

TEST_F(Api, ThreadsShareAModel) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 1; i <= 8; ++i) {
    auto* r = request(recognizer_, steps({0.1f * static_cast<float>(i)}));
    threads.emplace_back([&right, r, i] {
      if (speech_transcribe(r) != SPEECH_OK) return;
      right += speech_result_text(speech_request_result(r)) == "w" + std::to_string(i);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
}

TEST_F(Api, StreamingDetection) {
  auto* with_audio = request(detector_, steps({1}));
  speech_detection* d = nullptr;
  EXPECT_EQ(speech_detection_start(with_audio, 16000, &d), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(option(), "audio");
  EXPECT_EQ(speech_detection_start(request(recognizer_), 16000, &d), SPEECH_UNSUPPORTED);
  EXPECT_EQ(speech_detection_start(request(detector_), 0, &d), SPEECH_INVALID_ARGUMENT);
  ASSERT_EQ(speech_detection_start(request(detector_), 16000, &d), SPEECH_OK);
  auto audio = steps({0, .5f, .5f});
  EXPECT_EQ(speech_detection_push(d, nullptr, 0), SPEECH_OK);
  EXPECT_EQ(speech_detection_push(d, audio.data(), audio.size()), SPEECH_OK);
  double start = 0;
  int kept = 0;
  EXPECT_EQ(speech_detection_speaking(d, &start, &kept), 1);
  EXPECT_DOUBLE_EQ(start, 0.1);
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(speech_detection_region_count(d), 0u);
  EXPECT_EQ(speech_detection_end(d), SPEECH_OK);
  EXPECT_EQ(speech_detection_region_count(d), 1u);
  EXPECT_EQ(speech_detection_speaking(d, nullptr, nullptr), 0);
  EXPECT_EQ(speech_detection_end(d), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_detection_push(d, nullptr, 0), SPEECH_INVALID_ARGUMENT);
  speech_detection_free(d);
  // After a piece that is refused the detection is of no more use.
  ASSERT_EQ(speech_detection_start(request(detector_), 16000, &d), SPEECH_OK);
  float bad = INFINITY;
  EXPECT_EQ(speech_detection_push(d, &bad, 1), SPEECH_INVALID_ARGUMENT);
  EXPECT_EQ(speech_detection_push(d, audio.data(), 1), SPEECH_INVALID_ARGUMENT);
  speech_detection_free(d);
}

TEST_F(Api, RegionsAndLiveGiveTheSameText) {
  auto audio = steps({0, .1f, .2f, 0, 0, 0, .3f, 0, 0});
  auto* r = request(recognizer_, audio);
  auto* d = request(detector_);
  ASSERT_EQ(speech_transcribe_regions(r, d), SPEECH_OK);
  EXPECT_STREQ(speech_result_text(speech_request_result(r)), "w1 w2 w3");

  speech_live* live = nullptr;
  ASSERT_EQ(speech_live_start(request(recognizer_), d, 16000, 1, &live), SPEECH_OK);
  ASSERT_EQ(speech_live_push(live, audio.data(), audio.size()), SPEECH_OK);
  ASSERT_EQ(speech_live_end(live), SPEECH_OK);
  std::string text;
  for (int finished = 0; !finished;) {
    speech_live_event* event = nullptr;
    ASSERT_EQ(speech_live_next(live, -1, &event, &finished), SPEECH_OK);
    if (event && speech_live_event_kind(event) == SPEECH_LIVE_COMPLETED) {
      text += std::string(text.empty() ? "" : " ") +
              speech_result_text(speech_live_event_result(event));
    }
    speech_live_event_free(event);
  }
  speech_live_free(live);
  EXPECT_EQ(text, "w1 w2 w3");
}

TEST_F(Api, TracesAndFileDescriptions) {
  speech_trace* trace = nullptr;
  ASSERT_EQ(speech_trace_new(&trace), SPEECH_OK);
  const float values[] = {1, 2, 3, 4, 5, 6};
  const int32_t ids[] = {7, 8};
  ASSERT_EQ(speech_trace_set_prefix(trace, "item0."), SPEECH_OK);
  trace->trace.add("00_x", {2, 3}, values);
  trace->trace.add_ints("01_ids", {2}, ids);
  EXPECT_EQ(speech_trace_count(trace), 2u);
  std::string path = ::testing::TempDir() + "/speech_trace_test.safetensors";
  ASSERT_EQ(speech_trace_write(trace, path.c_str()), SPEECH_OK) << speech_last_error();
  speech_trace_free(trace);
  speech_file_info* info = nullptr;
  ASSERT_EQ(speech_file_info_open(path.c_str(), 1, &info), SPEECH_OK) << speech_last_error();
  auto json = nlohmann::json::parse(speech_file_info_json(info));
  speech_file_info_free(info);
  EXPECT_EQ(json["format"], "safetensors");
  ASSERT_EQ(json["tensors"].size(), 2u);
  EXPECT_EQ(json["tensors"][0]["name"], "item0.00_x");
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int>{2, 3}));
  EXPECT_EQ(json["tensors"][1]["type"], "I32");
  EXPECT_EQ(json["tensors"][1]["bytes"], 8);
  std::remove(path.c_str());
}

TEST_F(Api, LogGoesToTheCallback) {
  std::string seen;
  speech_log_set([](speech_log_level, const char* text,
                    void* user) { *static_cast<std::string*>(user) += text; },
                 &seen);
  log(LogLevel::warn, "careful");
  speech_log_set(nullptr, nullptr);
  EXPECT_EQ(seen, "careful");
}

}  // namespace
}  // namespace speech
