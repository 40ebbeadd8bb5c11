// speech generate: a language model continues a text, without a chat template.
#include <iostream>
#include <iterator>

#include "language.h"

namespace speech::cli {
namespace {

using Json = nlohmann::ordered_json;

class Generate final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A Hugging Face or MLX folder, or a GGUF file")
        ->required()
        ->type_name("MODEL");
    app.add_option("-p,--prompt", prompt_, "The text to continue (default: standard input)");
    add_ids(app, "--ids", ids_, "Token ids instead of a text (1,2,3)")->excludes("--prompt");
    app.add_flag("--ignore-eos", ignore_eos_, "Go on behind an end of sequence");
    app.add_option("--format", format_, "text, or json: ids, text and log probabilities")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    app.add_option("--logprobs", log_probabilities_, "In json: that many likely tokens each (0-20)")
        ->check(CLI::Range(0, 20));
    sampling_.add(app);
    completion_.add(app);
    device_.add(app);
    device_.add_weights(app);
    device_.add_memory(app);
  }

  int run() override {
    ModelHandle model = device_.load(model_);
    CompletionsHandle completions = completion_.make(model.get());
    if (ids_.empty() && prompt_.empty()) {
      prompt_.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    if (ids_.empty()) ids_ = token_ids(model.get(), prompt_);
    Json request{{"prompt", ids_}, {"max_tokens", 1 << 30}};
    sampling_.apply(request);
    if (ignore_eos_) request["ignore_eos"] = true;
    if (format_ == "text") {
      complete_stream(completions.get(), SPEECH_COMPLETION_TEXT, request, [&](const Json& choice) {
        print(choice["text"].get<std::string>());
        flush_output();
        return true;
      });
      print("\n");
      return exit_done;
    }
    request["logprobs"] = log_probabilities_;
    request["return_ids"] = true;
    Json choice = complete(completions.get(), SPEECH_COMPLETION_TEXT, request)["choices"][0];
    Json out{{"prompt_ids", ids_},
             {"ids", choice["ids"]},
             {"text", choice["text"]},
             {"finish_reason", choice["finish_reason"]},
             {"logprobs", choice["logprobs"]["token_logprobs"]}};
    if (log_probabilities_ > 0) out["top_logprobs"] = choice["top_ids"];
    print_json(out.dump());
    return exit_done;
  }

 private:
  std::string model_, prompt_, format_ = "text";
  std::vector<int32_t> ids_;
  bool ignore_eos_ = false;
  int log_probabilities_ = 0;
  SamplingFlags sampling_;
  CompletionFlags completion_;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_generate() {
  return std::make_unique<Generate>();
}

}  // namespace speech::cli
