#include "tasks/generation.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace speech {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes at the end of `text` that are the beginning of a code point.
size_t incomplete_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    size_t position = text.size() - back;
    if ((static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) continue;
    return decode_utf8(text, position).cut ? back : 0;
  }
  return 0;
}

// Length of the longest end of `text` that a stop string begins with.
size_t possible_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::failed:
      return "error";
  }
  return "error";
}

Generator::Generator(LanguageModel& model, Limits limits, PromptCache* cache)
    : model_(model), limits_(limits), cache_(cache) {}

void Generator::check(const GenerationRequest& request) const {
  request.sampling.check();
  if (request.prompt.empty()) {
    fail_option(Status::invalid_argument, "prompt",
                "the prompt is empty: it needs a token at least");
  }
  auto length = static_cast<int64_t>(request.prompt.size());
  if (length >= model_.max_positions()) {
    fail_option(Status::out_of_range, "prompt",
                "the prompt has {} tokens, the model has {} positions and one must be left", length,
                model_.max_positions());
  }
  for (int32_t id : request.prompt) {
    if (id < 0 || id >= model_.vocabulary()) {
      fail_option(Status::out_of_range, "prompt", "token id {} is outside the vocabulary of {}", id,
                  model_.vocabulary());
    }
  }
}

std::shared_ptr<Generation> Generator::add(GenerationRequest request) {
  check(request);
  std::erase(request.stop, std::string());
  auto g = std::make_shared<Generation>();
  g->ids = request.prompt;
  g->request = std::move(request);
  queue_.push_back(g);
  return g;
}

GenerationResult Generator::run(GenerationRequest request) {
  std::shared_ptr<Generation> g = add(std::move(request));
  while (!g->done() && step()) {
  }
  return g->result();
}

void Generator::start(Generation& g) {
  g.started = now();
  g.random.emplace(g.request.sampling.seed);
  if (g.request.grammar) g.grammar.emplace(g.request.grammar);
  // Scores of the prompt need its logits, which no cache holds.
  if (cache_ && !g.request.prompt_log_probabilities) {
    const Generation* other = nullptr;  // of those under way, the one that shares the most
    size_t shared = 0;
    for (const auto& r : running_) {
      if (!r->cache) continue;
      size_t common = static_cast<size_t>(
          std::mismatch(r->ids.begin(), r->ids.end(), g.ids.begin(), g.ids.end() - 1).first -
          r->ids.begin());
      common = std::min(common, r->computed);
      if (common > shared) {
        shared = common;
        other = r.get();
      }
    }
    g.cache = cache_->find(g.ids, shared);
    if (!g.cache && other) g.cache = other->cache->prefix(static_cast<int64_t>(shared));
    if (g.cache) g.computed = static_cast<size_t>(g.cache->positions());
  }
  if (!g.cache) g.cache = model_.new_cache();
  g.result_.cached_tokens = static_cast<int64_t>(g.computed);
}

bool Generator::step() {
  std::erase_if(queue_, [&](auto& g) {  // who has left keeps nobody waiting
    if (!g->cancelled_) return false;
    g->started = now();
    finish(*g, Finish::cancelled);
    return true;
  });
  while (!queue_.empty() && running_.size() < static_cast<size_t>(limits_.sequences)) {
    running_.push_back(queue_.front());
    queue_.pop_front();
    Generation& g = *running_.back();
    try {
      start(g);
    } catch (const Error& error) {  // of this request alone: its grammar, memory for its cache
      g.result_.error = error.what();
      g.result_.error_status = error.status();
      finish(g, Finish::failed);
    }
  }
  for (auto& g : running_) {
    if (g->cancelled_) finish(*g, Finish::cancelled);
  }
  std::erase_if(running_, [](auto& g) { return g->done(); });
  if (running_.empty()) return !queue_.empty();

  // Everyone's next tokens; prompts share what a step may take.
  int64_t budget = running_.size() > 1 ? limits_.prompt_piece : limits_.lone_prompt_piece;
  std::vector<LanguageModel::Input> inputs;
  std::vector<Generation*> owners;
  for (auto& g : running_) {
    std::span<const int32_t> left = std::span(g->ids).subspan(g->computed);
    if (left.size() > 1) {
      if (budget <= 0) continue;
      left = left.first(static_cast<size_t>(std::min<int64_t>(budget, std::ssize(left))));
      budget -= std::ssize(left);
    }
    inputs.push_back(
        {&*g->cache, left, g->request.prompt_log_probabilities && g->result_.tokens.empty()});
    owners.push_back(g.get());
  }
  std::vector<std::vector<float>> logits;
  try {
    logits = model_.step(inputs);
  } catch (const Error& error) {
    // A failed pass leaves no sequence usable.
    for (auto& g : running_) {
      g->result_.error = error.what();
      g->result_.error_status = error.status();
      finish(*g, Finish::failed);
    }
    running_.clear();
    return true;
  }
  auto width = static_cast<size_t>(model_.vocabulary());
  for (size_t i = 0; i < owners.size(); ++i) {
    Generation& g = *owners[i];
    size_t first = g.computed;
    g.computed += inputs[i].ids.size();
    if (inputs[i].all_logits) score_prompt(g, logits[i], first, inputs[i].ids.size());
    if (g.computed < g.ids.size()) continue;  // more of the prompt to come
    if (g.result_.tokens.empty()) {
      g.result_.prompt_seconds = now() - g.started;
      if (cache_) cache_->write(g.request.prompt, *g.cache);
    }
    try {
      choose(g, std::span(logits[i]).last(width));
    } catch (const Error& error) {
      g.result_.error = error.what();
      g.result_.error_status = error.status();
      finish(g, Finish::failed);
    }
  }
  std::erase_if(running_, [](auto& g) { return g->done(); });
  return true;
}

