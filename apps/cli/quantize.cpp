// speech quantize: an F32 model rewritten with another weight type.
#include "command.h"

namespace speech::cli {
namespace {

class Quantize final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "The F32 model file")->required()->type_name("MODEL");
    app.add_option("OUT", out_, "The file to write, or a folder for one of the canonical name")
        ->required()
        ->type_name("OUT");
    app.add_option("--type", type_,
                   "Weight type: f16, q8_0, q6_k, q5_k or q4_k; int4-g64 and the like write the "
                   "MLX folder of a Hugging Face folder")
        ->required();
    app.add_option("--calibrate", calibration_,
                   "Audio (for a language model: text) like what the model will get: codes are "
                   "chosen for what its matrices are multiplied with there")
        ->type_name("FILE");
    app.add_option("--importance", importance_, "Importance weights for the K types")
        ->type_name("FILE");
    app.add_option("--threads", threads_, "CPU threads (default: physical cores)")
        ->check(at_least(1));
    app.add_flag("--dry-run", dry_run_, "Print what would be written, and write nothing");
  }

  int run() override {
    std::string path = model_path(model_);
    Handle<speech_quantize_params, speech_quantize_params_free> params(
        speech_quantize_params_new());
    if (!importance_.empty()) {
      check(speech_quantize_params_set_importance(params.get(), importance_.c_str()));
    }
    for (const std::string& path : calibration_) {
      check(speech_quantize_params_add_calibration(params.get(), path.c_str()));
    }
    if (threads_ > 0) check(speech_quantize_params_set_threads(params.get(), threads_));
    Progress progress("quantize");
    speech_file_info* plan = nullptr;
    check(speech_quantize(path.c_str(), type_.c_str(), out_.c_str(), params.get(),
                          Progress::callback, &progress, dry_run_ ? &plan : nullptr));
    FileInfoHandle owned(plan);
    if (plan) print(speech_file_info_text(plan));
    return exit_done;
  }

 private:
  std::string model_, out_, type_, importance_;
  std::vector<std::string> calibration_;
  int threads_ = 0;
  bool dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_quantize() {
  return std::make_unique<Quantize>();
}

}  // namespace speech::cli
