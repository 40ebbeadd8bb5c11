// The program `speech`.
#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/file.h"
#include "command.h"

namespace speech::cli {
namespace {

struct Entry {
  const char* name;
  const char* summary;
  std::unique_ptr<Command> (*make)();
};

constexpr std::array kCommands = {
    Entry{"asr", "Transcribe recordings, or live audio", make_asr},
    Entry{"vad", "Find the speech in recordings", make_vad},
    Entry{"chat", "Talk to a language model", make_chat},
    Entry{"generate", "Continue a text with a language model", make_generate},
    Entry{"eval", "Score a language model on fixtures, and compare two", make_eval},
    Entry{"serve", "Serve a language model over HTTP, with OpenAI's API", make_serve},
    Entry{"info", "Say what a model or any other tensor file holds", make_info},
    Entry{"models", "List the model names", make_models},
    Entry{"devices", "List the devices models run on", make_devices},
    Entry{"convert", "Make a model file of an official checkpoint", make_convert},
    Entry{"quantize", "Rewrite a model file with another weight type", make_quantize},
    Entry{"lora", "Bake an adapter into a language model", make_lora},
    Entry{"tokenize", "Say the token ids of a text or a chat", make_tokenize},
    Entry{"bench", "Measure the speed and memory of a whole model", make_bench},
    Entry{"trace", "Write the tensors of every stage of a run", make_trace},
};

void print_error(const char* code, const std::string& option, const std::string& message) {
  std::string at = option.empty() ? "" : " (" + option + ")";
  note("speech: {}{}: {}", code, at, message);
}

int run(int argc, char** argv) {
  CLI::App app("Speech recognition, voice activity detection and language models on CPUs",
               "speech");
  app.set_version_flag("--version",
                       fmt::format("speech {}, C API {}.{}", speech_version(),
                                   speech_api_version_major(), speech_api_version_minor()));
  app.require_subcommand(1);
  std::vector<std::unique_ptr<Command>> commands;
  for (const Entry& entry : kCommands) {
    commands.push_back(entry.make());
    commands.back()->add_flags(*app.add_subcommand(entry.name, entry.summary));
  }

  std::string name;  // of the subcommand, once known
  auto usage = [&](const std::string& message) {
    note("speech: {}\nSee speech {}--help", message, name.empty() ? "" : name + " ");
    return exit_usage;
  };
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      auto chosen = app.get_subcommands();
      print(chosen.empty() ? app.help() : chosen[0]->help());
      flush_output();
      return exit_done;
    } catch (const CLI::CallForVersion&) {
      print(app.version() + "\n");
      flush_output();
      return exit_done;
    } catch (const CLI::ParseError& error) {
      auto chosen = app.get_subcommands();
      if (!chosen.empty()) name = chosen[0]->get_name();
      return usage(error.what());
    }
    name = app.get_subcommands()[0]->get_name();
    for (size_t i = 0; i < kCommands.size(); ++i) {
      if (name != kCommands[i].name) continue;
      int code = commands[i]->run();
      flush_output();
      return code;
    }
  } catch (const UsageError& error) {
    return usage(error.what());
  } catch (const Failure& failure) {
    print_error(speech_status_name(failure.status), failure.option, failure.what());
  } catch (const Error& error) {
    print_error(status_name(error.status()), error.option(), error.what());
  } catch (const std::bad_alloc&) {
    print_error("out_of_memory", "", "out of memory");
  } catch (const std::exception& error) {
    print_error("internal", "", error.what());
  }
  return exit_failure;
}

}  // namespace
}  // namespace speech::cli

int main(int argc, char** argv) {
  speech::cli::take_stdout();
  speech::remove_partial_files_on_signals();
  return speech::cli::run(argc, argv);
}
