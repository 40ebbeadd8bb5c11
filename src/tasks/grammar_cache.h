// Compiled grammars by their text.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "text/grammar/grammar.h"

namespace speech {

// A text that comes again is not compiled again, and the masks that its earlier uses have made are
// there: clients send the same schema with every request. The least recently used grammars go
// first; who still uses one keeps it. Any thread; a text that several ask for at once is compiled
// by one of them.
class GrammarCache {
 public:
  struct Limits {
    size_t entries = 16;
    size_t bytes = size_t{64} << 20;  // of texts, automata and masks; the last grammar always stays
  };

  explicit GrammarCache(std::shared_ptr<const TokenTrie> tokens) : GrammarCache(tokens, Limits()) {}
  GrammarCache(std::shared_ptr<const TokenTrie> tokens, Limits limits);

  // As Grammar's functions of these names, their errors included. An error is not kept.
  std::shared_ptr<const Grammar> from_json_schema(std::string_view schema);
  std::shared_ptr<const Grammar> from_text(std::string_view text);
  std::shared_ptr<const Grammar> json_object();

  size_t size() const;
  uint64_t compiled() const;  // since the start

 private:
  using Compiled = std::shared_future<std::shared_ptr<const Grammar>>;
  struct Entry {
    std::string key;
    Compiled grammar;
  };

  std::shared_ptr<const Grammar> find(std::string key,
                                      const std::function<std::shared_ptr<const Grammar>()>& make);
  void drop_old();

  std::shared_ptr<const TokenTrie> tokens_;
  Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recent first
  uint64_t compiled_ = 0;
};

}  // namespace speech
