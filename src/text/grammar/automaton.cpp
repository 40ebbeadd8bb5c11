#include "text/grammar/automaton.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "text/utf8.h"

namespace speech::grammar {
namespace {

constexpr size_t max_nodes = 200'000;      // of one rule's nondeterministic automaton
constexpr size_t max_states = 100'000;     // of all rules
constexpr size_t max_members = 5'000'000;  // of all sets of a rule's states
constexpr size_t max_rules = 10'000;
constexpr int max_depth = 600;  // of an expression

[[noreturn]] void too_large() {
  fail(Status::out_of_range,
       "the grammar is too large (large repetition counts are the usual reason)");
}

// Thompson's construction.
struct Nfa {
  struct Node {
    std::vector<uint32_t> empty;
    std::vector<State::Edge> edges;
    std::vector<std::pair<int32_t, uint32_t>> tokens;
    std::vector<std::pair<uint32_t, uint32_t>> calls;
  };
  std::vector<Node> nodes;

  uint32_t add() {
    if (nodes.size() >= max_nodes) too_large();
    nodes.emplace_back();
    return static_cast<uint32_t>(nodes.size() - 1);
  }

  // Adds what `e` matches between the nodes `from` and `to`.
  void build(const Expr& e, uint32_t from, uint32_t to, int depth = 0) {
    if (depth > max_depth) too_large();
    switch (e.kind) {
      case Expr::Kind::bytes: {
        uint32_t at = from;
        for (size_t i = 0; i < e.bytes.size(); ++i) {
          uint32_t next = i + 1 == e.bytes.size() ? to : add();
          auto byte = static_cast<uint8_t>(e.bytes[i]);
          nodes[at].edges.push_back({byte, byte, next});
          at = next;
        }
        if (e.bytes.empty()) nodes[from].empty.push_back(to);
        break;
      }
      case Expr::Kind::chars:
        for (auto [first, last] : e.chars) characters(first, last, from, to);
        break;
      case Expr::Kind::sequence: {
        uint32_t at = from;
        for (size_t i = 0; i < e.kids.size(); ++i) {
          uint32_t next = i + 1 == e.kids.size() ? to : add();
          build(*e.kids[i], at, next, depth + 1);
          at = next;
        }
        if (e.kids.empty()) nodes[from].empty.push_back(to);
        break;
      }
      case Expr::Kind::choice:
        for (const ExprPtr& kid : e.kids) {
          // Loops in a kid must not lead into its neighbours.
          uint32_t begin = add();
          nodes[from].empty.push_back(begin);
          build(*kid, begin, to, depth + 1);
        }
        break;
      case Expr::Kind::repeat: {
        uint32_t at = from;
        auto again = [&] {
          uint32_t next = add();
          build(*e.kids[0], at, next, depth + 1);
          at = next;
        };
        for (int64_t i = 0; i < e.min; ++i) again();
        if (e.max == unbounded) {
          uint32_t loop = add(), back = add();
          nodes[at].empty.push_back(loop);
          build(*e.kids[0], loop, back, depth + 1);
          nodes[back].empty.push_back(loop);
          nodes[loop].empty.push_back(to);
        } else {
          for (int64_t i = e.min; i < e.max; ++i) {
            nodes[at].empty.push_back(to);
            again();
          }
          nodes[at].empty.push_back(to);
        }
        break;
      }
      case Expr::Kind::rule:
        nodes[from].calls.emplace_back(e.rule, to);
        break;
      case Expr::Kind::token:
        nodes[from].tokens.emplace_back(e.token, to);
        break;
    }
  }

