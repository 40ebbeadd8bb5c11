#include "text/chat_template.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace speech {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const std::string& check_source(const std::string& source) {
  if (source.empty()) {
    fail(Status::unsupported,
         "the model has no chat template (chat_template.jinja or tokenizer_config.json)");
  }
  return source;
}

// Messages as templates expect them: string contents, known roles.
Json normalize(const Json& messages) {
  if (!messages.is_array()) {
    fail_option(Status::invalid_argument, "messages", "messages is not a list");
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Json message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      fail_option(Status::invalid_argument, "messages", "messages[{}] has no role", i);
    }
    auto role = message["role"].get<std::string>();
    if (role == "developer") message["role"] = role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      fail_option(Status::invalid_argument, "messages",
                  "messages[{}].role is \"{}\"; expected system, user, assistant or tool", i, role);
    }
    Json content = message.contains("content") ? message["content"] : Json();
    if (content.is_null()) content = "";
    if (content.is_array()) {
      std::string text;
      for (const Json& part : content) {
        if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
            !part["text"].is_string()) {
          fail_option(Status::invalid_argument, "messages",
                      "messages[{}].content has a part that is not text", i);
        }
        text += part["text"].get<std::string>();
      }
      content = text;
    }
    if (!content.is_string()) {
      fail_option(Status::invalid_argument, "messages",
                  "messages[{}].content is neither a string nor a list of text parts", i);
    }
    message["content"] = content;
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source) : template_(check_source(source)) {}

std::string ChatTemplate::find_source(const std::string& folder) {
  auto path = [&](const char* name) { return (fs::path(folder) / name).string(); };
  if (fs::exists(path("chat_template.jinja"))) return read_text_file(path("chat_template.jinja"));
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    if (!fs::exists(path(name))) continue;
    Json file = Json::parse(read_text_file(path(name)), nullptr, false);
    if (file.is_discarded() || !file.is_object()) {
      fail(Status::model_file, "{} is not a JSON object", path(name));
    }
    Json found = file.value("chat_template", Json());
    if (found.is_string()) return found.get<std::string>();
    if (found.is_array()) {
      for (const Json& entry : found) {
        if (entry.is_object() && entry.value("name", Json()) == "default" &&
            entry.contains("template") && entry["template"].is_string()) {
          return entry["template"].get<std::string>();
        }
      }
      fail(Status::unsupported, "{}: chat_template has no template named \"default\"", path(name));
    }
    if (!found.is_null()) {
      fail(Status::model_file, "{}: chat_template is neither a string nor a list", path(name));
    }
  }
  return {};
}

MarkedText ChatTemplate::render(const Json& messages, const Json& tools,
                                const Json& variables) const {
  Json all = {{"add_generation_prompt", true}};
  for (const auto& [key, value] : variables.items()) all[key] = value;
  all["messages"] = normalize(messages);
  if (!tools.is_null()) all["tools"] = tools;
  return template_.render(all);
}

}  // namespace speech
