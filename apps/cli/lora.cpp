// speech lora bake: an adapter added to a model's weights.
#include "command.h"

namespace speech::cli {
namespace {

class Lora final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    CLI::App* bake = app.add_subcommand("bake", "Write a folder with the adapter in its weights");
    app.require_subcommand(1);
    bake->add_option("BASE", base_, "The dense Hugging Face folder")->required()->type_name("BASE");
    bake->add_option("ADAPTER", adapter_, "The adapter's folder, of mlx-lm or PEFT")
        ->required()
        ->type_name("ADAPTER");
    bake->add_option("OUT", out_, "The folder to write")->required()->type_name("OUT");
  }

  int run() override {
    Progress progress("bake");
    check(speech_lora_bake(base_.c_str(), adapter_.c_str(), out_.c_str(), Progress::callback,
                           &progress));
    return exit_done;
  }

 private:
  std::string base_, adapter_, out_;
};

}  // namespace

std::unique_ptr<Command> make_lora() {
  return std::make_unique<Lora>();
}

}  // namespace speech::cli
