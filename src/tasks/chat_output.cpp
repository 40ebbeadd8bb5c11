#include "tasks/chat_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace speech {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>",
                           kCallEnd = "</tool_call>";

// Length of the longest end of `text` that `mark` begins with.
size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

size_t leading_newlines(std::string_view text) {
  size_t n = text.find_first_not_of('\n');
  return n == std::string_view::npos ? text.size() : n;
}

}  // namespace

void ChatOutputParser::emit(std::vector<ChatDelta>& out, ChatDelta::Kind kind,
                            std::string_view text) {
  if (text.empty()) return;
  if (!out.empty() && out.back().kind == kind) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text), {}, {}});
  }
}

// One transition; false when more text is needed.
bool ChatOutputParser::step(std::vector<ChatDelta>& out, bool last) {
  std::string_view text = buffer_;
  auto consume = [&](size_t n) { buffer_.erase(0, n); };
  // Gives out what stands before `mark`, or before what could become it.
  auto until = [&](std::string_view mark, ChatDelta::Kind kind, State next) {
    size_t at = text.find(mark);
    if (at != std::string_view::npos) {
      std::string_view before = text.substr(0, at);
      while (before.ends_with('\n')) before.remove_suffix(1);
      emit(out, kind, before);
      consume(at + mark.size());
      state_ = next;
      return true;
    }
    size_t keep = last ? 0 : partial_mark(text, mark);
    std::string_view safe = text.substr(0, text.size() - keep);
    // Newlines may turn out to stand before the mark.
    while (!last && safe.ends_with('\n')) safe.remove_suffix(1);
    size_t n = safe.size();
    emit(out, kind, safe);
    consume(n);
    return false;
  };
  switch (state_) {
    case State::start: {
      size_t begin = text.find_first_not_of(" \n\r\t");
      if (begin == std::string_view::npos) {
        if (!last) return false;
        state_ = State::content;
        return true;
      }
      std::string_view rest = text.substr(begin);
      if (rest.starts_with(kThink)) {
        consume(begin + kThink.size());
        state_ = State::before_reasoning;
        return true;
      }
      if (!last && kThink.starts_with(rest)) return false;
      state_ = State::content;
      return true;
    }
    case State::reasoning:
      return until(kThinkEnd, ChatDelta::Kind::reasoning, State::before_content);
    case State::before_reasoning:
    case State::before_content: {
      size_t n = leading_newlines(text);
      bool more = n < text.size();
      consume(n);
      if (more) {
        state_ = state_ == State::before_reasoning ? State::reasoning : State::content;
      }
      return more;
    }
    case State::content:
      if (!tools_) {
        emit(out, ChatDelta::Kind::content, text);
        consume(text.size());
        return false;
      }
      return until(kCall, ChatDelta::Kind::content, State::call);
    case State::call: {
      size_t at = text.find(kCallEnd);
      if (at == std::string_view::npos && !last) return false;
      bool closed = at != std::string_view::npos;
      std::string inside(text.substr(0, closed ? at : text.size()));
      auto call = nlohmann::ordered_json::parse(inside, nullptr, false);
      if (closed && call.is_object() && call.contains("name") && call["name"].is_string()) {
        auto arguments = call.value("arguments", nlohmann::ordered_json::object());
        out.push_back({ChatDelta::Kind::tool_call,
                       {},
                       call["name"].get<std::string>(),
                       arguments.is_string() ? arguments.get<std::string>() : arguments.dump()});
      } else {
        emit(out, ChatDelta::Kind::content, std::string(kCall) + inside);
        if (closed) emit(out, ChatDelta::Kind::content, kCallEnd);
      }
      consume(closed ? at + kCallEnd.size() : text.size());
      state_ = State::before_content;  // newlines between calls are the template's
      return closed;
    }
  }
  return false;
}

std::vector<ChatDelta> ChatOutputParser::push(std::string_view text) {
  buffer_ += text;
  std::vector<ChatDelta> out;
  while (!buffer_.empty() && step(out, false)) {
  }
  return out;
}

std::vector<ChatDelta> ChatOutputParser::finish() {
  std::vector<ChatDelta> out;
  while (!buffer_.empty() && step(out, true)) {
  }
  return out;
}

}  // namespace speech
