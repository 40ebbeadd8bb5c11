// From chat messages to a prompt, by the checkpoint's own template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/jinja.h"

namespace speech {

class ChatTemplate {
 public:
  // Errors as JinjaTemplate's; an empty source is refused.
  explicit ChatTemplate(const std::string& source);

  // The source of a Hugging Face folder's template: chat_template.jinja, else chat_template.json,
  // else tokenizer_config.json (of several named ones "default"). Empty if there is none.
  static std::string find_source(const std::string& folder);

  // messages: OpenAI's list. Content that is null or absent becomes "", a list of text parts their
  // joined text, the role "developer" becomes "system"; what is no text, and a role other than
  // system, user, assistant and tool, is refused (templates would drop it without a word).
  // tools: OpenAI's list, or null. variables: what else the template knows ("enable_thinking");
  // "add_generation_prompt" is true unless given. The marks say which bytes are not the template's.
  MarkedText render(
      const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools = nullptr,
      const nlohmann::ordered_json& variables = nlohmann::ordered_json::object()) const;

 private:
  JinjaTemplate template_;
};

}  // namespace speech
