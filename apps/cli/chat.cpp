// speech chat: a conversation in the terminal.
#include <unistd.h>

#include <iostream>

#include "language.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Chat final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A Hugging Face or MLX folder, or a GGUF file")
        ->required()
        ->type_name("MODEL");
    app.add_option("--system", system_, "What the model is told before the conversation");
    app.add_option("-m,--message", message_, "Answer this one message and end");
    app.add_flag("--no-think{false},--think{true}", think_, "Whether the model may think first");
    sampling_.add(app);
    completion_.add(app);
    device_.add(app);
    device_.add_weights(app);
    device_.add_memory(app);
  }

  int run() override {
    ModelHandle model = device_.load(model_);
    CompletionsHandle completions = completion_.make(model.get());
    reset();
    if (!message_.empty()) {
      answer(completions.get(), message_);
      return exit_done;
    }
    bool terminal = ::isatty(STDIN_FILENO) != 0;
    if (terminal) note("/reset forgets the conversation, /quit or Ctrl-D ends.");
    std::string line;
    while (true) {
      if (terminal) std::fputs("> ", stderr);
      if (!std::getline(std::cin, line)) break;
      if (line.ends_with('\r')) line.pop_back();
      if (line == "/quit") break;
      if (line == "/reset") {
        reset();
      } else if (!line.empty()) {
        try {
          answer(completions.get(), line);
        } catch (const Failure& failure) {
          // One question that failed (a full context, say) does not end the conversation.
          messages_.erase(messages_.size() - 1);
          if (!terminal) throw;
          note("speech: {}: {}", speech_status_name(failure.status), failure.what());
        }
      }
    }
    return exit_done;
  }

 private:
  void reset() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  void answer(speech_completions* completions, const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Json request{{"messages", messages_}};
    sampling_.apply(request);
    if (think_) request["enable_thinking"] = *think_;
    std::string content, finish;
    bool thinking = false;
    complete_stream(completions, SPEECH_COMPLETION_CHAT, request, [&](const Json& choice) {
      const Json& delta = choice["delta"];
      if (delta.contains("reasoning_content")) {
        // Reasoning goes to stderr: standard output is the answer alone.
        std::string piece = delta["reasoning_content"];
        std::fputs(piece.c_str(), stderr);
        thinking = true;
      }
      if (delta.contains("content") && delta["content"].is_string()) {
        std::string piece = delta["content"];
        if (thinking && !piece.empty()) {
          std::fputs("\n\n", stderr);
          thinking = false;
        }
        content += piece;
        print(piece);
        flush_output();
      }
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
      return true;
    });
    print("\n");
    flush_output();
    if (finish == "length") note("(cut off: no room for more tokens)");
    messages_.push_back({{"role", "assistant"}, {"content", content}});
  }

  std::string model_, system_, message_;
  std::optional<bool> think_;
  Json messages_;
  SamplingFlags sampling_;
  CompletionFlags completion_;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_chat() {
  return std::make_unique<Chat>();
}

}  // namespace speech::cli
