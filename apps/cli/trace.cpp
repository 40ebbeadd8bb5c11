// speech trace: the tensors of every stage of a run, for comparison with the official code.
#include <fmt/format.h>

#include "command.h"

namespace speech::cli {
namespace {

class TraceCommand final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("arguments", arguments_, "MODEL INPUT...")->type_name("");
    app.add_option("--out", out_, "The safetensors file to write")->required()->type_name("FILE");
    app.add_option("--chunks", chunks_, "Of a model that works in chunks, keep these (0,1,40)")
        ->delimiter(',');
    app.add_option("--channel-step", channel_step_, "Keep every so-many-th channel of wide stages")
        ->check(CLI::PositiveNumber);
    device_.add(app);
    options_.add(app);
  }

  int run() override {
    auto [model_name, files] =
        split_arguments(arguments_, "trace", SPEECH_TASK_RECOGNITION, "AUDIO.wav");
    ModelHandle model = device_.load(model_name);
    const speech_model_info* info = nullptr;
    check(speech_model_get_info(model.get(), &info));
    speech_task task = speech_model_info_task(info);

    speech_trace* handle = nullptr;
    check(speech_trace_new(&handle));
    TraceHandle trace(handle);
    if (!chunks_.empty()) check(speech_trace_set_chunks(handle, chunks_.data(), chunks_.size()));
    if (channel_step_ > 0) check(speech_trace_set_channel_step(handle, channel_step_));
    for (size_t i = 0; i < files.size(); ++i) {
      // One input has the plain names; several are told apart by their place.
      if (files.size() > 1) {
        check(speech_trace_set_prefix(handle, fmt::format("item{}.", i).c_str()));
      }
      AudioData audio = read_audio_file(files[i]);
      RequestHandle request = new_request(model.get());
      options_.apply(request.get());
      check(speech_request_set_trace(request.get(), handle));
      check(speech_request_set_audio(request.get(), audio.samples.data(), audio.samples.size(),
                                     audio.rate),
            files[i]);
      check(task == SPEECH_TASK_DETECTION ? speech_detect(request.get())
                                          : speech_transcribe(request.get()),
            files[i]);
    }
    check(speech_trace_write(handle, out_.c_str()));
    note("{} stages written to {}", speech_trace_count(handle), out_);
    return exit_done;
  }

 private:
  std::vector<std::string> arguments_;
  std::string out_;
  std::vector<int64_t> chunks_;
  int channel_step_ = 0;
  DeviceFlags device_;
  RequestFlags options_;
};

}  // namespace

std::unique_ptr<Command> make_trace() {
  return std::make_unique<TraceCommand>();
}

}  // namespace speech::cli
