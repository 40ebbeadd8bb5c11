// speech asr: recordings, or audio that comes live, as text.
#include <signal.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/blaming.h"
#include "base/file.h"
#include "command.h"
#include "pcm_source.h"
#include "tasks/subtitles.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

// Set by Ctrl-C during --live, which ends the audio and not the program.
std::atomic<bool> interrupted{false};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int64_t milliseconds(double seconds) {
  return std::llround(seconds * 1000);
}

using SpanReader = speech_status (*)(const speech_result*, size_t, double*, double*, const char**);

std::vector<Segment> spans(const speech_result* result, size_t count, SpanReader reader) {
  std::vector<Segment> out(count);
  for (size_t i = 0; i < count; ++i) {
    const char* text = nullptr;
    check(reader(result, i, &out[i].start, &out[i].end, &text));
    out[i].text = text;
  }
  return out;
}

std::vector<Segment> segments_of(const speech_result* result) {
  return spans(result, speech_result_segment_count(result), speech_result_segment);
}

std::vector<Segment> words_of(const speech_result* result) {
  return spans(result, speech_result_word_count(result), speech_result_word);
}

Json spans_json(const std::vector<Segment>& list) {
  Json out = Json::array();
  for (const auto& span : list) {
    out.push_back({{"start", span.start}, {"end", span.end}, {"text", span.text}});
  }
  return out;
}

Json languages_json(const speech_result* result) {
  Json out = Json::array();
  for (size_t i = 0; i < speech_result_language_count(result); ++i) {
    out.push_back(speech_result_language(result, i));
  }
  return out;
}

// What comes out of a live transcription, as lines of text or as OpenAI Realtime server events.
class LiveOutput {
 public:
  explicit LiveOutput(bool json) : json_(json) {
    if (json) session_ = fmt::format("{:016x}", std::random_device()() * 0x100000001ull);
  }

  // Returns whether the model's limit stopped the utterance.
  bool write(const speech_live_event* event) {
    return json_ ? write_json(event) : write_text(event);
  }

 private:
  bool write_text(const speech_live_event* event) {
    const bool terminal = stdout_is_terminal();
    switch (speech_live_event_kind(event)) {
      case SPEECH_LIVE_DELTA:
        if (!terminal) break;
        partial_ += speech_live_event_text(event);
        print("\r\033[K" + partial_);
        break;
      case SPEECH_LIVE_COMPLETED: {
        std::string text = speech_live_event_text(event);
        if (terminal) print("\r\033[K");
        if (!text.empty()) print(text + "\n");
        partial_.clear();
        break;
      }
      case SPEECH_LIVE_FAILED:
        partial_.clear();
        throw Failure(speech_live_event_status(event), "", speech_live_event_text(event));
      default:
        break;
    }
    flush_output();
    return stopped_at_limit(event);
  }

  bool write_json(const speech_live_event* event) {
    const std::string item = fmt::format("item_{}_{}", session_, speech_live_event_item(event));
    const double time = speech_live_event_time(event);
    const std::string text = speech_live_event_text(event);
    const std::string transcription = "conversation.item.input_audio_transcription.";
    switch (speech_live_event_kind(event)) {
      case SPEECH_LIVE_STARTED:
        send("input_audio_buffer.speech_started",
             {{"audio_start_ms", milliseconds(time)}, {"item_id", item}});
        break;
      case SPEECH_LIVE_DELTA:
        send(transcription + "delta", {{"item_id", item}, {"content_index", 0}, {"delta", text}});
        break;
      case SPEECH_LIVE_STOPPED:
        send("input_audio_buffer.speech_stopped",
             {{"audio_end_ms", milliseconds(time)}, {"item_id", item}});
        send("input_audio_buffer.committed",
             {{"previous_item_id", previous_.empty() ? Json(nullptr) : Json(previous_)},
              {"item_id", item}});
        previous_ = item;
        break;
      case SPEECH_LIVE_COMPLETED: {
        const speech_result* result = speech_live_event_result(event);
        Json members{{"item_id", item},
                     {"content_index", 0},
                     {"transcript", text},
                     {"usage", {{"type", "duration"}, {"seconds", time}}}};
        for (const auto& language : languages_json(result)) {
          members["languages"].push_back({{"code", language}});
        }
        members["stop"] = speech_stop_name(speech_result_stop(result));
        send(transcription + "completed", members);
        break;
      }
      case SPEECH_LIVE_FAILED:
        send(transcription + "failed",
             {{"item_id", item},
              {"content_index", 0},
              {"error",
               {{"message", text},
                {"type", "server_error"},
                {"param", nullptr},
                {"code", speech_status_name(speech_live_event_status(event))}}}});
        break;
    }
    return stopped_at_limit(event);
  }

