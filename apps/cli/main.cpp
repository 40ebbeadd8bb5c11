// The program `speech`.
#include <fmt/format.h>

#include <algorithm>
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

// Positional arguments are called what their types are: "MODEL AUDIO...", "[TEXT]".
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return positional ? option->get_type_name() : Formatter::make_option_name(option, positional);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_positional() ? "" : Formatter::make_option_opts(option);
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    const bool list = option->get_expected_max() >= CLI::detail::expected_max_vector_size;
    return option->get_required() || list ? option->get_type_name()
                                          : "[" + option->get_type_name() + "]";
  }
};

// CLI11 does not take what follows "--" for the arguments of a subcommand once it has one of a
// list. So "--" is taken out here, and what follows it is marked as no flag; the mark goes when the
// argument is stored.
constexpr char kPlain = '\1';

std::vector<std::string> mark_plain(int argc, char** argv) {
  std::vector<std::string> arguments;
  bool plain = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!plain && i > 1 && argument == "--") {
      plain = true;
    } else {
      arguments.push_back(plain ? kPlain + argument : argument);
    }
  }
  return arguments;
}

void unmark_plain(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    option->transform(CLI::Validator(
        [](std::string& text) {
          if (text.starts_with(kPlain)) text.erase(0, 1);
          return std::string();
        },
        ""));
  }
  for (CLI::App* below : app.get_subcommands([](CLI::App*) { return true; })) unmark_plain(*below);
}

// The first argument or flag that must be there and is not; empty: none.
std::string missing(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return option->get_positional() ? option->get_type_name() : option->get_name();
  }
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Speech recognition, voice activity detection and language models on CPUs",
               "speech");
  app.set_version_flag("--version",
                       fmt::format("speech {}, C API {}.{}", speech_version(),
                                   speech_api_version_major(), speech_api_version_minor()));
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  std::vector<std::unique_ptr<Command>> commands;
  for (const Entry& entry : kCommands) {
    commands.push_back(entry.make());
    commands.back()->add_flags(*app.add_subcommand(entry.name, entry.summary));
  }

  unmark_plain(app);

  // The subcommand of the command line, or of its subcommand, with its whole name.
  std::string name;
  const auto chosen = [&] {
    CLI::App* at = &app;
    name.clear();
    while (!at->get_subcommands().empty()) {
      at = at->get_subcommands()[0];
      name += at->get_name() + " ";
    }
    return at;
  };
  auto usage = [&](const std::string& message) {
    note("speech: {}\nSee speech {}--help", message, name);
    return exit_usage;
  };
  try {
    try {
      std::vector<std::string> arguments = mark_plain(argc, argv);
      std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
      app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
      print(app.help());  // of the subcommand, if there is one
      flush_output();
      return exit_done;
    } catch (const CLI::CallForVersion&) {
      print(app.version() + "\n");
      flush_output();
      return exit_done;
    } catch (const CLI::RequiredError& error) {
      const std::string what = missing(*chosen());
      if (what.empty()) return usage(error.what());
      return usage(what + " is missing" +
                   (what == "MODEL" ? ": a path or a name that speech models lists" : ""));
    } catch (const CLI::ParseError& error) {
      chosen();
      return usage(error.what());
    }
    chosen();
    for (size_t i = 0; i < kCommands.size(); ++i) {
      if (app.get_subcommands()[0]->get_name() != kCommands[i].name) continue;
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
  speech::cli::fill_standard_descriptors();
  speech::cli::take_stdout();
  speech::remove_partial_files_on_signals();
  return speech::cli::run(argc, argv);
}
