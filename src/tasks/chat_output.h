// What a Qwen3 model's answer consists of: reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace speech {

// One piece of an answer, in the order it was written.
struct ChatDelta {
  enum class Kind { reasoning, content, tool_call } kind;
  std::string text;       // reasoning or content
  std::string name;       // of a tool call, whole at once
  std::string arguments;  // its JSON text
};

// Splits streamed text at <think>, </think>, <tool_call> and </tool_call>. Text that could be the
// beginning of such a mark is held back. Newlines after </think> and around tool calls are dropped,
// as the template would put them back. A call that is not valid JSON stays content.
class ChatOutputParser {
 public:
  // `tools`: whether <tool_call> means a call. `thinking`: the prompt ended inside <think>.
  ChatOutputParser(bool tools, bool thinking)
      : tools_(tools), state_(thinking ? State::before_reasoning : State::start) {}

  std::vector<ChatDelta> push(std::string_view text);
  std::vector<ChatDelta> finish();  // what was held back

 private:
  enum class State { start, before_reasoning, reasoning, before_content, content, call };

  bool step(std::vector<ChatDelta>& out, bool last);
  void emit(std::vector<ChatDelta>& out, ChatDelta::Kind kind, std::string_view text);

  bool tools_;
  State state_;
  std::string buffer_;
};

}  // namespace speech
