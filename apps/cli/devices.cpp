// speech devices: what models can run on.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command.h"

namespace speech::cli {
namespace {

class Devices final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_flag("--json", json_, "One JSON object instead of text");
  }

  int run() override {
    nlohmann::ordered_json devices = nlohmann::ordered_json::array();
    for (size_t i = 0; i < speech_device_count(); ++i) {
      constexpr const char* kinds[] = {"cpu", "gpu", "igpu"};
      speech_device_kind kind = SPEECH_DEVICE_CPU;
      uint64_t total = 0, available = 0;
      check(speech_device_get_kind(i, &kind));
      check(speech_device_memory(i, &total, &available));
      if (json_) {
        devices.push_back({{"name", speech_device_name(i)},
                           {"description", speech_device_description(i)},
                           {"kind", kinds[kind]},
                           {"memory_total", total},
                           {"memory_free", available}});
      } else {
        print(fmt::format("{}  {}  {}, {} free\n", speech_device_name(i),
                          speech_device_description(i), size_text(total), size_text(available)));
      }
    }
    if (json_) print_json(nlohmann::ordered_json{{"devices", devices}}.dump());
    return exit_done;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_devices() {
  return std::make_unique<Devices>();
}

}  // namespace speech::cli
