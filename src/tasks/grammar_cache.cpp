#include "tasks/grammar_cache.h"

#include <algorithm>
#include <chrono>

namespace speech {

GrammarCache::GrammarCache(std::shared_ptr<const TokenTrie> tokens, Limits limits)
    : tokens_(std::move(tokens)), limits_(limits) {}

std::shared_ptr<const Grammar> GrammarCache::from_json_schema(std::string_view schema) {
  return find("schema:" + std::string(schema),
              [&] { return Grammar::from_json_schema(schema, tokens_); });
}

std::shared_ptr<const Grammar> GrammarCache::from_text(std::string_view text) {
  return find("text:" + std::string(text), [&] { return Grammar::from_text(text, tokens_); });
}

std::shared_ptr<const Grammar> GrammarCache::json_object() {
  return find("object", [&] { return Grammar::json_object(tokens_); });
}

size_t GrammarCache::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t GrammarCache::compiled() const {
  std::lock_guard lock(mutex_);
  return compiled_;
}

std::shared_ptr<const Grammar> GrammarCache::find(
    std::string key, const std::function<std::shared_ptr<const Grammar>()>& make) {
  auto same = [&](const Entry& e) { return e.key == key; };
  std::promise<std::shared_ptr<const Grammar>> promise;
  Compiled known;
  {
    std::lock_guard lock(mutex_);
    auto entry = std::find_if(entries_.begin(), entries_.end(), same);
    if (entry != entries_.end()) {
      known = entry->grammar;
      entries_.splice(entries_.begin(), entries_, entry);
    } else {
      entries_.push_front({key, promise.get_future().share()});
      ++compiled_;
    }
    drop_old();
  }
  if (known.valid()) return known.get();  // waits for whoever compiles it
  try {
    std::shared_ptr<const Grammar> grammar = make();
    promise.set_value(grammar);
    return grammar;
  } catch (...) {
    {
      std::lock_guard lock(mutex_);
      entries_.remove_if(same);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

void GrammarCache::drop_old() {
  auto bytes = [](const Entry& e) {
    bool ready = e.grammar.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return e.key.size() + (ready ? e.grammar.get()->bytes() : 0);
  };
  size_t total = 0;
  for (const Entry& e : entries_) total += bytes(e);
  while (entries_.size() > limits_.entries || (entries_.size() > 1 && total > limits_.bytes)) {
    total -= std::min(total, bytes(entries_.back()));  // one in use may grow meanwhile
    entries_.pop_back();
  }
}

}  // namespace speech