  // A range of code points as sequences of byte ranges: it is cut until all code points of a part
  // have the same length and their trailing bytes run through whole ranges.
  void characters(uint32_t first, uint32_t last, uint32_t from, uint32_t to) {
    for (uint32_t border : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (first <= border && last > border) {
        characters(first, border, from, to);
        characters(border + 1, last, from, to);
        return;
      }
    }
    for (int bits : {6, 12, 18}) {
      uint32_t low = (1u << bits) - 1;
      if (last <= 0x7F || (first & ~low) == (last & ~low)) continue;
      if ((first & low) != 0) {
        characters(first, first | low, from, to);
        characters((first | low) + 1, last, from, to);
        return;
      }
      if ((last & low) != low) {
        characters(first, (last & ~low) - 1, from, to);
        characters(last & ~low, last, from, to);
        return;
      }
    }
    std::string a, b;
    append_utf8(a, first);
    append_utf8(b, last);
    uint32_t at = from;
    for (size_t i = 0; i < a.size(); ++i) {
      uint32_t next = i + 1 == a.size() ? to : add();
      nodes[at].edges.push_back({static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]), next});
      at = next;
    }
  }
};

using Set = std::vector<uint32_t>;

// All that can be reached from the set without reading; sorted.
Set closure(const Nfa& nfa, Set set, std::vector<uint32_t>& seen, uint32_t stamp) {
  Set out;
  while (!set.empty()) {
    uint32_t at = set.back();
    set.pop_back();
    if (seen[at] == stamp) continue;
    seen[at] = stamp;
    out.push_back(at);
    for (uint32_t next : nfa.nodes[at].empty) set.push_back(next);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Automaton::Automaton(std::shared_ptr<Rules> rules) : rules_(std::move(rules)) {
  if (rules_->list.size() > max_rules) too_large();
  for (uint32_t rule = 0; rule < rules_->list.size(); ++rule) {
    if (rules_->list[rule].body) compile(rule);
  }
  check();
}

uint32_t Automaton::start(uint32_t rule) {
  if (rule >= starts_.size() || starts_[rule] < 0) compile(rule);
  return static_cast<uint32_t>(starts_[rule]);
}

void Automaton::compile(uint32_t rule) {
  ExprPtr body = rules_->list[rule].body;
  if (!body) {
    auto make = rules_->list[rule].make;  // a copy: it may add rules
    size_t before = rules_->list.size();
    body = make();
    // What it adds are rules to be made, but for those that hold what it needs.
    for (size_t i = before; i < rules_->list.size(); ++i) {
      if (rules_->list[i].body) compile(static_cast<uint32_t>(i));
    }
  }
  Nfa nfa;
  uint32_t first = nfa.add(), last = nfa.add();
  nfa.build(*body, first, last);

  std::map<Set, uint32_t> ids;
  std::vector<std::pair<Set, uint32_t>> todo;
  std::vector<uint32_t> seen(nfa.nodes.size());
  uint32_t stamp = 0;
  size_t members = 0;
  auto state_of = [&](Set set) {
    set = closure(nfa, std::move(set), seen, ++stamp);
    auto [it, is_new] = ids.emplace(set, static_cast<uint32_t>(states_.size()));
    if (is_new) {
      members += set.size();
      if (states_.size() >= max_states || members > max_members) too_large();
      states_.emplace_back();
      todo.emplace_back(std::move(set), it->second);
    }
    return it->second;
  };
  uint32_t begin = state_of({first});
  while (!todo.empty()) {
    auto [set, id] = std::move(todo.back());
    todo.pop_back();
    State state;
    state.accept = std::binary_search(set.begin(), set.end(), last);
    std::map<uint32_t, Set> calls;
    std::map<int32_t, Set> tokens;
    std::vector<State::Edge> edges;
    std::array<bool, 257> border{};
    for (uint32_t n : set) {
      for (auto [called, next] : nfa.nodes[n].calls) calls[called].push_back(next);
      for (auto [t, next] : nfa.nodes[n].tokens) tokens[t].push_back(next);
      for (const State::Edge& e : nfa.nodes[n].edges) {
        edges.push_back(e);
        border[e.first] = border[e.last + 1] = true;
      }
    }
    for (size_t b = 0; b < 256;) {
      size_t end = b + 1;
      while (end < 256 && !border[end]) ++end;
      Set targets;
      for (const State::Edge& e : edges) {
        if (e.first <= b && b <= e.last) targets.push_back(e.target);
      }
      if (!targets.empty()) {
        uint32_t target = state_of(std::move(targets));
        if (!state.edges.empty() && state.edges.back().target == target &&
            state.edges.back().last + 1u == b) {
          state.edges.back().last = static_cast<uint8_t>(end - 1);
        } else {
          state.edges.push_back({static_cast<uint8_t>(b), static_cast<uint8_t>(end - 1), target});
        }
      }
      b = end;
    }
    for (auto& [called, next] : calls) state.calls.emplace_back(called, state_of(std::move(next)));
    for (auto& [t, next] : tokens) state.tokens.emplace_back(t, state_of(std::move(next)));
    states_[id] = std::move(state);
  }
  if (starts_.size() < rules_->list.size()) starts_.resize(rules_->list.size(), -1);
  starts_[rule] = begin;
}

// Every rule must be able to end, and none may call itself before it has read something.
void Automaton::check() {
  const auto& list = rules_->list;
  starts_.resize(list.size(), -1);
  std::vector<bool> ends(list.size()), empty(list.size());
  // States of a rule, from its start; through calls of rules that satisfy `passes`.
  auto reaches_end = [&](uint32_t rule, const std::vector<bool>& passes, bool bytes) {
    std::vector<uint32_t> todo{static_cast<uint32_t>(starts_[rule])};
    std::map<uint32_t, bool> seen;
    while (!todo.empty()) {
      uint32_t id = todo.back();
      todo.pop_back();
      if (!seen.emplace(id, true).second) continue;
      const State& s = states_[id];
      if (s.accept) return true;
      if (bytes) {
        for (const auto& e : s.edges) todo.push_back(e.target);
        for (const auto& t : s.tokens) todo.push_back(t.second);
      }
      for (auto [called, next] : s.calls) {
        if (passes[called]) todo.push_back(next);
      }
    }
    return false;
  };
  bool backwards = false;
  for (bool changed = true; changed; backwards = !backwards) {
    changed = false;
    for (uint32_t i = 0; i < list.size(); ++i) {
      uint32_t r = backwards ? static_cast<uint32_t>(list.size()) - 1 - i : i;
      if (!ends[r]) {
        bool good = starts_[r] >= 0
                        ? reaches_end(r, ends, true)
                        : std::all_of(list[r].needs.begin(), list[r].needs.end(),
                                      [&](uint32_t n) { return static_cast<bool>(ends[n]); });
        if (good) ends[r] = changed = true;
      }
      if (!empty[r] && starts_[r] >= 0 && reaches_end(r, empty, false)) empty[r] = changed = true;
    }
  }
  for (uint32_t r = 0; r < list.size(); ++r) {
    if (!ends[r]) {
      fail(Status::invalid_argument, "grammar: nothing that ends matches the rule '{}'",
           list[r].name);
    }
  }
  // Rules called before anything is read: depth-first search for a cycle.
  enum : uint8_t { fresh, open, done };
  std::vector<uint8_t> mark(list.size(), fresh);
  std::vector<std::vector<uint32_t>> first(list.size());
  for (uint32_t r = 0; r < list.size(); ++r) {
    if (starts_[r] < 0) continue;
    std::vector<uint32_t> todo{static_cast<uint32_t>(starts_[r])};
    std::map<uint32_t, bool> seen;
    while (!todo.empty()) {
      uint32_t id = todo.back();
      todo.pop_back();
      if (!seen.emplace(id, true).second) continue;
      for (auto [called, next] : states_[id].calls) {
        first[r].push_back(called);
        if (empty[called]) todo.push_back(next);
      }
    }
  }
  for (uint32_t root = 0; root < list.size(); ++root) {
    std::vector<std::pair<uint32_t, size_t>> path;
    if (mark[root] == fresh) path.emplace_back(root, 0), mark[root] = open;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first[rule].size()) {
        mark[rule] = done;
        path.pop_back();
        continue;
      }
      uint32_t called = first[rule][next++];
      if (mark[called] == open) {
        fail(Status::invalid_argument,
             "grammar: left recursion, the rule '{}' calls itself before it reads anything",
             list[called].name);
      }
      if (mark[called] == fresh) {
        mark[called] = open;
        path.emplace_back(called, 0);
      }
    }
  }
}

}  // namespace speech::grammar
