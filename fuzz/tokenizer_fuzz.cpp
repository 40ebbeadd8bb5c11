// The first byte chooses: a tokenizer.json, or a text for a tokenizer of single bytes.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/bpe.h"
#include "text/utf8.h"

namespace {

std::shared_ptr<const speech::BpeTokenizer> byte_tokenizer() {
  nlohmann::json vocab;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string text;
    speech::append_utf8(text, static_cast<uint32_t>(printable ? b : next++));
    vocab[text] = b;
  }
  vocab["aa"] = 256;
  vocab["aaaa"] = 257;
  return speech::BpeTokenizer::from_vocab_and_merges(vocab.dump(), "a a\naa aa\n",
                                                     {{258, "<x>", true, false}}, "bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2) {
    try {
      speech::BpeTokenizer::from_json(text, "fuzz");
    } catch (const speech::Error&) {
    }
    return 0;
  }
  static const auto tokenizer = byte_tokenizer();
  std::string decoded = tokenizer->decode(tokenizer->encode(text));
  // NFC is stable: a second round gives the same.
  if (tokenizer->decode(tokenizer->encode(decoded)) != decoded) __builtin_trap();
  return 0;
}
