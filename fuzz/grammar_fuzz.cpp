// A grammar, and bytes that it is walked with, separated by a NUL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/utf8.h"

namespace {

std::shared_ptr<const speech::TokenTrie> byte_tokens() {
  nlohmann::json vocab;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string text;
    speech::append_utf8(text, static_cast<uint32_t>(printable ? b : next++));
    vocab[text] = b;
  }
  return std::make_shared<const speech::TokenTrie>(
      speech::BpeTokenizer::from_vocab_and_merges(vocab.dump(), "", {{256, "<eos>", true, false}},
                                                  "bytes"),
      std::vector<int32_t>{256}, 257);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokens = byte_tokens();
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t cut = std::min(text.find('\0'), size);
  try {
    speech::GrammarState state(speech::Grammar::from_text(text.substr(0, cut), tokens));
    for (char c : text.substr(std::min(cut + 1, size))) {
      int32_t id = static_cast<uint8_t>(c);
      if (state.allowed().test(id) != state.allows(id)) __builtin_trap();
      if (state.allows(id)) state.accept(id);
    }
  } catch (const speech::Error&) {
  }
  return 0;
}
