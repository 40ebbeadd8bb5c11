// speech vad: the regions of recordings in which someone speaks.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "audio/write.h"
#include "base/blaming.h"
#include "command.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

// Samples read and pushed at a time.
constexpr size_t kPiece = 1 << 14;

struct FoundRegion {
  double start, end;  // seconds
};

class Vad final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("arguments", arguments_, "The model, then the recordings")
        ->type_name("MODEL AUDIO...");
    app.add_option("--format", format_, "text: FILE, START, END per region; json: a line per file")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    app.add_option("--split", split_,
                   "Write each region as a WAVE file of its own into this folder")
        ->type_name("DIR");
    device_.add(app);
    options_.add(app);
  }

  int run() override {
    auto [model_name, files] =
        split_arguments(arguments_, "vad", SPEECH_TASK_DETECTION, "AUDIO.wav");
    if (!split_.empty()) {
      std::set<std::string> stems;
      for (const auto& file : files) {
        if (!stems.insert(stem(file)).second) {
          throw UsageError(fmt::format(
              "two recordings are called {}: their parts would overwrite each other", stem(file)));
        }
      }
    }
    if (!split_.empty()) make_folder(split_, "split");
    ModelHandle model = device_.load(model_name);
    RequestHandle request = new_request(model.get());
    options_.apply(request.get());
    files_ = files;
    Failures failures(files.size());
    for (const auto& file : files) failures.attempt([&] { detect(request.get(), file); });
    failures.finish();
    return exit_done;
  }

 private:
  void detect(const speech_request* request, const std::string& file) {
    double start = now();
    AudioHandle audio = open_audio(file);
    const int rate = speech_audio_rate(audio.get());
    speech_detection* handle = nullptr;
    check(speech_detection_start(request, rate, &handle), file);
    DetectionHandle detection(handle);

    const auto length = static_cast<double>(speech_audio_length(audio.get()));
    int64_t samples = 0;
    {
      Progress progress(file);
      std::vector<float> piece(kPiece);
      for (size_t read = 1; read > 0; samples += static_cast<int64_t>(read)) {
        check(speech_audio_read(audio.get(), piece.data(), piece.size(), &read), file);
        check(speech_detection_push(handle, piece.data(), read), file);
        if (length > 0) progress.update(static_cast<double>(samples) / length);
      }
    }
    check(speech_detection_end(handle), file);
    std::vector<FoundRegion> regions(speech_detection_region_count(handle));
    for (size_t i = 0; i < regions.size(); ++i) {
      check(speech_detection_region(handle, i, &regions[i].start, &regions[i].end));
    }

    double seconds = static_cast<double>(samples) / rate, took = now() - start;
    note("{}: {:.3f} s of audio in {:.3f} s (real-time factor {:.4f}), {} region{}", file, seconds,
         took, seconds > 0 ? took / seconds : 0, regions.size(), regions.size() == 1 ? "" : "s");
    write(file, regions);
    if (!split_.empty()) split(file, rate, samples, regions);
  }

  void write(const std::string& file, const std::vector<FoundRegion>& regions) {
    if (format_ == "text") {
      for (const auto& region : regions) {
        print(fmt::format("{}\t{:.3f}\t{:.3f}\n", file, region.start, region.end));
      }
      flush_output();
      return;
    }
    Json json{{"file", file}, {"regions", Json::array()}};
    for (const auto& region : regions) {
      json["regions"].push_back({{"start", region.start}, {"end", region.end}});
    }
    print_json(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  // Reads the file again, region by region: a long recording is never in memory whole.
  void split(const std::string& file, int rate, int64_t samples,
             const std::vector<FoundRegion>& regions) {
    AudioHandle audio = open_audio(file);
    int64_t position = 0;
    std::vector<float> piece(kPiece);
    auto read_to = [&](int64_t end, WavWriter* writer) {
      while (position < end) {
        auto count = static_cast<size_t>(std::min<int64_t>(kPiece, end - position));
        size_t read = 0;
        check(speech_audio_read(audio.get(), piece.data(), count, &read), file);
        if (read == 0) {
          throw Failure(SPEECH_IO, "audio", fmt::format("{} became shorter meanwhile", file));
        }
        if (writer) writer->write(std::span(piece.data(), read));
        position += static_cast<int64_t>(read);
      }
    };
    const size_t digits = std::to_string(regions.size()).size();
    for (size_t i = 0; i < regions.size(); ++i) {
      auto sample = [&](double seconds) {
        return std::clamp<int64_t>(std::llround(seconds * rate), 0, samples);
      };
      auto path =
          std::filesystem::path(split_) / fmt::format("{}-{:0{}}.wav", stem(file), i + 1, digits);
      check_not_input(path.string(), files_, "split");
      read_to(sample(regions[i].start), nullptr);
      WavWriter writer = blaming("split", [&] { return WavWriter(path.string(), rate); });
      read_to(sample(regions[i].end), &writer);
      writer.commit();
    }
  }

  std::vector<std::string> arguments_, files_;
  std::string format_ = "text", split_;
  DeviceFlags device_;
  RequestFlags options_;
};

}  // namespace

std::unique_ptr<Command> make_vad() {
  return std::make_unique<Vad>();
}

}  // namespace speech::cli
