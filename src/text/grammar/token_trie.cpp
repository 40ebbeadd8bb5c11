#include "text/grammar/token_trie.h"

#include <algorithm>

#include "base/error.h"

namespace speech {

TokenTrie::TokenTrie(std::shared_ptr<const BpeTokenizer> tokenizer, std::vector<int32_t> eos,
                     int32_t rows)
    : tokenizer_(std::move(tokenizer)), eos_(std::move(eos)), rows_(static_cast<size_t>(rows)) {
  if (rows < tokenizer_->size()) {
    fail(Status::model_file, "the tokenizer has {} tokens, the model only {} rows",
         tokenizer_->size(), rows);
  }
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (int32_t id = 0; id < tokenizer_->size(); ++id) {
    std::string_view bytes = tokenizer_->bytes(id);
    if (bytes.empty() || bytes.size() > longest || tokenizer_->is_added(id) || is_eos(id)) continue;
    sorted.emplace_back(bytes, id);
  }
  for (int32_t id : eos_) {
    if (id < 0 || id >= rows) fail(Status::model_file, "the EOS id {} is not a row", id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> path;  // nodes from the root to the last one
  std::string_view last;
  for (auto [bytes, id] : sorted) {
    size_t common = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    if (common == bytes.size()) {  // equal: a shorter one would have come first
      duplicates_.emplace_back(id, static_cast<int32_t>(nodes_[path.back()].token));
      continue;
    }
    while (path.size() > common) {
      nodes_[path.back()].behind = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<uint8_t>(bytes[i]), static_cast<uint16_t>(i + 1), no_token(), 0});
    }
    nodes_.back().token = static_cast<uint32_t>(id);
    last = bytes;
  }
  for (uint32_t node : path) nodes_[node].behind = static_cast<uint32_t>(nodes_.size());
}

bool TokenTrie::is_eos(int32_t id) const {
  return std::find(eos_.begin(), eos_.end(), id) != eos_.end();
}

}  // namespace speech
