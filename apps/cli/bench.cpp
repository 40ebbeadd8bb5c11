// speech bench: where the time and memory of a whole model go, or how well models write what is
// said.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command.h"
#include "quality.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Bench final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A model's name or path")->required()->type_name("MODEL");
    app.add_option("arguments", more_,
                   "Recognition and detection: the recording; with --quality: more models")
        ->type_name("[AUDIO.wav | MODEL...]");
    seconds_flag_ = app.add_option("--seconds", seconds_,
                                   "Recognition and detection without AUDIO: seconds of a made-up "
                                   "voice")
                        ->capture_default_str();
    tokens_flags_ = {
        app.add_option("--prompt-tokens", prompt_, "Language models: tokens of the prompt")
            ->capture_default_str(),
        app.add_option("--tokens", tokens_, "Language models: tokens made after it")
            ->capture_default_str(),
        app.add_option("--sequences", sequences_,
                       "Language models: sequences of the batch; 1 leaves it out")
            ->capture_default_str()};
    runs_flag_ = app.add_option("--runs", runs_,
                                "Runs of each work, the fastest counts; one more goes before")
                     ->capture_default_str();
    app.add_option(
           "--quality", quality_,
           "Instead: error rates of recognition models on the recordings of a manifest, each "
           "model in a process of its own")
        ->type_name("MANIFEST.jsonl");
    decoding_flag_ = app.add_option("--decoding", decodings_,
                                    "With --quality: ways of decoding, each a row of the table")
                         ->delimiter(',');
    app.add_option("--format", format_, "text, json (one object), or with --quality md")
        ->check(CLI::IsMember({"text", "json", "md"}))
        ->capture_default_str();
    device_.add(app);
    device_.add_weights(app);
    device_.add_memory(app);
  }

  int run() override {
    if (!quality_.empty()) return run_quality();
    if (format_ == "md") throw UsageError("--format md is for --quality");
    if (decoding_flag_->count() > 0) throw UsageError("--decoding is for --quality");
    if (more_.size() > 1) throw UsageError("one model and one recording; --quality takes several");
    if (!more_.empty()) audio_ = more_[0];
    const std::string path = model_path(model_);
    check_flags(path);
    Handle<speech_profile_params, speech_profile_params_free> params(speech_profile_params_new());
    if (!audio_.empty()) {
      const AudioData audio = read_audio_file(audio_);
      check(speech_profile_params_set_audio(params.get(), audio.samples.data(),
                                            audio.samples.size(), audio.rate),
            audio_);
    }
    check(speech_profile_params_set_seconds(params.get(), seconds_));
    check(speech_profile_params_set_tokens(params.get(), prompt_, tokens_, sequences_));
    check(speech_profile_params_set_runs(params.get(), runs_));
    speech_text* handle = nullptr;
    check(
        speech_profile(path.c_str(), load_params(device_.settings()).get(), params.get(), &handle));
    TextHandle text(handle);
    if (format_ == "json") {
      print_json(speech_text_get(handle));
    } else {
      write(Json::parse(speech_text_get(handle)));
    }
    return exit_done;
  }

 private:
  int run_quality() const {
    std::vector<CLI::Option*> others = tokens_flags_;
    others.insert(others.end(), {seconds_flag_, runs_flag_});
    for (const CLI::Option* flag : others) {
      if (flag->count() == 0) continue;
      throw UsageError(fmt::format("{} and --quality do not go together", flag->get_name()));
    }
    std::vector<std::string> models{model_};
    models.insert(models.end(), more_.begin(), more_.end());
    return measure_quality({.manifest = quality_,
                            .models = models,
                            .decodings = decodings_,
                            .format = format_,
                            .load = device_.settings()});
  }

  // A flag that this model's task has no use for is a mistake, not to be passed over.
  void check_flags(const std::string& path) const {
    speech_model_info* handle = nullptr;
    check(speech_model_info_open(path.c_str(), &handle));
    InfoHandle info(handle);
    const bool language = speech_model_info_task(handle) == SPEECH_TASK_LANGUAGE;
    if (language && (!audio_.empty() || seconds_flag_->count() > 0)) {
      throw UsageError(fmt::format("{} is a language model: it takes no audio", model_));
    }
    if (!audio_.empty() && seconds_flag_->count() > 0) {
      throw UsageError("--seconds is the length of a made-up voice; AUDIO has its own");
    }
    for (const CLI::Option* flag : tokens_flags_) {
      if (!language && flag->count() > 0) {
        throw UsageError(
            fmt::format("{} is for language models; {} is none", flag->get_name(), model_));
      }
    }
  }

  static void write(const Json& p) {
    constexpr double kMega = 1e6, kGiga = 1e9;
    print(fmt::format("{} {}, {}, {}, {} threads\n", p["model"].get<std::string>(),
                      p["weight_type"].get<std::string>(), p["processor"].get<std::string>(),
                      p["instructions"].get<std::string>(), p["threads"].get<int>()));
    const double file = p["file_bytes"], peak = p["peak_memory_bytes"];
    print(fmt::format("loaded in {:.3f} s, peak memory {:.1f} MB, file {:.1f} MB\n",
                      p["load_seconds"].get<double>(), peak / kMega, file / kMega));
    print(fmt::format("limits: {:.1f} GFLOPS (f32 multiply-adds), {:.1f} GB/s read\n",
                      p["peak_flops"].get<double>() / kGiga,
                      p["read_bandwidth"].get<double>() / kGiga));
    for (const Json& work : p["works"]) write_work(work);
  }

  static void write_work(const Json& w) {
    const double seconds = w["seconds"], amount = w["amount"];
    std::string rate = w.contains("real_time_factor")
                           ? fmt::format("{:.2f} s of audio in {:.3f} s, real-time factor {:.4f}",
                                         amount, seconds, w["real_time_factor"].get<double>())
                           : fmt::format("{} tokens in {:.3f} s, {:.1f} tokens/s", amount, seconds,
                                         w["tokens_per_second"].get<double>());
    if (w["name"] == "decode") {
      rate += fmt::format(", weights at {:.1f} GB/s ({:.2f} of read)",
                          w["weight_bytes_per_second"].get<double>() / 1e9,
                          w["of_read_bandwidth"].get<double>());
    }
    print(fmt::format("\n{}: {} (median {:.3f} s)\n", w["name"].get<std::string>(), rate,
                      w["median_seconds"].get<double>()));
    print(fmt::format("  {:<20} {:>8} {:>10} {:>7} {:>14} {:>14}\n", "", "calls", "ms", "share",
                      "GFLOPS (peak)", "GB/s (read)"));
    for (const Json& part : w["operations"]) write_part(part);
    if (w.contains("stages")) print("  of which\n");
    for (const Json& part : w.value("stages", Json::array())) write_part(part);
    const double alone = w["products_alone_seconds"];
    print(
        fmt::format("  the products alone: {:.2f} ms, {:.2f} of the whole; outside products and "
                    "attention: {:.1f} %\n",
                    1e3 * alone, alone / seconds, 100 * w["share_outside_products"].get<double>()));
  }

  static void write_part(const Json& part) {
    const auto with_ratio = [&](const char* value, const char* ratio) {
      if (!part.contains(value)) return std::string();
      return fmt::format("{:.1f} ({:.2f})", part[value].get<double>() / 1e9,
                         part[ratio].get<double>());
    };
    print(fmt::format(
        "  {:<20} {:>8} {:>10.2f} {:>6.1f}% {:>14} {:>14}\n", part["name"].get<std::string>(),
        part.contains("calls") ? part["calls"].dump() : "", 1e3 * part["seconds"].get<double>(),
        100 * part["share"].get<double>(), with_ratio("flops", "of_peak"),
        with_ratio("weight_bytes_per_second", "of_read_bandwidth")));
  }

  std::string model_, audio_, quality_, format_ = "text";
  std::vector<std::string> more_, decodings_;
  double seconds_ = 30;
  int prompt_ = 512, tokens_ = 64, sequences_ = 4, runs_ = 3;
  CLI::Option *seconds_flag_ = nullptr, *runs_flag_ = nullptr, *decoding_flag_ = nullptr;
  std::vector<CLI::Option*> tokens_flags_;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_bench() {
  return std::make_unique<Bench>();
}

}  // namespace speech::cli
