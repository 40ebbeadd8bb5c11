// The official Qwen3 tokenizer for tests.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "test_data.h"
#include "text/bpe.h"

namespace speech::testing {

// The contents of a file packed with xz.
inline std::string read_packed(const std::string& path) {
  std::unique_ptr<archive, decltype(&archive_read_free)> a(archive_read_new(), archive_read_free);
  archive_read_support_filter_all(a.get());
  archive_read_support_format_raw(a.get());
  archive_entry* entry = nullptr;
  std::string out;
  if (archive_read_open_filename(a.get(), path.c_str(), 1 << 16) != ARCHIVE_OK ||
      archive_read_next_header(a.get(), &entry) != ARCHIVE_OK) {
    ADD_FAILURE() << path << ": " << archive_error_string(a.get());
    return out;
  }
  std::string buffer(1 << 20, '\0');
  for (la_ssize_t n; (n = archive_read_data(a.get(), buffer.data(), buffer.size())) > 0;) {
    out.append(buffer, 0, static_cast<size_t>(n));
  }
  return out;
}

inline const std::string& qwen3_tokenizer_json() {
  static const std::string text = read_packed(data_path("text/qwen3/tokenizer.json.xz"));
  return text;
}

inline std::shared_ptr<const BpeTokenizer> qwen3_tokenizer() {
  static const std::shared_ptr<const BpeTokenizer> tokenizer =
      BpeTokenizer::from_json(qwen3_tokenizer_json(), "tokenizer.json");
  return tokenizer;
}

inline nlohmann::ordered_json read_json(const std::string& name) {
  return nlohmann::ordered_json::parse(read_text_file(data_path(name)));
}

}  // namespace speech::testing
