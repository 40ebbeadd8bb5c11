// The tokens of a vocabulary as a tree of their bytes, and sets of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "text/bpe.h"

namespace speech {

// One bit per token id, 32 to a word.
struct Bitmask {
  std::vector<uint32_t> words;

  explicit Bitmask(size_t bits = 0) : words((bits + 31) / 32) {}
  bool test(int32_t id) const {
    auto i = static_cast<size_t>(id);
    return id >= 0 && i / 32 < words.size() && (words[i / 32] >> (i % 32) & 1);
  }
  void set(int32_t id) { words[static_cast<size_t>(id) / 32] |= 1u << (id % 32); }
  void add(const Bitmask& o) {
    for (size_t i = 0; i < words.size(); ++i) words[i] |= o.words[i];
  }
  bool any() const {
    for (uint32_t w : words) {
      if (w) return true;
    }
    return false;
  }
};

// Made once per model and shared by its grammars.
class TokenTrie {
 public:
  struct Node {
    uint8_t byte;
    uint16_t depth;   // bytes from the root, at least 1
    uint32_t token;   // that ends here, or no_token()
    uint32_t behind;  // index of the first node that is not below this one
  };

  // Bytes. No real token comes near; longer ones are left out, so never allowed.
  static constexpr size_t longest = 1024;

  // eos: the ids that end a text. rows: the model's vocabulary with its padding rows (at least the
  // tokenizer's size); masks have so many bits.
  TokenTrie(std::shared_ptr<const BpeTokenizer> tokenizer, std::vector<int32_t> eos, int32_t rows);

  const BpeTokenizer& tokenizer() const { return *tokenizer_; }
  std::span<const int32_t> eos() const { return eos_; }
  bool is_eos(int32_t id) const;
  size_t rows() const { return rows_; }
  // The first bit behind a mask's words.
  uint32_t no_token() const { return static_cast<uint32_t>((rows_ + 31) / 32 * 32); }
  // In depth-first order, children by byte. Added tokens are not in it.
  std::span<const Node> nodes() const { return nodes_; }
  // Tokens with the bytes of another one, which is in the tree.
  std::span<const std::pair<int32_t, int32_t>> duplicates() const { return duplicates_; }

 private:
  std::shared_ptr<const BpeTokenizer> tokenizer_;
  std::vector<int32_t> eos_;
  size_t rows_;
  std::vector<Node> nodes_;
  std::vector<std::pair<int32_t, int32_t>> duplicates_;
};

}  // namespace speech
