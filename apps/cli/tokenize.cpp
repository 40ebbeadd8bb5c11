// speech tokenize: ids of a text, or of the prompt that a chat becomes.
#include <iostream>
#include <iterator>

#include "base/file.h"
#include "language.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Tokenize final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A Hugging Face or MLX folder, or a GGUF file")
        ->required()
        ->type_name("MODEL");
    app.add_option("TEXT", text_, "The text (default: standard input)")->type_name("TEXT");
    app.add_option("--chat", chat_,
                   "A JSON file: a list of messages, or a whole chat request (tools, "
                   "enable_thinking, ...); prints the rendered prompt too")
        ->type_name("FILE");
    app.add_flag("--plain", plain_, "Read added tokens such as <|im_end|> as text");
    add_ids(app, "--decode", ids_, "The text of these ids instead (1,2,3)");
    device_.add(app);
  }

  int run() override {
    ModelHandle model = device_.load(model_);
    speech_text* raw = nullptr;
    if (!ids_.empty()) {
      check(speech_detokenize(model.get(), ids_.data(), ids_.size(), &raw));
      TextHandle owned(raw);
      print_json(Json{{"ids", ids_}, {"text", speech_text_get(raw)}}.dump());
      return exit_done;
    }
    if (!chat_.empty()) {
      Json request = Json::parse(read_text_file(chat_), nullptr, false);
      if (request.is_array()) request = Json{{"messages", request}};
      if (!request.is_object()) throw UsageError(chat_ + " is neither a JSON list nor an object");
      speech_completions* handle = nullptr;
      check(speech_completions_new(model.get(), nullptr, &handle));
      CompletionsHandle completions(handle);
      check(speech_chat_prompt(handle, request.dump().c_str(), &raw));
    } else {
      if (text_.empty()) text_.assign(std::istreambuf_iterator<char>(std::cin), {});
      check(speech_tokenize(model.get(), c_text(text_, "the text"), !plain_, &raw));
    }
    TextHandle owned(raw);
    print_json(speech_text_get(raw));
    return exit_done;
  }

 private:
  std::string model_, text_, chat_;
  std::vector<int32_t> ids_;
  bool plain_ = false;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() {
  return std::make_unique<Tokenize>();
}

}  // namespace speech::cli
