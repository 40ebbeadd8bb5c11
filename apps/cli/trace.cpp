// speech trace: the tensors of every stage of a run, for comparison with the official code.
#include <fmt/format.h>

#include "command.h"
#include "language.h"

namespace speech::cli {
namespace {

class TraceCommand final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("arguments", arguments_, "The model, then the recordings")
        ->type_name("MODEL INPUT...");
    app.add_option("--out", out_, "The safetensors file to write")->required()->type_name("FILE");
    app.add_option("--chunks", chunks_, "Of a model that works in chunks, keep these (0,1,40)")
        ->delimiter(',')
        ->check(at_least(0));
    app.add_option("--channel-step", channel_step_, "Keep every so-many-th channel of wide stages")
        ->check(at_least(1));
    add_ids(app, "--ids", ids_, "Of a language model: trace a pass over these ids (1,2,3)");
    app.add_option("--prompt", prompt_, "Of a language model: trace a pass over this text");
    device_.add(app);
    app.add_flag("--as-run", as_run_,
                 "Products of quantized weights as other commands compute them, with activations "
                 "of 15 bits, not in f32");
    device_.add_weights(app);
    options_.add(app, {"prompt"});
  }

  int run() override {
    bool language = !ids_.empty() || !prompt_.empty();
    if (!ids_.empty() && !prompt_.empty()) {
      throw UsageError("--ids and --prompt are two ways to say the same: one of them");
    }
    if (const std::string flag = options_.first_given(); language && !flag.empty()) {
      throw UsageError(flag + " is for recordings; a pass over tokens has no request options");
    }
    auto [model_name, files] =
        split_arguments(arguments_, "trace", SPEECH_TASK_RECOGNITION, "AUDIO.wav", !language);
    std::vector<std::string> inputs = files;
    inputs.push_back(model_path(model_name));
    check_not_input(out_, inputs, "out");
    ModelHandle model = device_.load(model_name, !as_run_);
    const speech_model_info* info = nullptr;
    check(speech_model_get_info(model.get(), &info));
    speech_task task = speech_model_info_task(info);

    speech_trace* handle = nullptr;
    check(speech_trace_new(&handle));
    TraceHandle trace(handle);
    if (!chunks_.empty() && task != SPEECH_TASK_DETECTION) {
      throw UsageError(fmt::format("--chunks: {} does not work in chunks", model_name));
    }
    if (language) {
      if (!prompt_.empty()) ids_ = token_ids(model.get(), prompt_);
      check(speech_trace_ids(handle, model.get(), ids_.data(), ids_.size()));
    }
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
  std::string out_, prompt_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> chunks_;
  int channel_step_ = 0;
  bool as_run_ = false;
  DeviceFlags device_;
  RequestFlags options_;
};

}  // namespace

std::unique_ptr<Command> make_trace() {
  return std::make_unique<TraceCommand>();
}

}  // namespace speech::cli
