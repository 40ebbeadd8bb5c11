#include "nn/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace speech {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Order of candidates: larger logit first, then the lower id.
bool before(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

// Logits with bias and penalties; ids that may not come out are left out.
std::vector<Candidate> adjusted(std::span<const float> logits, const SamplingSettings& s,
                                std::span<const int32_t> context, size_t prompt_size, int64_t limit,
                                std::span<const uint32_t> allowed) {
  auto size = static_cast<size_t>(std::min<int64_t>(limit, static_cast<int64_t>(logits.size())));
  std::unordered_map<int32_t, double> changed;  // ids with a bias or in the context
  for (auto [id, bias] : s.logit_bias) {
    if (static_cast<size_t>(id) < size) changed[id] = logits[static_cast<size_t>(id)] + bias;
  }
  auto value = [&](int32_t id) -> double& {
    return changed.try_emplace(id, logits[static_cast<size_t>(id)]).first->second;
  };
  if (s.repetition_penalty != 1) {
    std::unordered_set<int32_t> seen;
    for (int32_t id : context) {
      if (static_cast<size_t>(id) >= size || !seen.insert(id).second) continue;
      double& v = value(id);
      v = v < 0 ? v * s.repetition_penalty : v / s.repetition_penalty;
    }
  }
  if (s.presence_penalty != 0 || s.frequency_penalty != 0) {
    std::unordered_map<int32_t, int64_t> counts;
    for (int32_t id : context.subspan(prompt_size)) ++counts[id];
    for (auto [id, count] : counts) {
      if (static_cast<size_t>(id) >= size) continue;
      value(id) -= s.presence_penalty + s.frequency_penalty * static_cast<double>(count);
    }
  }
  for (int32_t id : s.suppressed) {
    if (static_cast<size_t>(id) < size) changed[id] = kMinusInfinity;
  }
  std::vector<Candidate> all;
  all.reserve(size);
  auto add = [&](size_t id) {
    double v = logits[id];
    if (!changed.empty()) {
      auto it = changed.find(static_cast<int32_t>(id));
      if (it != changed.end()) v = it->second;
    }
    // NaN is no candidate: a broken model is reported below, not sampled from.
    if (v > kMinusInfinity) all.push_back({static_cast<int32_t>(id), v});
  };
  if (allowed.empty()) {
    for (size_t id = 0; id < size; ++id) add(id);
  } else {
    for (size_t word = 0; word * 32 < size && word < allowed.size(); ++word) {
      for (uint32_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
        size_t id = word * 32 + static_cast<size_t>(__builtin_ctz(bits));
        if (id < size) add(id);
      }
    }
  }
  if (all.empty()) fail(Status::internal, "no token has a finite logit to pick from");
  return all;
}

}  // namespace

void SamplingSettings::check() const {
  auto within = [](const char* name, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
      fail_option(Status::out_of_range, name, "{} is {}, expected {} to {}", name, value, low,
                  high);
    }
  };
  within("temperature", temperature, 0, 100);
  within("top_k", static_cast<double>(top_k), 0, 1e9);
  within("top_p", top_p, 0, 1);
  within("min_p", min_p, 0, 1);
  within("presence_penalty", presence_penalty, -2, 2);
  within("frequency_penalty", frequency_penalty, -2, 2);
  if (!(repetition_penalty > 0 && repetition_penalty <= 1e6)) {
    fail_option(Status::out_of_range, "repetition_penalty",
                "repetition_penalty is {}, expected a number above 0", repetition_penalty);
  }
  for (auto [id, bias] : logit_bias) {
    if (id < 0) fail_option(Status::out_of_range, "logit_bias", "token id {} is negative", id);
    within("logit_bias", bias, -100, 100);
  }
}

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double Random::uniform() {
  return static_cast<double>(next() >> 11) * 0x1.0p-53;
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingSettings& s,
                                  std::span<const int32_t> context, size_t prompt_size,
                                  int64_t limit, std::span<const uint32_t> allowed) {
  std::vector<Candidate> all = adjusted(logits, s, context, prompt_size, limit, allowed);
  if (s.temperature == 0) {
    Candidate best = *std::min_element(all.begin(), all.end(), before);
    return {{best.id, 1.0}};
  }
  for (Candidate& c : all) c.probability /= s.temperature;
  if (s.top_k > 0 && static_cast<size_t>(s.top_k) < all.size()) {
    auto kth = all.begin() + (s.top_k - 1);
    std::nth_element(all.begin(), kth, all.end(), before);
    double border = kth->probability;
    std::erase_if(all, [&](const Candidate& c) { return c.probability < border; });
  }
  auto normalize = [&] {
    double largest = kMinusInfinity, sum = 0;
    for (const Candidate& c : all) largest = std::max(largest, c.probability);
    if (largest == std::numeric_limits<double>::infinity()) {
      // Infinite logits share all the probability.
      std::erase_if(all, [&](const Candidate& c) { return c.probability != largest; });
      for (Candidate& c : all) c.probability = 1.0 / static_cast<double>(all.size());
      return;
    }
    for (Candidate& c : all) sum += c.probability = std::exp(c.probability - largest);
    for (Candidate& c : all) c.probability /= sum;
  };
  normalize();
  if (s.top_p < 1) {
    // From the least likely up, tokens go while what has gone stays within 1 - top_p. Those below
    // (1 - top_p) / n always do, which spares sorting a whole vocabulary.
    double border = (1 - s.top_p) / static_cast<double>(all.size());
    double gone = 0;
    auto rest = std::partition(all.begin(), all.end(),
                               [&](const Candidate& c) { return c.probability >= border; });
    for (auto it = rest; it != all.end(); ++it) gone += it->probability;
    all.erase(rest, all.end());
    std::sort(all.begin(), all.end(), before);
    while (all.size() > 1 && gone + all.back().probability <= 1 - s.top_p) {
      gone += all.back().probability;
      all.pop_back();
    }
  } else {
    std::sort(all.begin(), all.end(), before);
  }
  if (s.min_p > 0) {
    double border = s.min_p * all.front().probability;
    while (all.back().probability < border) all.pop_back();
  }
  double sum = 0;
  for (const Candidate& c : all) sum += c.probability;
  for (Candidate& c : all) c.probability /= sum;
  return all;
}

int32_t sample(std::span<const float> logits, const SamplingSettings& settings,
               std::span<const int32_t> context, size_t prompt_size, int64_t limit, Random& random,
               std::span<const uint32_t> allowed) {
  std::vector<Candidate> left = candidates(logits, settings, context, prompt_size, limit, allowed);
  if (left.size() == 1) return left.front().id;
  double u = random.uniform();
  for (const Candidate& c : left) {
    u -= c.probability;
    if (u < 0) return c.id;
  }
  return left.back().id;  // the probabilities summed to a hair below 1
}

LogProbabilities log_probabilities(std::span<const float> logits, int32_t id, size_t count) {
  double largest = kMinusInfinity, sum = 0;
  for (float v : logits) largest = std::max(largest, static_cast<double>(v));
  for (float v : logits) sum += std::exp(v - largest);
  double log_sum = largest + std::log(sum);
  LogProbabilities result{logits[static_cast<size_t>(id)] - log_sum, {}};
  count = std::min(count, logits.size());
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](int32_t a, int32_t b) {
                      float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < count; ++i) {
    result.top.emplace_back(order[i], logits[static_cast<size_t>(order[i])] - log_sum);
  }
  return result;
}

}  // namespace speech
