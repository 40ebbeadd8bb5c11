// speech convert: a model file made of an official checkpoint.
#include "command.h"

namespace speech::cli {
namespace {

class Convert final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("SOURCE", source_, "The official checkpoint: a file or a folder")
        ->required()
        ->type_name("SOURCE");
    app.add_option("OUT", out_, "The GGUF file to write (F32)")->required()->type_name("OUT.gguf");
    app.add_option("--name", name_, "The model's name; default: what the checkpoint says");
    app.add_flag("--extra-heads", extra_heads_, "Keep heads that the published layout leaves out");
    app.add_option("--rate", rate_,
                   "Of a checkpoint that holds several models, the one for this rate")
        ->type_name("HZ")
        ->check(at_least(1));
    app.add_flag("--dry-run", dry_run_, "Print what would be written, and write nothing");
  }

  int run() override {
    Handle<speech_convert_params, speech_convert_params_free> params(speech_convert_params_new());
    if (!name_.empty()) check(speech_convert_params_set_name(params.get(), name_.c_str()));
    check(speech_convert_params_set_extra_heads(params.get(), extra_heads_));
    check(speech_convert_params_set_rate(params.get(), rate_));
    Progress progress("convert");
    speech_file_info* plan = nullptr;
    check(speech_convert(source_.c_str(), out_.c_str(), params.get(), Progress::callback, &progress,
                         dry_run_ ? &plan : nullptr));
    FileInfoHandle owned(plan);
    if (plan) print(speech_file_info_text(plan));
    return exit_done;
  }

 private:
  std::string source_, out_, name_;
  int rate_ = 0;
  bool extra_heads_ = false, dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_convert() {
  return std::make_unique<Convert>();
}

}  // namespace speech::cli
