// speech models: the names of the catalog, and which of them are on this machine.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "catalog/catalog.h"
#include "command.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Models final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_flag("--json", json_, "One JSON object instead of text");
  }

  int run() override {
    if (json_) {
      print_json(as_json().dump());
      return exit_done;
    }
    print(fmt::format("{:<26} {:<5} {:>8}  {:<7} {:<12} {}\n", "NAME", "TYPE", "SIZE", "PRESENT",
                      "TASK", "LANGUAGES"));
    for (const auto& model : catalog()) {
      print(fmt::format("{:<26} {:<5} {:>8}  {:<7} {:<12} {}\n", model.name, model.file.type,
                        size_text(model.file.bytes), locate_model(model) ? "yes" : "no",
                        task_name(model.task), model.languages));
    }
    print("\nThis version downloads nothing. Files are looked for in:\n");
    for (const auto& folder : model_folders()) print("  " + folder + "\n");
    return exit_done;
  }

 private:
  static Json as_json() {
    Json models = Json::array();
    for (const auto& model : catalog()) {
      auto path = locate_model(model);
      Json file{{"type", model.file.type},
                {"file", model.file.file},
                {"size", model.file.bytes},
                {"sha256", model.file.sha256},
                {"url", fmt::format("https://huggingface.co/{}/resolve/{}/{}", model.repository,
                                    model.revision, model.file.file)}};
      if (path) file["path"] = *path;
      file["fetched"] = path.has_value();
      Json languages = Json::array();
      std::string_view rest = model.languages;
      while (!rest.empty()) {
        size_t end = std::min(rest.find(' '), rest.size());
        languages.push_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      models.push_back({{"name", model.name},
                        {"repository", model.repository},
                        {"revision", model.revision},
                        {"task", task_name(model.task)},
                        {"languages", languages},
                        {"type", model.file.type},
                        {"files", Json::array({file})}});
    }
    return {{"version", speech_version()},
            {"directory", cache_folder()},
            {"folders", model_folders()},
            {"models", models}};
  }

  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_models() {
  return std::make_unique<Models>();
}

}  // namespace speech::cli
