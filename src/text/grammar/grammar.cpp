#include "text/grammar/grammar.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "text/grammar/automaton.h"

namespace speech {
namespace grammar {

// How matching works. A stack is a node: a state of some rule's automaton over the stack to return
// to. Where a sequence stands is a configuration: the set of stacks that can go on, and whether the
// grammar may end. Nodes and configurations are numbered, and steps between configurations kept, so
// that they form one deterministic automaton that grows where it is walked.
//
// A token's fate depends, for most tokens, on the top state alone. So each state has a mask of the
// tokens that it takes without leaving its rule, and a list of the places in the token tree at
// which the rule ends. The mask of a configuration is the union of its states' masks, and of what
// the stacks below take behind those places.
struct Node {
  uint32_t state, parent, depth;
  uint32_t popped;  // the configuration of this stack once it is on top, or `unknown`
};

constexpr uint32_t bottom = 0;                               // node: the empty stack
constexpr uint32_t unknown = 0, dead = 1;                    // configurations
constexpr uint32_t max_depth = 300;                          // of a stack
constexpr size_t max_set = 2000;                             // stacks in a configuration
constexpr size_t max_nodes = 200'000, max_configs = 30'000;  // before the arena is changed
constexpr size_t max_masks = 1000, max_local = 2000;         // of 19 kB each at 152k tokens

struct Config {
  std::vector<uint32_t> nodes;  // sorted
  bool can_end = false;
  std::shared_ptr<const Bitmask> mask;
};

struct ConfigKey {
  std::vector<uint32_t> nodes;
  bool can_end;
  bool operator==(const ConfigKey&) const = default;
};
struct ConfigHash {
  size_t operator()(const ConfigKey& key) const {
    uint64_t h = key.can_end;
    for (uint32_t n : key.nodes) h = (h ^ n) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    return h;
  }
};

// The configuration behind each byte; what is not known yet is `unknown`.
using Row = std::array<uint32_t, 256>;

struct Arena {
  Arena() {
    add_config(unknown);
    add_config(dead);
  }

  std::vector<Node> nodes{{0, 0, 0, unknown}};
  std::unordered_map<uint64_t, uint32_t> node_ids;
  std::vector<Config> configs;
  std::vector<std::unique_ptr<Row>> rows;  // the steps from a configuration
  std::unordered_map<ConfigKey, uint32_t, ConfigHash> config_ids;
  size_t masks = 0;

  uint32_t node(uint32_t state, uint32_t parent) {
    auto [it, is_new] = node_ids.emplace(static_cast<uint64_t>(state) << 32 | parent, nodes.size());
    if (is_new) nodes.push_back({state, parent, nodes[parent].depth + 1, unknown});
    return it->second;
  }
  uint32_t config(std::vector<uint32_t> set, bool can_end) {
    std::sort(set.begin(), set.end());
    if (set.empty() && !can_end) return dead;
    auto [it, is_new] = config_ids.emplace(ConfigKey{set, can_end}, configs.size());
    if (is_new) {
      add_config(unknown);
      configs.back().nodes = std::move(set);
      configs.back().can_end = can_end;
    }
    return it->second;
  }
  void add_config(uint32_t next) {
    configs.emplace_back();
    rows.push_back(std::make_unique<Row>());
    rows.back()->fill(next);
  }
  bool full() const { return nodes.size() > max_nodes || configs.size() > max_configs; }
};

class Matcher {
 public:
  Matcher(std::shared_ptr<Rules> rules, std::shared_ptr<const TokenTrie> tokens)
      : automaton_(std::move(rules)),
        tokens_(std::move(tokens)),
        arena_(std::make_shared<Arena>()) {}

  std::mutex mutex;

