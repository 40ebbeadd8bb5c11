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
      for (const auto& file : model.files()) {
        const bool bare = file.type == model.file.type;
        print(fmt::format(
            "{:<26} {:<5} {:>8}  {:<7} {:<12} {}\n",
            bare ? std::string(model.name) : fmt::format("{}:{}", model.name, file.type), file.type,
            size_text(file.bytes), locate_model(model, file) ? "yes" : "no", task_name(model.task),
            model.languages));
      }
    }
    print("\nThis version downloads nothing. Files are looked for in:\n");
    for (const auto& folder : model_folders()) print("  " + folder + "\n");
    return exit_done;
  }

 private:
  static Json text_or_null(std::string_view text) { return text.empty() ? Json() : Json(text); }

  static Json as_json(const CatalogModel& model, const CatalogFile& file) {
    auto path = locate_model(model, file);
    Json json{{"type", file.type},
              {"file", file.file},
              {"size", file.bytes},
              {"sha256", file.sha256},
              {"url", text_or_null(model.url(file))}};
    if (path) json["path"] = *path;
    json["fetched"] = path.has_value();
    return json;
  }

  static Json as_json() {
    Json models = Json::array();
    for (const auto& model : catalog()) {
      Json files = Json::array();
      for (const auto& file : model.files()) files.push_back(as_json(model, file));
      Json languages = Json::array();
      std::string_view rest = model.languages;
      while (!rest.empty()) {
        size_t end = std::min(rest.find(' '), rest.size());
        languages.push_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      models.push_back({{"name", model.name},
                        {"repository", text_or_null(model.repository)},
                        {"revision", text_or_null(model.revision)},
                        {"task", task_name(model.task)},
                        {"languages", languages},
                        {"type", model.file.type},
                        {"files", files}});
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