GeneratedToken Generator::token(int32_t id, std::span<const float> logits,
                                const GenerationRequest& request) const {
  GeneratedToken t{.id = id, .bytes = std::string(model_.tokenizer()->bytes(id))};
  if (request.top_log_probabilities) {
    LogProbabilities p =
        log_probabilities(logits, id, static_cast<size_t>(*request.top_log_probabilities));
    t.log_probability = p.chosen;
    t.top = std::move(p.top);
  }
  return t;
}

void Generator::score_prompt(Generation& g, std::span<const float> logits, size_t first,
                             size_t count) {
  auto width = static_cast<size_t>(model_.vocabulary());
  if (first == 0) {
    g.result_.prompt_tokens.push_back(
        {.id = g.ids[0], .bytes = std::string(model_.tokenizer()->bytes(g.ids[0]))});
  }
  for (size_t i = 0; i < count; ++i) {
    size_t next = first + i + 1;
    if (next >= g.request.prompt.size()) break;
    g.result_.prompt_tokens.push_back(
        token(g.ids[next], logits.subspan(i * width, width), g.request));
  }
}

void Generator::choose(Generation& g, std::span<const float> logits) {
  const GenerationRequest& r = g.request;
  auto limit = static_cast<int64_t>(model_.tokenizer()->size());
  auto room = model_.max_positions() - static_cast<int64_t>(r.prompt.size());
  int64_t most = r.max_tokens < 0 ? room : std::min(room, r.max_tokens);
  if (most <= 0) return finish(g, Finish::length);

  std::span<const uint32_t> mask;
  if (g.grammar) mask = g.grammar->allowed().words;  // end-of-sequence ids included
  int32_t id = sample(logits, r.sampling, g.ids, r.prompt.size(), limit, *g.random, mask);
  const auto& eos = model_.eos();
  bool ends = std::find(eos.begin(), eos.end(), id) != eos.end();
  if (ends && (!r.ignore_eos || g.grammar)) return finish(g, Finish::stop);
  if (g.grammar) g.grammar->accept(id);
  g.ids.push_back(id);
  GeneratedToken t = token(id, logits, r);
  if (!model_.tokenizer()->is_special(id)) g.held += t.bytes;
  g.fresh.push_back(t);
  g.result_.tokens.push_back(std::move(t));

  size_t stop = std::string::npos;
  for (const std::string& s : r.stop) stop = std::min(stop, g.held.find(s));
  if (stop != std::string::npos) {
    g.held.resize(stop);
    return finish(g, Finish::stop);
  }
  if (std::ssize(g.result_.tokens) >= most) return finish(g, Finish::length);
  give_text(g, false);
}

void Generator::give_text(Generation& g, bool last) {
  size_t keep = 0;
  if (!last) {
    keep = possible_stop(g.held, g.request.stop);
    std::string_view before(g.held.data(), g.held.size() - keep);
    keep += incomplete_utf8(before);
  }
  std::string text = replace_invalid_utf8(std::string_view(g.held).substr(0, g.held.size() - keep));
  g.held.erase(0, g.held.size() - keep);
  g.result_.text += text;
  if (!g.request.on_text || (text.empty() && g.fresh.empty())) return;
  bool stop = g.request.on_text(text, g.fresh);
  g.fresh.clear();
  if (stop) g.cancelled_ = true;
}

void Generator::finish(Generation& g, Finish reason) {
  give_text(g, true);
  g.result_.finish = reason;
  g.result_.total_seconds = now() - g.started;
  // The last token chosen has no key and value yet; everything before it can serve a later prompt.
  if (cache_ && g.cache && reason != Finish::failed) {
    auto positions = static_cast<size_t>(g.cache->positions());
    cache_->store(std::span(g.ids).first(positions), std::move(*g.cache));
  }
  g.cache.reset();
  g.done_ = true;
}

}  // namespace speech
