// Time of grammar masks. Run with SPEECH_TOKENIZER=<folder with tokenizer.json> (the official Qwen3
// tokenizer for the numbers of the documentation).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "text/grammar/grammar.h"

namespace {

using namespace speech;

std::shared_ptr<const TokenTrie> tokens() {
  static const std::shared_ptr<const TokenTrie> trie = []() -> std::shared_ptr<const TokenTrie> {
    const char* folder = std::getenv("SPEECH_TOKENIZER");
    if (!folder) return nullptr;
    auto tokenizer = BpeTokenizer::load(folder);
    int32_t eos = tokenizer->find("<|im_end|>");
    return std::make_shared<const TokenTrie>(tokenizer, std::vector<int32_t>{eos},
                                             (tokenizer->size() + 127) / 128 * 128);
  }();
  return trie;
}

constexpr std::string_view schema = R"({"type": "object", "properties": {
  "name": {"type": "string"}, "code": {"type": "string", "maxLength": 200},
  "tags": {"type": "array", "items": {"type": "string"}}, "size": {"type": "number"}},
  "required": ["name", "code", "tags", "size"]})";

const std::string text =
    R"({"name": "A rather long name of something", "code": "abcdefghijklmnopqrstuvwxyz", )"
    R"("tags": ["one", "two \"quoted\"", "three"], "size": -12.5e3})";

void tokenizer_load(benchmark::State& state) {
  const char* folder = std::getenv("SPEECH_TOKENIZER");
  if (!folder) return state.SkipWithError("SPEECH_TOKENIZER is not set");
  for (auto _ : state) benchmark::DoNotOptimize(BpeTokenizer::load(folder));
}
BENCHMARK(tokenizer_load)->Unit(benchmark::kMillisecond);

void token_trie(benchmark::State& state) {
  if (!tokens()) return state.SkipWithError("SPEECH_TOKENIZER is not set");
  auto tokenizer = BpeTokenizer::load(std::getenv("SPEECH_TOKENIZER"));
  for (auto _ : state) TokenTrie(tokenizer, {}, tokenizer->size());
}
BENCHMARK(token_trie)->Unit(benchmark::kMillisecond);

// A whole text with a grammar that is new (cold) or was used before; items are tokens.
void masks(benchmark::State& state, bool cold) {
  if (!tokens()) return state.SkipWithError("SPEECH_TOKENIZER is not set");
  std::vector<int32_t> ids = tokens()->tokenizer().encode(text);
  auto grammar = Grammar::from_json_schema(schema, tokens());
  for (auto _ : state) {
    if (cold) grammar = Grammar::from_json_schema(schema, tokens());
    GrammarState s(grammar);
    for (int32_t id : ids) {
      benchmark::DoNotOptimize(s.allowed());
      s.accept(id);
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}
BENCHMARK_CAPTURE(masks, cold, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(masks, warm, false)->Unit(benchmark::kMicrosecond);

// The dearest single masks: inside a string, of a grammar that is new.
void mask_in_string(benchmark::State& state) {
  if (!tokens()) return state.SkipWithError("SPEECH_TOKENIZER is not set");
  for (auto _ : state) {
    state.PauseTiming();
    GrammarState s(Grammar::from_json_schema(R"({"type": "string", "maxLength": 100})", tokens()));
    s.accept(tokens()->tokenizer().find("\""));
    state.ResumeTiming();
    benchmark::DoNotOptimize(s.allowed());
  }
}
BENCHMARK(mask_in_string)->Unit(benchmark::kMicrosecond);

}  // namespace
