// speech info: what a model, or any file of tensors, holds.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Info final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_,
                   "A model's name, or the path of a model or tensor file or folder")
        ->required()
        ->type_name("MODEL");
    app.add_flag("--json", json_, "One JSON object instead of text");
    app.add_flag("--meta", meta_, "All metadata too (long values are whole in --json)");
  }

  int run() override {
    std::string path = model_path(model_);
    speech_file_info* handle = nullptr;
    check(speech_file_info_open(path.c_str(), meta_, &handle));
    FileInfoHandle file(handle);

    // A file that is no model (a checkpoint, any tensors) is described all the same, but a model
    // file that is broken is an error.
    Json model = Json::object();
    speech_model_info* info = nullptr;
    if (speech_model_info_open(path.c_str(), &info) == SPEECH_OK) {
      InfoHandle info_handle(info);
      model = Json::parse(speech_model_info_json(info));
    } else {
      note("{} is no model that can be run: {}", model_, speech_last_error());
    }

    if (json_) {
      model.update(Json::parse(speech_file_info_json(handle)));
      print_json(model.dump());
      return exit_done;
    }
    write_model(model);
    print(speech_file_info_text(handle));
    return exit_done;
  }

 private:
  static void write_model(const Json& model) {
    if (model.empty()) return;
    for (const auto& [key, value] : model.items()) {
      if (key == "options") continue;
      std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      print(fmt::format("{:<16} {}\n", key, text));
    }
    if (!model["options"].empty()) print("options\n");
    for (const auto& option : model["options"]) write_option(option);
    print("\n");
  }

  static void write_option(const Json& option) {
    std::string facts = option["type"];
    if (option["required"]) facts += ", required";
    if (!option["steers"]) facts += ", only checked";
    if (option.contains("default")) facts += ", default " + option["default"].dump();
    if (option.contains("minimum")) facts += ", at least " + option["minimum"].dump();
    if (option.contains("exclusive_minimum")) {
      facts += ", above " + option["exclusive_minimum"].dump();
    }
    if (option.contains("maximum")) facts += ", at most " + option["maximum"].dump();
    if (option.contains("choices")) facts += ", one of " + option["choices"].dump();
    print(fmt::format("  {:<26} {}\n", option["name"].get<std::string>(), facts));
  }

  std::string model_;
  bool json_ = false, meta_ = false;
};

}  // namespace

std::unique_ptr<Command> make_info() {
  return std::make_unique<Info>();
}

}  // namespace speech::cli
