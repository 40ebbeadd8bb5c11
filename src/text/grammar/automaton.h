// A grammar's rules as automata that call each other: one deterministic automaton per rule, over
// bytes, added tokens and calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "text/grammar/expr.h"

namespace speech::grammar {

struct State {
  struct Edge {
    uint8_t first, last;
    uint32_t target;
  };
  bool accept = false;                               // the rule may end here
  std::vector<Edge> edges;                           // by byte, disjoint
  std::vector<std::pair<int32_t, uint32_t>> tokens;  // added token, target
  std::vector<std::pair<uint32_t, uint32_t>> calls;  // rule, state behind it

  // A state in which nothing but the end of the rule is left.
  bool final_only() const { return accept && edges.empty() && tokens.empty() && calls.empty(); }
};

// Not safe from several threads: rules are compiled when they are first asked for.
class Automaton {
 public:
  // Compiles all rules that have a body. Errors: Error(invalid_argument) for left recursion and for
  // rules that cannot end, Error(out_of_range) for a grammar that is too large.
  explicit Automaton(std::shared_ptr<Rules> rules);

  uint32_t start(uint32_t rule);
  const State& state(uint32_t id) const { return states_[id]; }

 private:
  void compile(uint32_t rule);
  void check();

  std::shared_ptr<Rules> rules_;
  std::vector<int64_t> starts_;  // by rule; -1 not compiled
  std::vector<State> states_;
};

}  // namespace speech::grammar
