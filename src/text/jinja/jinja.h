// Chat templates: the part of Jinja 2 that Hugging Face chat templates use, rendered as
// transformers does (trim_blocks, lstrip_blocks, its tojson).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace speech {

namespace jinja {
struct Node;
}

// Text with one mark per byte: 1 where the byte came from the variables (what users wrote), 0 where
// it is the template's own. BpeTokenizer::encode_marked takes both.
struct MarkedText {
  std::string text;
  std::string marks;

  void append(std::string_view s, bool marked) {
    text += s;
    marks.append(s.size(), marked ? '\1' : '\0');
  }
  void append(const MarkedText& o) {
    text += o.text;
    marks += o.marks;
  }
};

class JinjaTemplate {
 public:
  // Errors: Error(model_file) for a syntax error, Error(unsupported) for a statement, filter, test
  // or function this renderer does not have; both name it and its line.
  explicit JinjaTemplate(std::string_view source);
  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;

  // Variables by name. Errors: Error(invalid_argument) for raise_exception() and for what Python
  // would raise (a missing attribute, wrong types), Error(unsupported) for a method that is missing
  // here, Error(out_of_range) for a template that does not end. Safe from several threads.
  MarkedText render(const nlohmann::ordered_json& variables) const;

 private:
  std::unique_ptr<const jinja::Node> root_;
};

}  // namespace speech