  static bool stopped_at_limit(const speech_live_event* event) {
    const speech_result* result = speech_live_event_result(event);
    return result && speech_result_stop(result) == SPEECH_STOP_MODEL_LIMIT;
  }

  void send(const std::string& type, const Json& members) {
    Json event{{"event_id", fmt::format("event_{}_{}", session_, ++events_)}, {"type", type}};
    event.update(members);
    print_json(dump(event));
  }

  const bool json_;
  std::string session_, previous_, partial_;
  int64_t events_ = 0;
};

class Asr final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("arguments", arguments_,
                   "The model, then the recordings; - is PCM on standard input, and with --live "
                   "there are none")
        ->type_name("MODEL AUDIO...");
    app.add_option("--format", format_,
                   "text, json, or with times (so --timestamps): subtitles as srt, vtt, tsv, and "
                   "words as a tsv")
        ->check(CLI::IsMember({"text", "json", "srt", "vtt", "tsv", "words"}))
        ->capture_default_str();
    app.add_option("--out", out_, "Write a file per recording into this folder instead of stdout")
        ->type_name("DIR");
    app.add_option("--vad", vad_, "Transcribe by the regions in which this model hears speech")
        ->type_name("MODEL");
    app.add_option("--batch", batch_, "Recordings recognized together (without --vad)")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app.add_flag("--live", live_, "Transcribe the default microphone until Ctrl-C; needs --vad");
    rate_flag_ =
        app.add_option("--rate", rate_, "Sample rate in Hz of 16-bit mono PCM on stdin (AUDIO -)")
            ->check(CLI::Range(8000, 384000))
            ->capture_default_str();
    device_.add(app);
    options_.add(app);
  }

  int run() override {
    auto [model_name, files] = split_arguments(arguments_, "asr", SPEECH_TASK_RECOGNITION,
                                               "AUDIO.wav", /*inputs_needed=*/!live_);
    check_usage(files);
    model_ = device_.load(model_name);
    // Detection is quick, and the same for files and streams, on one thread.
    if (!vad_.empty()) {
      detector_ = naming(
          "vad", [&] { return load_model(vad_, {.device = "cpu", .threads = 1}); }, "model_path");
      const speech_model_info* info = nullptr;
      check(speech_model_get_info(detector_.get(), &info));
      if (speech_model_info_task(info) != SPEECH_TASK_DETECTION) {
        throw Failure(SPEECH_UNSUPPORTED, "vad", fmt::format("{} is no detection model", vad_));
      }
    }
    if (live_ || files[0] == "-") return run_live();
    return run_files(files);
  }

 private:
  bool has_times() const { return format_ != "text" && format_ != "json"; }

  void check_usage(const std::vector<std::string>& files) const {
    const bool piped = std::find(files.begin(), files.end(), "-") != files.end();
    if (live_ && !files.empty()) throw UsageError("--live takes no recordings");
    if (piped && files.size() > 1) throw UsageError("- (stdin) stands alone");
    if (live_ || piped) {
      const char* what = live_ ? "--live" : "- (stdin)";
      if (vad_.empty()) {
        throw UsageError(fmt::format(
            "{} needs --vad MODEL, which cuts the audio into utterances (silero-vad)", what));
      }
      if (options_.given(SPEECH_OPT_TIMESTAMPS) || has_times()) {
        throw UsageError(fmt::format("{} has no timestamps: --format text or json", what));
      }
      if (!out_.empty()) throw UsageError(fmt::format("{} takes no --out", what));
      return;
    }
    if (rate_flag_->count() > 0) {
      throw UsageError("--rate is for - (stdin) and --live; recordings have their own");
    }
    if (batch_ > 1 && !vad_.empty()) throw UsageError("--batch and --vad do not go together");
    if (has_times() && files.size() > 1 && out_.empty()) {
      throw UsageError(fmt::format("--format {} of several recordings needs --out DIR", format_));
    }
    std::set<std::string> stems;
    for (const auto& file : files) {
      if (!out_.empty() && !stems.insert(stem(file)).second) {
        throw UsageError(
            fmt::format("two recordings are called {}: their files in {} would "
                        "overwrite each other",
                        stem(file), out_));
      }
    }
  }

  // With a detection model, an option that it takes and the recognition model does not is its own.
  static bool takes(speech_model* model, speech_option option) {
    const speech_model_info* info = nullptr;
    check(speech_model_get_info(model, &info));
    return speech_model_info_takes(info, option) != 0;
  }
  bool for_detection(speech_option option) const {
    return detector_ && takes(detector_.get(), option) && !takes(model_.get(), option);
  }

  RequestHandle recognition_request() const {
    RequestHandle request = new_request(model_.get());
    options_.apply(request.get(), [&](speech_option option) { return !for_detection(option); });
    if (has_times()) check(speech_request_set_bool(request.get(), SPEECH_OPT_TIMESTAMPS, 1));
    return request;
  }
  RequestHandle detection_request() const {
    RequestHandle request = new_request(detector_.get());
    options_.apply(request.get(), [&](speech_option option) { return for_detection(option); });
    return request;
  }

  int run_files(const std::vector<std::string>& files) {
    recognition_request();  // a wrong option fails before anything is read
    if (!out_.empty()) make_folder(out_, "out");
    bool limit = false;
    Failures failures(files.size());
    const auto step = static_cast<size_t>(batch_);
    for (size_t first = 0; first < files.size(); first += step) {
      size_t count = std::min(step, files.size() - first);
      limit |= transcribe(std::span(files).subspan(first, count), failures);
    }
    failures.finish();
    return limit ? exit_model_limit : exit_done;
  }

  // A recording and its request.
  struct Job {
    const std::string* file;
    RequestHandle request;
    double seconds;
  };

  Job read(const std::string& file) const {
    AudioData audio = read_audio_file(file);
    Job job{&file, recognition_request(), audio.seconds()};
    check(speech_request_set_audio(job.request.get(), audio.samples.data(), audio.samples.size(),
                                   audio.rate),
          file);
    return job;
  }

  // Returns whether one stopped at the model's limit.
  bool transcribe(std::span<const std::string> files, Failures& failures) const {
    const double start = now();
    std::vector<Job> jobs;
    for (const auto& file : files) failures.attempt([&] { jobs.push_back(read(file)); });
    if (jobs.empty()) return false;
    try {
      recognize(jobs, start);
    } catch (const Failure& failure) {
      if (jobs.size() == 1 || Failures::shared(failure)) {
        failures.attempt([] { throw; });
        return false;
      }
      // One of them stopped them all: each alone, so that the others have their texts.
      bool limit = false;
      for (const Job& job : jobs) limit |= transcribe(std::span(job.file, 1), failures);
      return limit;
    }
    bool limit = false;
    for (const Job& job : jobs) {
      const speech_result* result = speech_request_result(job.request.get());
      write(*job.file, result);
      if (speech_result_stop(result) != SPEECH_STOP_MODEL_LIMIT) continue;
      note("{}: the model stopped at the most it makes; the text is not whole", *job.file);
      limit = true;
    }
    return limit;
  }

  void recognize(const std::vector<Job>& jobs, double start) const {
    const std::string label =
        jobs.size() == 1 ? *jobs[0].file : fmt::format("{} files", jobs.size());
    double seconds = 0;
    std::vector<speech_request*> requests;
    for (const Job& job : jobs) {
      seconds += job.seconds;
      requests.push_back(job.request.get());
    }
    {
      Progress progress(label);
      check(speech_request_set_progress(requests[0], Progress::callback, &progress));
      speech_status status = SPEECH_OK;
      if (detector_) {
        RequestHandle detection = detection_request();
        status = speech_transcribe_regions(requests[0], detection.get());
      } else {
        status = speech_transcribe_batch(requests.data(), requests.size());
      }
      check(status, label);
    }
    const double took = now() - start;
    note("{}: {:.3f} s of audio in {:.3f} s (real-time factor {:.4f})", label, seconds, took,
         seconds > 0 ? took / seconds : 0);
  }

  void write(const std::string& file, const speech_result* result) const {
    std::string text = render(file, result);
    if (out_.empty()) {
      print(text);
      flush_output();
      return;
    }
    const std::string extension = format_ == "text" ? "txt" : format_;
    OutputFile out = blaming("out", [&] {
      return OutputFile((std::filesystem::path(out_) / (stem(file) + "." + extension)).string());
    });
    out.write(text);
    out.commit();
  }

  std::string render(const std::string& file, const speech_result* result) const {
    if (format_ == "srt") return to_srt(segments_of(result));
    if (format_ == "vtt") return to_vtt(segments_of(result));
    if (format_ == "tsv") return to_tsv(segments_of(result));
    if (format_ == "words") return to_tsv(words_of(result));
    const bool timestamps = options_.flag(SPEECH_OPT_TIMESTAMPS);
    if (format_ == "text") {
      if (!timestamps) return std::string(speech_result_text(result)) + "\n";
      std::string out;
      for (const auto& segment : segments_of(result)) {
        out +=
            fmt::format("{}\t{:.3f}\t{:.3f}\t{}\n", file, segment.start, segment.end, segment.text);
      }
      return out;
    }
    Json json{{"file", file},
              {"text", speech_result_text(result)},
              {"stop", speech_stop_name(speech_result_stop(result))}};
    if (speech_result_language_count(result) > 0) json["languages"] = languages_json(result);
    if (timestamps) {
      json["segments"] = spans_json(segments_of(result));
      json["words"] = spans_json(words_of(result));
      json["tokens"] =
          spans_json(spans(result, speech_result_token_count(result), speech_result_token));
    }
    return dump(json) + "\n";
  }

  int run_live() {
    RequestHandle recognition = recognition_request(), detection = detection_request();
    const bool json = format_ == "json";
    const bool partial = json || stdout_is_terminal();
    speech_live* handle = nullptr;
    check(speech_live_start(recognition.get(), detection.get(), rate_, partial, &handle));
    LiveHandle live(handle);
    std::unique_ptr<PcmSource> source;
    if (live_) {
      source = open_microphone(rate_, interrupted);
      note("listening; Ctrl-C ends");
      ::signal(SIGINT, [](int) { interrupted = true; });
    } else {
      source = open_stdin();
    }

    // One thread writes what comes out while this one reads what goes in.
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    bool limit = false;
    std::thread writer([&] {
      try {
        LiveOutput output(json);
        for (int finished = 0; !finished;) {
          speech_live_event* event = nullptr;
          check(speech_live_next(handle, 100, &event, &finished));
          LiveEventHandle owned(event);
          if (event) limit |= output.write(event);
        }
      } catch (...) {
        failure = std::current_exception();
        failed = true;
      }
    });
    std::exception_ptr reading_failure;
    try {
      while (!failed) {
        auto samples = source->read();
        if (!samples) break;
        // Standard input is read no faster than recognition goes; a microphone cannot wait.
        while (!live_ && !failed && speech_live_waiting(handle) > kHeldSamples) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        check(speech_live_push(handle, samples->data(), samples->size()));
      }
    } catch (...) {
      reading_failure = std::current_exception();
    }
    speech_live_end(handle);
    writer.join();
    if (reading_failure) std::rethrow_exception(reading_failure);
    if (failure) std::rethrow_exception(failure);
    return limit ? exit_model_limit : exit_done;
  }

  // Of standard input, held and not yet recognized; below the library's own bound.
  static constexpr size_t kHeldSamples = 13000000;

  std::vector<std::string> arguments_;
  std::string format_ = "text", out_, vad_;
  bool live_ = false;
  int rate_ = 16000, batch_ = 1;
  CLI::Option* rate_flag_ = nullptr;
  DeviceFlags device_;
  RequestFlags options_;
  ModelHandle model_, detector_;
};

}  // namespace

std::unique_ptr<Command> make_asr() {
  return std::make_unique<Asr>();
}

}  // namespace speech::cli
