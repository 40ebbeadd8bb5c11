#include "quality.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "tasks/quality.h"
#include "text/unicode.h"

extern char** environ;

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

// One row: a model and a way of decoding (empty: its default).
struct Job {
  std::string model, decoding;
};

// Before anything is measured: the file is there, it recognizes speech, and can decode so.
void check_job(const Job& job) {
  const std::string path = model_path(job.model);
  speech_model_info* handle = nullptr;
  check(speech_model_info_open(path.c_str(), &handle));
  InfoHandle info(handle);
  if (speech_model_info_task(handle) != SPEECH_TASK_RECOGNITION) {
    throw Failure(SPEECH_UNSUPPORTED, "quality",
                  fmt::format("{} is no recognition model", job.model));
  }
  if (job.decoding.empty()) return;
  for (size_t i = 0; i < speech_model_info_option_choice_count(handle, SPEECH_OPT_DECODING); ++i) {
    if (job.decoding == speech_model_info_option_choice(handle, SPEECH_OPT_DECODING, i)) return;
  }
  throw Failure(SPEECH_UNSUPPORTED, "decoding",
                fmt::format("{} does not decode by {}", job.model, job.decoding));
}

class Runner {
 public:
  Runner(const Job& job, const LoadSettings& load) : job_(job) {
    const std::string path = model_path(job.model);
    const LoadParamsHandle params = load_params(load);
    const double start = now();
    speech_model* model = nullptr;
    check(speech_model_load(path.c_str(), params.get(), &model));
    run_.load_seconds = now() - start;
    model_ = ModelHandle(model);
    const speech_model_info* info = nullptr;
    check(speech_model_get_info(model, &info));
    run_.model = speech_model_info_name(info);
    run_.file = job.model;
    run_.type = lower_case(speech_model_info_weight_type(info));
    run_.decoding = job.decoding;
    run_.device = speech_model_info_device(info);
    run_.processor = speech_device_description(0);
    run_.threads = speech_model_info_threads(info);
    run_.file_bytes = speech_model_info_file_bytes(info);
  }

  QualityRun run(std::span<const Utterance> utterances) {
    Progress progress(job_.model + " " + job_.decoding);
    transcribe(read_audio_file(utterances[0].audio), utterances[0].audio);  // to warm up
    for (const Utterance& u : utterances) {
      const AudioData audio = read_audio_file(u.audio);
      const double start = now();
      run_.texts.push_back(transcribe(audio, u.audio));
      run_.seconds += now() - start;
      run_.audio_seconds += audio.seconds();
      progress.update(static_cast<double>(run_.texts.size()) /
                      static_cast<double>(utterances.size()));
    }
    run_.peak_memory = peak_resident_bytes();
    run_.file_memory = resident_file_bytes();
    return std::move(run_);
  }

 private:
  std::string transcribe(const AudioData& audio, const std::string& path) const {
    RequestHandle request = new_request(model_.get());
    if (!job_.decoding.empty()) {
      check(speech_request_set_string(request.get(), SPEECH_OPT_DECODING, job_.decoding.c_str()));
    }
    check(speech_request_set_audio(request.get(), audio.samples.data(), audio.samples.size(),
                                   audio.rate),
          path);
    check(speech_transcribe(request.get()), path);
    return speech_result_text(speech_request_result(request.get()));
  }

  const Job& job_;
  ModelHandle model_;
  QualityRun run_;
};

// What this program writes to its standard output with these arguments.
std::string output_of(const std::vector<std::string>& arguments) {
  const auto system = [](int error, const char* what) {
    if (error == 0) return;
    throw Failure(SPEECH_IO, "",
                  fmt::format("cannot measure in another process: {}: {}", what, strerror(error)));
  };
  int ends[2];
  system(::pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno, "pipe");
  posix_spawn_file_actions_t actions;
  system(posix_spawn_file_actions_init(&actions), "actions");
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> argv{const_cast<char*>("speech")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string out;
  char piece[1 << 14];
  for (ssize_t size = 0; error == 0;) {
    size = ::read(ends[0], piece, sizeof piece);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    out.append(piece, static_cast<size_t>(size));
  }
  ::close(ends[0]);
  system(error, "spawn");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != exit_done) {
    throw Failure(SPEECH_INTERNAL, "quality",
                  fmt::format("the process that measured {} failed", arguments.back()));
  }
  return out;
}

QualityRun run_apart(const Job& job, const QualityArguments& a) {
  std::vector<std::string> arguments{"bench", "--quality", a.manifest, "--format", "json"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {flag, value});
  };
  add("--decoding", job.decoding);
  add("--device", a.load.device);
  add("--threads", a.load.threads > 0 ? fmt::format("{}", a.load.threads) : "");
  arguments.insert(arguments.end(), {"--", job.model});
  const Json report = Json::parse(output_of(arguments), nullptr, false);
  if (!report.is_object() || !report.contains("runs") || report["runs"].empty()) {
    throw Failure(SPEECH_INTERNAL, "quality",
                  fmt::format("the process that measured {} wrote no report", job.model));
  }
  return parse_quality_run(report["runs"][0].dump());
}

}  // namespace

int measure_quality(const QualityArguments& a) {
  if (a.load.quantize_bits > 0 || !a.load.lora.empty() || a.load.kv_cache != "f32" ||
      !a.load.map_weights) {
    throw UsageError("--quantize, --lora, --kv-cache and --no-mmap are for language models");
  }
  std::vector<Job> jobs;
  for (const std::string& model : a.models) {
    if (a.decodings.empty()) jobs.push_back({model, ""});
    for (const std::string& decoding : a.decodings) jobs.push_back({model, decoding});
  }
  for (const Job& job : jobs) check_job(job);
  const std::vector<Utterance> utterances = read_manifest(a.manifest);
  std::vector<QualityRun> runs;
  if (jobs.size() == 1) {
    runs.push_back(Runner(jobs[0], a.load).run(utterances));
  } else {
    // The memory of one model must not count for the next.
    for (const Job& job : jobs) runs.push_back(run_apart(job, a));
  }
  const QualityReport report = score_quality(utterances, std::move(runs));
  if (a.format == "json") {
    print_json(quality_json(report));
  } else {
    print(a.format == "md" ? quality_markdown(report) : quality_text(report));
  }
  return exit_done;
}

}  // namespace speech::cli
