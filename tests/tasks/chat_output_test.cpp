#include "tasks/chat_output.h"

#include <gtest/gtest.h>

namespace speech {
namespace {

std::string show(const std::vector<ChatDelta>& deltas) {
  std::string text;
  ChatDelta::Kind previous = ChatDelta::Kind::tool_call;
  for (const ChatDelta& d : deltas) {
    if (d.kind == ChatDelta::Kind::tool_call) {
      text += "C[" + d.name + " " + d.arguments + "]";
    } else {
      if (d.kind != previous || text.empty())
        text += d.kind == ChatDelta::Kind::content ? "|" : "R:";
      text += d.text;
    }
    previous = d.kind;
  }
  return text;
}

// The same pieces however the text is cut.
void expect_parse(const std::string& text, const std::string& expected, bool tools = true,
                  bool thinking = false) {
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    ChatOutputParser parser(tools, thinking);
    std::vector<ChatDelta> all;
    for (size_t at = 0; at < text.size(); at += cut) {
      for (auto& d : parser.push(std::string_view(text).substr(at, cut))) all.push_back(d);
    }
    for (auto& d : parser.finish()) all.push_back(d);
    ASSERT_EQ(show(all), expected) << "cut every " << cut;
  }
}

TEST(ChatOutput, PlainText) {
  expect_parse("Hello <b>there</b>\n\nyou", "|Hello <b>there</b>\n\nyou");
  expect_parse("a <tool_call> b", "|a <tool_call> b", false);
}

TEST(ChatOutput, Reasoning) {
  expect_parse("<think>\nOne.\nTwo.\n</think>\n\nAnswer", "R:One.\nTwo.|Answer");
  expect_parse("<think>\n\n</think>\n\nAnswer", "|Answer");
  expect_parse("Still thinking\n</think>\n\nDone", "R:Still thinking|Done", true, true);
  expect_parse("<think>cut off", "R:cut off");
  expect_parse("<thin", "|<thin");
}

TEST(ChatOutput, ToolCalls) {
  std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>";
  expect_parse(call, "C[f {\"b\":1,\"a\":[2]}]");
  expect_parse("Look:\n" + call + "\n" + call,
               "|Look:C[f {\"b\":1,\"a\":[2]}]C[f {\"b\":1,\"a\":[2]}]");
  expect_parse("<tool_call>\nnot json\n</tool_call> x", "|<tool_call>\nnot json\n</tool_call> x");
  expect_parse("<tool_call>\n{\"name\": \"f\"", "|<tool_call>\n{\"name\": \"f\"");
  expect_parse("<think>\nhm\n</think>\n\n" + call, "R:hmC[f {\"b\":1,\"a\":[2]}]");
}

}  // namespace
}  // namespace speech
