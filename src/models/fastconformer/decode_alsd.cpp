#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "compute/not_a_number.h"
#include "models/fastconformer/decode.h"

namespace speech::fastconformer {
namespace {

// Lets go of a chain link by link: its destructors must not recurse once for each token.
template <typename T, typename Next>
void release(std::shared_ptr<T>& chain, Next next) {
  for (auto link = std::move(chain); link && link.use_count() == 1;) link = std::move(next(*link));
}

// A sequence of tokens in the tree of all sequences met: equal sequences are the same node.
struct Node {
  std::shared_ptr<Node> parent;
  int32_t label;
  int64_t length;                                // tokens; the root (blank) has none
  std::shared_ptr<const Prediction> prediction;  // after the whole sequence, once it is known
  std::map<int32_t, std::weak_ptr<Node>> children;

  ~Node() {
    release(
        parent, [](Node & n) -> auto& { return n.parent; });
  }
};

std::shared_ptr<Node> child(const std::shared_ptr<Node>& node, int32_t label) {
  std::weak_ptr<Node>& slot = node->children[label];
  auto found = slot.lock();
  if (!found) {
    found = std::make_shared<Node>(Node{node, label, node->length + 1, nullptr, {}});
    slot = found;
  }
  return found;
}

struct Hypothesis {
  std::shared_ptr<Node> tokens;
  double score = 0;                          // natural log of its probability
  std::shared_ptr<const Prediction> before;  // state before its last token
  std::shared_ptr<Hypothesis> shorter;       // what it was before its last token
  int64_t frame = 0;                         // of its last token
  double log_probability = 0;                // of its last token

  ~Hypothesis() {
    release(
        shorter, [](Hypothesis & h) -> auto& { return h.shorter; });
  }
};
using Beam = std::vector<std::shared_ptr<Hypothesis>>;

double log_add(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return low == -std::numeric_limits<double>::infinity() ? high
                                                         : high + std::log1p(std::exp(low - high));
}

// Equal token sequences become one, the best of them, with the probability of all.
Beam recombine(const Beam& beam) {
  Beam kept;
  for (const auto& h : beam) {
    const auto same = std::find_if(kept.begin(), kept.end(),
                                   [&](const auto& other) { return other->tokens == h->tokens; });
    if (same == kept.end()) {
      kept.push_back(h);
    } else {
      (*same)->score = log_add((*same)->score, h->score);
    }
  }
  return kept;
}

// A sequence shorter than every one in the beam cannot come again; its prediction is let go.
void forget_short(const Beam& beam) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const auto& h : beam) shortest = std::min(shortest, h->tokens->length);
  for (const auto& h : beam) {
    for (Node* n = h->tokens.get(); n; n = n->parent.get()) {
      if (n->length >= shortest) continue;
      if (!n->prediction) break;
      n->prediction = nullptr;
    }
  }
}

void trace_beams(Trace& trace, const std::vector<int32_t>& tokens, const std::vector<int32_t>& last,
                 const std::vector<float>& scores, int64_t beam_size) {
  const int64_t steps = static_cast<int64_t>(tokens.size()) / beam_size;
  trace.add_ints("90_beam_tokens", {steps, beam_size}, tokens);
  trace.add_ints("91_beam_last", {steps, beam_size}, last);
  trace.add("92_beam_score", {steps, beam_size}, scores);
}

}  // namespace