  const TokenTrie& tokens() const { return *tokens_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  size_t bytes() const {
    size_t mask = tokens_->no_token() / 8;
    return sizeof *this + (arena_->masks + local_.size()) * mask +
           arena_->rows.size() * (sizeof(Row) + sizeof(Config)) +
           arena_->nodes.size() * sizeof(Node);
  }

  uint32_t start() { return close(*arena_, {arena_->node(automaton_.start(0), bottom)}); }

  // Takes a state out of an arena that has grown too large, or that others have left.
  void renew(std::shared_ptr<Arena>& arena, uint32_t& config) {
    if (arena_->full()) arena_ = std::make_shared<Arena>();
    if (arena == arena_) return;
    std::unordered_map<uint32_t, uint32_t> moved{{bottom, bottom}};
    std::vector<uint32_t> set;
    for (uint32_t n : arena->configs[config].nodes) {
      std::vector<uint32_t> path;
      for (uint32_t at = n; !moved.contains(at); at = arena->nodes[at].parent) path.push_back(at);
      for (auto at = path.rbegin(); at != path.rend(); ++at) {
        const Node& old = arena->nodes[*at];
        moved[*at] = arena_->node(old.state, moved[old.parent]);
      }
      set.push_back(moved[n]);
    }
    config = arena_->config(std::move(set), arena->configs[config].can_end);
    arena = arena_;
  }

  uint32_t step(Arena& a, uint32_t config, uint8_t byte) {
    if (config == dead) return dead;
    uint32_t known = (*a.rows[config])[byte];
    if (known != unknown) return known;
    std::vector<uint32_t> reached;
    int first = 0, last = 255;  // all bytes from here to there lead to the same
    for (uint32_t n : a.configs[config].nodes) {
      Node node = a.nodes[n];
      for (const State::Edge& e : automaton_.state(node.state).edges) {
        if (e.last < byte) {
          first = std::max(first, e.last + 1);
        } else if (e.first > byte) {
          last = std::min(last, e.first - 1);
        } else {
          first = std::max<int>(first, e.first);
          last = std::min<int>(last, e.last);
          reached.push_back(a.node(e.target, node.parent));
        }
      }
    }
    uint32_t next = close(a, std::move(reached));
    std::fill(a.rows[config]->begin() + first, a.rows[config]->begin() + last + 1, next);
    return next;
  }

  // Behind a token: by its bytes, or as a whole if it is an added one.
  uint32_t step_token(Arena& a, uint32_t config, int32_t token) {
    if (config == dead || token < 0) return dead;
    if (tokens_->tokenizer().is_added(token)) {
      std::vector<uint32_t> reached;
      for (uint32_t n : a.configs[config].nodes) {
        Node node = a.nodes[n];
        for (auto [id, target] : automaton_.state(node.state).tokens) {
          if (id == token) reached.push_back(a.node(target, node.parent));
        }
      }
      return close(a, std::move(reached));
    }
    std::string_view bytes = tokens_->tokenizer().bytes(token);
    if (bytes.empty()) return dead;
    for (char c : bytes) config = step(a, config, static_cast<uint8_t>(c));
    return config;
  }

  std::shared_ptr<const Bitmask> mask(Arena& a, uint32_t config) {
    if (a.configs[config].mask) return a.configs[config].mask;
    auto out = std::make_shared<Bitmask>(tokens_->no_token() + 1);
    std::vector<uint32_t> nodes = a.configs[config].nodes;
    // Near the limit of nesting a state's mask says too much: walk from here.
    bool near_limit = std::any_of(nodes.begin(), nodes.end(),
                                  [&](uint32_t n) { return a.nodes[n].depth * 2 > max_depth; });
    if (near_limit && config != dead) {
      walk(a, config, 0, static_cast<uint32_t>(tokens_->nodes().size()), 0, *out, nullptr);
    }
    for (uint32_t n : nodes) {
      Node node = a.nodes[n];
      for (auto [id, target] : automaton_.state(node.state).tokens) out->set(id);
      if (near_limit) continue;
      std::shared_ptr<const Local> local = local_of(a, node.state);
      out->add(local->tokens);
      if (node.parent == bottom || local->ends.empty()) continue;
      uint32_t below = popped(a, node.parent);
      for (uint32_t end : local->ends) {
        const TokenTrie::Node& place = tokens_->nodes()[end];
        walk(a, below, end + 1, place.behind, place.depth, *out, nullptr);
      }
    }
    out->words.resize(tokens_->no_token() / 32);
    for (auto [copy, original] : tokens_->duplicates()) {
      if (out->test(original)) out->set(copy);
    }
    if (a.configs[config].can_end) {
      for (int32_t id : tokens_->eos()) out->set(id);
    }
    if (++a.masks > max_masks) {
      for (Config& c : a.configs) c.mask = nullptr;
      a.masks = 1;
    }
    if (std::all_of(out->words.begin(), out->words.end(), [](uint32_t w) { return w == 0; })) {
      if (too_deep_) {
        fail(Status::out_of_range, "the grammar nests more than {} calls of rules", max_depth);
      }
      fail(Status::out_of_range, "no token of the model can follow by the grammar");
    }
    a.configs[config].mask = out;
    return out;
  }

 private:
  struct Local {
    Bitmask tokens;
    std::vector<uint32_t> ends;  // places in the token tree, with something below, where the rule
                                 // may have ended
    explicit Local(size_t bits) : tokens(bits) {}
  };

  // A step on the way through the token tree.
  struct Place {
    const uint32_t* row;  // the configuration's; it stays where it is
    uint32_t config;
  };

  // The configuration of stacks whose calls and ends have not been followed yet.
  uint32_t close(Arena& a, std::vector<uint32_t> todo) {
    if (todo.empty()) return dead;
    if (todo.size() == 1 && todo[0] != bottom) {  // the usual case
      const State& state = automaton_.state(a.nodes[todo[0]].state);
      bool plain = !state.accept && state.calls.empty() && !state.edges.empty();
      if (plain && a.nodes[todo[0]].depth <= max_depth) return a.config(std::move(todo), false);
    }
    std::vector<uint32_t> set;
    std::unordered_set<uint32_t> seen;
    bool can_end = false;
    while (!todo.empty()) {
      uint32_t n = todo.back();
      todo.pop_back();
      if (n == bottom) {
        can_end = true;
        continue;
      }
      if (!seen.insert(n).second) continue;
      if (seen.size() > max_set) {
        fail(Status::out_of_range, "the grammar is too ambiguous: over {} ways to go on at once",
             max_set);
      }
      Node node = a.nodes[n];
      if (node.depth > max_depth) {
        too_deep_ = true;
        continue;
      }
      // A copy: start() may compile a rule, and that moves the states.
      auto calls = automaton_.state(node.state).calls;
      const State& state = automaton_.state(node.state);
      if (!state.edges.empty() || !state.tokens.empty()) set.push_back(n);
      if (state.accept) todo.push_back(node.parent);
      for (auto [rule, behind] : calls) {
        // Nothing to come back for: the called rule returns to where this one would.
        bool tail = automaton_.state(behind).final_only();
        uint32_t parent = tail ? node.parent : a.node(behind, node.parent);
        todo.push_back(a.node(automaton_.start(rule), parent));
      }
    }
    return a.config(std::move(set), can_end);
  }

  uint32_t popped(Arena& a, uint32_t node) {
    if (a.nodes[node].popped == unknown) {
      uint32_t config = close(a, {node});
      a.nodes[node].popped = config;
    }
    return a.nodes[node].popped;
  }

  // Goes through the nodes [first, last) of the token tree, which lie below one of depth `depth`
  // that leads to `config`. Sets the tokens that live; with `ends`, those that end with the stack
  // as well, and lists where that happens.
  //
  // There are hundreds of thousands of places, and which of them live cannot be foreseen: so no
  // branch depends on it but the rare ones.
  void walk(Arena& a, uint32_t config, uint32_t first, uint32_t last, size_t depth, Bitmask& out,
            std::vector<uint32_t>* ends) {
    if (config == dead) return;
    const TokenTrie::Node* trie = tokens_->nodes().data();
    uint32_t* words = out.words.data();
    path_.resize(TokenTrie::longest + 1);
    Place* path = path_.data();
    path[depth] = {a.rows[config]->data(), config};
    for (uint32_t i = first; i < last;) {
      const TokenTrie::Node& place = trie[i];
      const Place& from = path[place.depth - 1];
      uint32_t next = from.row[place.byte];
      if (next == unknown) [[unlikely]] {
        next = step(a, from.config, place.byte);
      }
      path[place.depth] = {a.rows[next]->data(), next};
      uint32_t alive = next != dead;
      words[place.token / 32] |= alive << (place.token % 32);
      if (ends && a.configs[next].can_end) [[unlikely]] {
        if (place.behind > i + 1) ends->push_back(i);
      }
      i = alive ? i + 1 : place.behind;
    }
  }

  std::shared_ptr<const Local> local_of(Arena& a, uint32_t state) {
    if (auto it = local_.find(state); it != local_.end()) return it->second;
    auto local = std::make_shared<Local>(tokens_->no_token() + 1);
    // Over an unknown stack: the bottom stands for it.
    uint32_t config = a.config({a.node(state, bottom)}, false);
    walk(a, config, 0, static_cast<uint32_t>(tokens_->nodes().size()), 0, local->tokens,
         &local->ends);
    if (local_.size() >= max_local) local_.clear();
    local_[state] = local;
    return local;
  }

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> tokens_;
  std::shared_ptr<Arena> arena_;
  std::unordered_map<uint32_t, std::shared_ptr<const Local>> local_;
  std::vector<Place> path_;  // by depth
  bool too_deep_ = false;    // a way on was dropped at max_depth
};

}  // namespace grammar

Grammar::Grammar(std::shared_ptr<grammar::Rules> rules, std::shared_ptr<const TokenTrie> tokens)
    : matcher_(std::make_unique<grammar::Matcher>(std::move(rules), std::move(tokens))) {}
Grammar::~Grammar() = default;

size_t Grammar::bytes() const {
  std::lock_guard lock(matcher_->mutex);
  return matcher_->bytes();
}

std::shared_ptr<const Grammar> Grammar::from_json_schema(std::string_view schema,
                                                         std::shared_ptr<const TokenTrie> tokens) {
  return std::shared_ptr<const Grammar>(
      new Grammar(grammar::parse_json_schema(schema), std::move(tokens)));
}

std::shared_ptr<const Grammar> Grammar::from_gbnf(std::string_view text,
                                                  std::shared_ptr<const TokenTrie> tokens) {
  auto find = [&](std::string_view name) {
    const BpeTokenizer& tokenizer = tokens->tokenizer();
    for (const AddedToken& t : tokenizer.added_tokens()) {
      if (!tokens->is_eos(t.id) && (t.text == name || fmt::format("<[{}]>", t.id) == name)) {
        return t.id;
      }
    }
    return -1;
  };
  auto rules = grammar::parse_gbnf(text, find);
  return std::shared_ptr<const Grammar>(new Grammar(std::move(rules), std::move(tokens)));
}

std::shared_ptr<const Grammar> Grammar::json_object(std::shared_ptr<const TokenTrie> tokens) {
  return std::shared_ptr<const Grammar>(
      new Grammar(grammar::json_object_rules(), std::move(tokens)));
}

std::shared_ptr<const Grammar> Grammar::from_text(std::string_view text,
                                                  std::shared_ptr<const TokenTrie> tokens) {
  size_t begin = text.find_first_not_of(" \t\r\n");
  bool schema = begin != std::string_view::npos && text[begin] == '{';
  return schema ? from_json_schema(text, std::move(tokens)) : from_gbnf(text, std::move(tokens));
}

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  grammar::Matcher& m = *grammar_->matcher_;
  std::lock_guard lock(m.mutex);
  arena_ = m.arena();
  config_ = m.start();
}

const Bitmask& GrammarState::allowed() {
  grammar::Matcher& m = *grammar_->matcher_;
  std::lock_guard lock(m.mutex);
  if (finished_) {
    mask_ = std::make_shared<Bitmask>(m.tokens().rows());
  } else {
    m.renew(arena_, config_);
    mask_ = m.mask(*arena_, config_);
  }
  return *mask_;
}

bool GrammarState::allows(int32_t token) const {
  grammar::Matcher& m = *grammar_->matcher_;
  if (finished_) return false;
  if (m.tokens().is_eos(token)) return can_end();
  std::lock_guard lock(m.mutex);
  return m.step_token(*arena_, config_, token) != grammar::dead;
}

void GrammarState::accept(int32_t token) {
  grammar::Matcher& m = *grammar_->matcher_;
  bool eos = m.tokens().is_eos(token);
  if (!finished_ && eos && can_end()) {
    finished_ = true;
    return;
  }
  std::lock_guard lock(m.mutex);
  m.renew(arena_, config_);
  uint32_t next = finished_ || eos ? grammar::dead : m.step_token(*arena_, config_, token);
  if (next == grammar::dead) {
    fail(Status::invalid_argument, "token {} is not allowed by the grammar here", token);
  }
  config_ = next;
}

bool GrammarState::can_end() const {
  std::lock_guard lock(grammar_->matcher_->mutex);
  return arena_->configs[config_].can_end;
}

}  // namespace speech
