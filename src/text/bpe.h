// Byte-level BPE as Qwen's models use it (GPT-2's byte alphabet, Qwen2's pattern, NFC): the same
// ids as Hugging Face's tokenizers give for their tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace speech {

// A token found in the text before BPE.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;     // left out by decode(..., skip_special)
  bool normalized = false;  // looked for after NFC, not before
};

// Which added tokens act in the text that is encoded.
enum class MatchAdded {
  all,          // the usual way
  not_special,  // those flagged special are read as text (split_special_tokens)
  none,         // every byte is text: for contents that users wrote
};

// What an id is in a llama.cpp file (tokenizer.ggml.token_type).
enum class GgufTokenType : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

class BpeTokenizer {
 public:
  // The tokenizer of a Hugging Face folder: tokenizer.json, or vocab.json + merges.txt with the
  // added tokens of tokenizer_config.json or added_tokens.json. Errors: io, model_file (names the
  // file and what is wrong), unsupported (another kind of tokenizer; names what).
  static std::shared_ptr<const BpeTokenizer> load(const std::string& folder);

  // The text of a tokenizer.json. `name` is for messages.
  static std::shared_ptr<const BpeTokenizer> from_json(std::string_view text,
                                                       const std::string& name);

  // The texts of vocab.json and merges.txt ("a b" a line, an optional "#version" line).
  static std::shared_ptr<const BpeTokenizer> from_vocab_and_merges(std::string_view vocab_json,
                                                                   std::string_view merges_txt,
                                                                   std::vector<AddedToken> added,
                                                                   const std::string& name);

  // The arrays tokenizer.ggml.{tokens,token_type,merges} of a llama.cpp file whose
  // tokenizer.ggml.model is "gpt2" and .pre is "qwen2" (anything else is refused). Control tokens
  // become special added tokens, user-defined ones added tokens, unused ones no tokens.
  static std::shared_ptr<const BpeTokenizer> from_gguf(std::string_view model, std::string_view pre,
                                                       std::span<const std::string_view> tokens,
                                                       std::span<const int32_t> types,
                                                       std::span<const std::string_view> merges,
                                                       const std::string& name);

  ~BpeTokenizer();
  BpeTokenizer(const BpeTokenizer&) = delete;
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;

  // Invalid UTF-8 becomes U+FFFD. No token is put in front or at the end.
  std::vector<int32_t> encode(std::string_view text, MatchAdded added = MatchAdded::all) const;

  // The same, for text of which parts come from users: `marks` has one byte per byte of text, and
  // an added token is only found where all of them are 0. Empty `marks`: all 0.
  std::vector<int32_t> encode_marked(std::string_view text, std::string_view marks) const;

  // The text of the ids; invalid UTF-8 becomes U+FFFD, ids without a token give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // One past the largest id. A model may have more rows than that: they are padding.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  // The raw bytes of a token (for an added token its text); empty if there is no such token.
  std::string_view bytes(int32_t id) const;
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const { return added_; }
  // The id of a token given by its raw bytes or its text as added token; -1 if there is none.
  int32_t find(std::string_view bytes) const;

 private:
  friend class BpeBuilder;
  struct Merge {
    uint64_t pair;  // left id << 32 | right id
    uint32_t rank;
    int32_t id;
  };
  struct Token {
    uint32_t begin = 0, size = 0;  // in arena_
    bool added = false, special = false;
  };
  struct AddedMatcher {
    std::map<std::string, int32_t, std::less<>> ids;
    std::array<std::vector<uint32_t>, 256> lengths;  // by first byte, longest first
  };

  BpeTokenizer() = default;
  int32_t find_bpe(std::string_view bytes) const;
  const Merge* find_merge(int32_t left, int32_t right) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& out) const;
  // Calls token(id) and plain(part) for what `matcher` finds in the text, in order.
  template <typename OnToken, typename OnPlain>
  void split_added(const AddedMatcher& matcher, std::string_view text, std::string_view marks,
                   MatchAdded mode, OnToken token, OnPlain plain) const;
  std::vector<int32_t> encode(std::string_view text, std::string_view marks, MatchAdded mode) const;

  std::string arena_;           // bytes of all tokens
  std::vector<Token> tokens_;   // by id
  std::vector<int32_t> slots_;  // open-addressing hash of the BPE tokens' bytes; -1 empty
  std::vector<Merge> merges_;   // open-addressing hash by pair; rank `no_rank` in an empty slot
  std::array<int32_t, 256> byte_ids_{};
  std::vector<AddedToken> added_;
  AddedMatcher before_nfc_, after_nfc_;
  bool nfc_ = true;
  bool ignore_merges_ = false;  // a piece that is a token is taken whole
};

// Text out of a stream of ids: gives only complete characters.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const BpeTokenizer> tokenizer, bool skip_special = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  std::string push(int32_t id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    return stream_.push(tokenizer_->bytes(id));
  }
  // What is left at the end (U+FFFD for a part of a character).
  std::string finish() { return stream_.finish(); }

 private:
  std::shared_ptr<const BpeTokenizer> tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace speech