Emissions decode_alsd(Run& run, const Transducer& model, const Tensor& encoder_side,
                      const Utterance& utterance) {
  const DecoderConfig& c = model.config();
  const int64_t frames = utterance.frames;
  const auto beam_size = static_cast<size_t>(std::min(c.beam_size, c.blank));
  const int64_t most_tokens =
      c.max_target_tokens
          ? *c.max_target_tokens
          : static_cast<int64_t>(std::min(
                static_cast<double>(c.max_target_ratio) * static_cast<double>(frames), 1e15));
  Beam beam{std::make_shared<Hypothesis>()};
  beam[0]->tokens = std::make_shared<Node>(Node{nullptr, c.blank, 0, nullptr, {}});
  beam[0]->before = std::make_shared<Prediction>(model.start());
  Beam finished;
  std::vector<int32_t> traced_tokens, traced_last;
  std::vector<float> traced_scores;

  for (int64_t step = 0; step < frames + most_tokens; ++step) {
    Workspace::Scope scope(run.workspace);
    // A hypothesis of n tokens stands at frame step - n; those past the end are finished.
    Beam active;
    for (const auto& h : beam) {
      if (step - h->tokens->length < frames) active.push_back(h);
    }
    if (active.empty()) break;

    std::vector<Hypothesis*> unknown;
    std::vector<int32_t> labels;
    std::vector<const Prediction*> before;
    for (const auto& h : active) {
      if (h->tokens->prediction) continue;
      unknown.push_back(h.get());
      labels.push_back(h->tokens->label);
      before.push_back(h->before.get());
    }
    if (!unknown.empty()) {
      std::vector<Prediction> after = model.predict(run, labels, before);
      for (size_t i = 0; i < unknown.size(); ++i) {
        unknown[i]->tokens->prediction = std::make_shared<Prediction>(std::move(after[i]));
      }
    }
    std::vector<Transducer::Query> queries;
    for (const auto& h : active) {
      queries.push_back(
          {utterance.first + step - h->tokens->length, 1, h->tokens->prediction.get()});
    }
    const Tensor logits = model.joint(run, encoder_side, queries);
    run.backend.log_softmax(logits, logits);
    std::vector<float> values(static_cast<size_t>(logits.size()));
    run.backend.read(logits, values);
    if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
      throw NotANumber(fmt::format("NaN at step {} of the beam search", step));
    }

    // Each goes on with a blank and with the best tokens.
    Beam grown;
    for (size_t i = 0; i < active.size(); ++i) {
      const Hypothesis& h = *active[i];
      const auto lp = std::span<const float>(values).subspan(i * static_cast<size_t>(c.blank + 1),
                                                             static_cast<size_t>(c.blank + 1));
      auto stays = std::make_shared<Hypothesis>(h);
      stays->score += lp.back();
      grown.push_back(stays);
      const int64_t frame = step - h.tokens->length;
      if (frame == frames - 1) finished.push_back(stays);

      std::vector<int32_t> best(static_cast<size_t>(c.blank));
      for (size_t k = 0; k < best.size(); ++k) best[k] = static_cast<int32_t>(k);
      const auto better = [&](int32_t a, int32_t b) {
        const float x = lp[static_cast<size_t>(a)], y = lp[static_cast<size_t>(b)];
        return x > y || (x == y && a < b);
      };
      std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(beam_size),
                        best.end(), better);
      for (size_t k = 0; k < beam_size; ++k) {
        const double p = lp[static_cast<size_t>(best[k])];
        grown.push_back(std::make_shared<Hypothesis>(Hypothesis{
            child(h.tokens, best[k]), h.score + p, h.tokens->prediction, active[i], frame, p}));
      }
    }
    std::stable_sort(grown.begin(), grown.end(),
                     [](const auto& a, const auto& b) { return a->score > b->score; });
    grown.resize(std::min(grown.size(), beam_size));
    beam = recombine(grown);
    forget_short(beam);

    if (run.trace) {
      for (size_t i = 0; i < beam_size; ++i) {
        const bool used = i < beam.size();
        traced_tokens.push_back(used ? static_cast<int32_t>(beam[i]->tokens->length) : -1);
        traced_last.push_back(used ? beam[i]->tokens->label : -1);
        traced_scores.push_back(used ? static_cast<float>(beam[i]->score)
                                     : -std::numeric_limits<float>::infinity());
      }
    }
  }
  if (run.trace) {
    trace_beams(*run.trace, traced_tokens, traced_last, traced_scores,
                static_cast<int64_t>(beam_size));
  }

  // The best finished one; the length that scores are divided by counts the leading blank. When
  // none has reached the last frame, what stands first in the beam.
  std::shared_ptr<const Hypothesis> best = beam[0];
  const auto rank = [&](const Hypothesis& h) {
    return c.score_norm ? h.score / static_cast<double>(h.tokens->length + 1) : h.score;
  };
  for (const auto& h : finished) {
    if (h == finished.front() || rank(*h) > rank(*best)) best = h;
  }
  Emissions out;
  for (const Hypothesis* h = best.get(); h && h->tokens->parent; h = h->shorter.get()) {
    out.push_back({h->tokens->label, h->frame, h->frame + 1, h->log_probability});
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace speech::fastconformer
