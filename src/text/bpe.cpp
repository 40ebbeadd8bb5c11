#include "text/bpe.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>

#include "base/error.h"
#include "base/file.h"
#include "text/json_pull.h"
#include "text/unicode.h"

namespace speech {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint32_t no_rank = UINT32_MAX;
constexpr int64_t max_ids = 1 << 22;  // no vocabulary comes near; bounds what a bad id can cost
constexpr size_t max_text = size_t{1} << 30;

constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-2's alphabet: each byte is written as one printable character. byte = alphabet[character],
// or -1.
const std::array<int16_t, 324>& alphabet() {
  static const std::array<int16_t, 324> table = [] {
    std::array<int16_t, 324> t;
    t.fill(-1);
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      t[printable ? static_cast<uint32_t>(b) : next++] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return table;
}

// Appends the bytes that `token` stands for; false (and nothing appended) if a character is not of
// the alphabet.
bool append_bytes(std::string& out, std::string_view token) {
  size_t before = out.size();
  for (size_t i = 0; i < token.size();) {
    CodePoint c = decode_utf8(token, i);
    int byte = c.value < alphabet().size() ? alphabet()[c.value] : -1;
    if (byte < 0 || !c.valid) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(byte);
    i += c.size;
  }
  return true;
}

size_t hash_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15ull;
  return pair ^ pair >> 32;
}

size_t table_size(size_t entries) {
  size_t size = 16;
  while (size < entries * 2) size *= 2;
  return size;
}

}  // namespace

// Collects a vocabulary and its merges, checks them and makes the tables.
class BpeBuilder {
 public:
  explicit BpeBuilder(std::string name) : t_(new BpeTokenizer), name_(std::move(name)) {}

  BpeTokenizer& tokenizer() { return *t_; }

  // A token of the vocabulary, written in the alphabet.
  void token(int64_t id, std::string_view text) {
    BpeTokenizer::Token& token = slot(id, text);
    bool bytes = append_bytes(t_->arena_, text);
    if (!bytes) t_->arena_.append(text);  // can only be found as an added token
    token.size = static_cast<uint32_t>(t_->arena_.size()) - token.begin;
    if (bytes && token.size > 0) bpe_ids_.push_back(static_cast<int32_t>(id));
  }

  void added(AddedToken token) {
    if (token.text.empty()) {
      fail(Status::model_file, "{}: added token {} is empty", name_, token.id);
    }
    added_.push_back(std::move(token));
  }

  // To be called once all tokens are there.
  void index() {
    t_->slots_.assign(table_size(bpe_ids_.size()), -1);
    size_t mask = t_->slots_.size() - 1;
    for (int32_t id : bpe_ids_) {
      std::string_view bytes = t_->bytes(id);
      size_t at = std::hash<std::string_view>()(bytes) & mask;
      while (t_->slots_[at] >= 0 && t_->bytes(t_->slots_[at]) != bytes) at = (at + 1) & mask;
      if (t_->slots_[at] < 0) t_->slots_[at] = id;
    }
    for (int b = 0; b < 256; ++b) {
      char byte = static_cast<char>(b);
      t_->byte_ids_[b] = t_->find_bpe({&byte, 1});
      if (t_->byte_ids_[b] < 0) {
        fail(Status::model_file, "{}: the vocabulary has no token for byte 0x{:02X}", name_, b);
      }
    }
    indexed_ = true;
  }
  bool indexed() const { return indexed_; }

  // The next merge in order of rank, both sides written in the alphabet.
  void merge(std::string_view left, std::string_view right) {
    scratch_.clear();
    bool good = append_bytes(scratch_, left);
    size_t middle = scratch_.size();
    good = good && append_bytes(scratch_, right);
    std::string_view both = scratch_;
    int32_t ids[3] = {-1, -1, -1};
    if (good) {
      ids[0] = t_->find_bpe(both.substr(0, middle));
      ids[1] = t_->find_bpe(both.substr(middle));
      ids[2] = t_->find_bpe(both);
    }
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
      fail(Status::model_file, "{}: merge {} (\"{} {}\") is not of tokens of the vocabulary", name_,
           list_.size(), left, right);
    }
    if (list_.size() >= static_cast<size_t>(2 * max_ids)) {
      fail(Status::model_file, "{}: too many merges", name_);
    }
    list_.push_back({pair_of(ids[0], ids[1]), static_cast<uint32_t>(list_.size()), ids[2]});
  }

  void merge(std::string_view line) {
    // The separator is the first blank after the first character: neither side contains one.
    size_t blank = line.find(' ', 1);
    if (blank == std::string_view::npos) {
      fail(Status::model_file, "{}: merge {} (\"{}\") is not two tokens with a blank between",
           name_, list_.size(), line);
    }
    merge(line.substr(0, blank), line.substr(blank + 1));
  }

  std::shared_ptr<const BpeTokenizer> build() {
    if (!indexed_) fail(Status::model_file, "{}: no vocabulary", name_);
    t_->merges_.assign(table_size(list_.size()), {0, no_rank, 0});
    size_t mask = t_->merges_.size() - 1;
    for (const auto& m : list_) {
      size_t at = hash_pair(m.pair) & mask;
      while (t_->merges_[at].rank != no_rank && t_->merges_[at].pair != m.pair) {
        at = (at + 1) & mask;
      }
      if (t_->merges_[at].rank == no_rank) t_->merges_[at] = m;
    }
    for (const AddedToken& a : added_) {
      BpeTokenizer::Token& existing = a.id >= 0 && a.id < t_->size()
                                          ? t_->tokens_[static_cast<size_t>(a.id)]
                                          : slot(a.id, a.text);
      if (existing.size > 0 && t_->bytes(a.id) != a.text) {
        fail(Status::model_file, "{}: id {} is both \"{}\" and the added token \"{}\"", name_, a.id,
             t_->bytes(a.id), a.text);
      }
      if (existing.size == 0) {
        existing.begin = static_cast<uint32_t>(t_->arena_.size());
        existing.size = static_cast<uint32_t>(a.text.size());
        t_->arena_ += a.text;
      }
      existing.added = true;
      existing.special |= a.special;
      auto& matcher = a.normalized ? t_->after_nfc_ : t_->before_nfc_;
      std::string text = a.normalized && t_->nfc_ ? nfc(replace_invalid_utf8(a.text)) : a.text;
      if (!matcher.ids.emplace(text, a.id).second) continue;
      auto& lengths = matcher.lengths[static_cast<uint8_t>(text[0])];
      lengths.push_back(static_cast<uint32_t>(text.size()));
      std::sort(lengths.begin(), lengths.end(), std::greater<>());
      lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    }
    t_->added_ = std::move(added_);
    std::sort(t_->added_.begin(), t_->added_.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
    return std::move(t_);
  }

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

 private:
  BpeTokenizer::Token& slot(int64_t id, std::string_view text) {
    if (id < 0 || id >= max_ids) {
      fail(Status::model_file, "{}: token \"{}\" has the id {}, not one of 0..{}", name_, text, id,
           max_ids - 1);
    }
    auto index = static_cast<size_t>(id);
    if (index >= t_->tokens_.size()) t_->tokens_.resize(index + 1);
    BpeTokenizer::Token& token = t_->tokens_[index];
    if (token.size > 0) {
      fail(Status::model_file, "{}: id {} is given to two tokens, \"{}\" and \"{}\"", name_, id,
           t_->bytes(static_cast<int32_t>(id)), text);
    }
    if (t_->arena_.size() + text.size() > max_text) {
      fail(Status::model_file, "{}: the vocabulary is too large", name_);
    }
    token.begin = static_cast<uint32_t>(t_->arena_.size());
    return token;
  }

  std::unique_ptr<BpeTokenizer> t_;
  std::string name_, scratch_;
  std::vector<int32_t> bpe_ids_;
  std::vector<BpeTokenizer::Merge> list_;
  std::vector<AddedToken> added_;
  bool indexed_ = false;
};

BpeTokenizer::~BpeTokenizer() = default;

std::string_view BpeTokenizer::bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(token.begin, token.size);
}

bool BpeTokenizer::is_added(int32_t id) const {
  return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].added;
}

bool BpeTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].special;
}

int32_t BpeTokenizer::find(std::string_view bytes) const {
  for (const AddedMatcher* m : {&before_nfc_, &after_nfc_}) {
    if (auto it = m->ids.find(bytes); it != m->ids.end()) return it->second;
  }
  return find_bpe(bytes);
}

int32_t BpeTokenizer::find_bpe(std::string_view wanted) const {
  size_t mask = slots_.size() - 1;
  size_t at = std::hash<std::string_view>()(wanted) & mask;
  while (slots_[at] >= 0 && bytes(slots_[at]) != wanted) at = (at + 1) & mask;
  return slots_[at];
}

const BpeTokenizer::Merge* BpeTokenizer::find_merge(int32_t left, int32_t right) const {
  uint64_t pair = BpeBuilder::pair_of(left, right);
  size_t mask = merges_.size() - 1;
  for (size_t at = hash_pair(pair) & mask; merges_[at].rank != no_rank; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return &merges_[at];
  }
  return nullptr;
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_ids_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (ignore_merges_) {
    if (int32_t id = find_bpe(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  // Symbols in a linked list; candidates in a heap by rank, then from the left. A candidate whose
  // symbols have changed since is passed over.
  struct Symbol {
    int32_t id, previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t left, id;
    uint64_t pair;
    bool operator>(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : left > o.left;
    }
  };
  auto count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  std::vector<Candidate> heap;
  heap.reserve(piece.size());
  auto propose = [&](int32_t left) {
    int32_t right = symbols[left].next;
    if (const Merge* m = find_merge(symbols[left].id, symbols[right].id)) {
      heap.push_back({m->rank, left, m->id, m->pair});
      return true;
    }
    return false;
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i + 1 < count; ++i) propose(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (BpeBuilder::pair_of(left.id, right.id) != best.pair) continue;
    left.id = best.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      symbols[left.next].previous = best.left;
      if (propose(best.left)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    if (left.previous >= 0 && propose(left.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

namespace {

// The end of the piece of `text` that begins at `begin`, by qwen2_pattern. The text is valid UTF-8.
size_t piece_end(std::string_view text, size_t begin) {
  struct Char {
    uint32_t value = 0;
    CharClass kind = CharClass::other;
    size_t next = 0;
    bool end = false;  // past the text
    bool is(CharClass c) const { return !end && kind == c; }
    bool newline() const { return !end && (value == '\n' || value == '\r'); }
  };
  auto at = [&](size_t i) -> Char {
    if (i >= text.size()) return {0, CharClass::other, i, true};
    CodePoint c = decode_utf8(text, i);
    return {c.value, char_class(c.value), i + c.size, false};
  };
  auto run = [&](size_t i, CharClass kind) {
    for (Char c = at(i); c.is(kind); c = at(i)) i = c.next;
    return i;
  };
  Char first = at(begin);
  Char second = at(first.next);
  if (first.value == '\'') {  // (?i:'s|'t|'re|'ve|'m|'ll|'d); U+017F is a small s, too
    auto lower = [](uint32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17F ? 's' : c; };
    uint32_t a = lower(second.value);
    if (!second.end && (a == 's' || a == 't' || a == 'm' || a == 'd')) return second.next;
    Char third = at(second.next);
    uint32_t b = lower(third.value);
    if (!third.end && ((b == 'e' && (a == 'r' || a == 'v')) || (b == 'l' && a == 'l'))) {
      return third.next;
    }
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.is(CharClass::letter)) return run(first.next, CharClass::letter);
  if (!first.newline() && !first.is(CharClass::number) && second.is(CharClass::letter)) {
    return run(second.next, CharClass::letter);
  }
  if (first.is(CharClass::number)) return first.next;
  // ' ?[^\s\p{L}\p{N}]+[\r\n]*'
  if (first.is(CharClass::other) || (first.value == ' ' && second.is(CharClass::other))) {
    size_t i = run(first.is(CharClass::other) ? first.next : second.next, CharClass::other);
    for (Char c = at(i); c.newline(); c = at(i)) i = c.next;
    return i;
  }
  // White space: up to its last line end if it has one, else all but the last character if
  // something follows, else all.
  size_t end = first.next, after_newline = first.newline() ? first.next : 0, last = begin;
  for (Char c = at(end); c.is(CharClass::space); c = at(end)) {
    last = end;
    end = c.next;
    if (c.newline()) after_newline = end;
  }
  if (after_newline) return after_newline;
  return end == text.size() || last == begin ? end : last;
}

}  // namespace

void BpeTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& out) const {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = piece_end(text, begin);
    encode_piece(text.substr(begin, end - begin), out);
    begin = end;
  }
}

template <typename OnToken, typename OnPlain>
void BpeTokenizer::split_added(const AddedMatcher& matcher, std::string_view text,
                               std::string_view marks, MatchAdded mode, OnToken token,
                               OnPlain plain) const {
  size_t begin = 0, i = 0;
  while (mode != MatchAdded::none && !matcher.ids.empty() && i < text.size()) {
    size_t matched = 0;
    for (uint32_t length : matcher.lengths[static_cast<uint8_t>(text[i])]) {
      if (length > text.size() - i) continue;
      auto found = matcher.ids.find(text.substr(i, length));
      if (found == matcher.ids.end()) continue;
      if (!marks.empty() &&
          marks.substr(i, length).find_first_not_of('\0') != std::string_view::npos) {
        continue;
      }
      matched = length;
      if (mode == MatchAdded::all || !is_special(found->second)) {
        if (i > begin) plain(begin, i);
        token(found->second);
        begin = i + length;
      }
      break;
    }
    i += std::max<size_t>(matched, 1);
  }
  if (begin < text.size()) plain(begin, text.size());
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view raw, std::string_view marks,
                                          MatchAdded mode) const {
  if (raw.size() > max_text) fail(Status::invalid_argument, "the text is too long to be encoded");
  std::string valid = replace_invalid_utf8(raw);
  if (!marks.empty() && (marks.size() != raw.size() || valid.size() != raw.size())) {
    fail(Status::invalid_argument, "marked text must be valid UTF-8 with one mark a byte");
  }
  std::string_view text = valid;
  std::vector<int32_t> out;
  auto token = [&](int32_t id) { out.push_back(id); };
  auto part = [](std::string_view s, size_t begin, size_t end) {
    return s.empty() ? s : s.substr(begin, end - begin);
  };
  split_added(before_nfc_, text, marks, mode, token, [&](size_t begin, size_t end) {
    // Marks lie on the text before NFC; a template's own tokens are in NFC already.
    std::string_view segment = part(text, begin, end);
    std::string composed;
    if (nfc_ && marks.empty()) segment = composed = nfc(segment);
    split_added(after_nfc_, segment, part(marks, begin, end), mode, token, [&](size_t b, size_t e) {
      std::string_view plain = part(segment, b, e);
      if (marks.empty() || !nfc_) {
        encode_plain(plain, out);
      } else {
        encode_plain(nfc(plain), out);
      }
    });
  });
  return out;
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, MatchAdded added) const {
  return encode(text, {}, added);
}

std::vector<int32_t> BpeTokenizer::encode_marked(std::string_view text,
                                                 std::string_view marks) const {
  return encode(text, marks, MatchAdded::all);
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (int32_t id : ids) {
    if (!skip_special || !is_special(id)) out += bytes(id);
  }
  return replace_invalid_utf8(out);
}

// ---- files -------------------------------------------------------------------------------------

namespace {

json parse_part(std::string_view text, const std::string& name, std::string_view part) {
  try {
    return json::parse(text);
  } catch (const json::exception& e) {
    fail(Status::model_file, "{}: {} is not valid JSON: {}", name, part, e.what());
  }
}

[[noreturn]] void other_kind(const std::string& name, std::string_view part, const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 300) text = text.substr(0, 300) + "...";
  fail(Status::unsupported,
       "{}: {} is {}; only the byte-level BPE of Qwen2 and Qwen3 models is supported", name, part,
       text);
}

AddedToken read_added(const json& entry, int64_t id, const std::string& name) {
  auto flag = [&](const char* key) {
    auto it = entry.find(key);
    return it != entry.end() && it->is_boolean() && it->get<bool>();
  };
  if (!entry.is_object() || !entry.contains("content") || !entry["content"].is_string() || id < 0 ||
      id >= max_ids) {
    fail(Status::model_file, "{}: an added token without content or with a wrong id ({})", name,
         id);
  }
  AddedToken token{static_cast<int32_t>(id), entry["content"].get<std::string>(), flag("special"),
                   flag("normalized")};
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (flag(key)) {
      fail(Status::unsupported, "{}: added token \"{}\" has {} set, which is not supported", name,
           token.text, key);
    }
  }
  return token;
}

void check_sections(const json& sections, const std::string& name, bool& use_nfc) {
  auto section = [&](const char* key) {
    return sections.contains(key) ? sections[key] : json(nullptr);
  };
  auto type = [](const json& part) {
    return part.is_object() && part.contains("type") && part["type"].is_string()
               ? part["type"].get<std::string>()
               : std::string();
  };
  json normalizer = section("normalizer");
  use_nfc = type(normalizer) == "NFC";
  if (!use_nfc && !normalizer.is_null()) other_kind(name, "normalizer", normalizer);

  json pre = section("pre_tokenizer");
  json steps = type(pre) == "Sequence" ? pre.value("pretokenizers", json()) : json();
  bool good = steps.is_array() && steps.size() == 2 && type(steps[0]) == "Split" &&
              steps[0].value("pattern", json()) == json{{"Regex", qwen2_pattern}} &&
              steps[0].value("behavior", json()) == "Isolated" &&
              steps[0].value("invert", json(false)) == false && type(steps[1]) == "ByteLevel" &&
              steps[1].value("add_prefix_space", json(true)) == false &&
              steps[1].value("use_regex", json(true)) == false;
  if (!good) other_kind(name, "pre_tokenizer", pre);

  json post = section("post_processor"), decoder = section("decoder");
  if (!post.is_null() && type(post) != "ByteLevel") other_kind(name, "post_processor", post);
  if (!decoder.is_null() && type(decoder) != "ByteLevel") other_kind(name, "decoder", decoder);
}

void check_model(const json& model, const std::string& name, bool& ignore_merges) {
  auto is = [&](const char* key, std::initializer_list<json> values) {
    json value = model.contains(key) ? model[key] : json(nullptr);
    if (std::find(values.begin(), values.end(), value) == values.end()) {
      other_kind(name, fmt::format("model.{}", key), value);
    }
  };
  is("type", {"BPE", nullptr});
  is("dropout", {nullptr, 0.0});
  is("unk_token", {nullptr});
  is("continuing_subword_prefix", {nullptr, ""});
  is("end_of_word_suffix", {nullptr, ""});
  is("byte_fallback", {nullptr, false});
  is("ignore_merges", {nullptr, false, true});
  ignore_merges = model.contains("ignore_merges") && model["ignore_merges"] == true;
}

void read_vocab(JsonPull& in, BpeBuilder& builder) {
  in.enter('{');
  std::string key;
  while (in.next('}')) {
    key = in.key();
    builder.token(in.integer(), key);
  }
  builder.index();
}

void read_merges(JsonPull& in, BpeBuilder& builder) {
  in.enter('[');
  std::string left;
  while (in.next(']')) {
    if (in.peek() != '[') {
      builder.merge(in.string());
      continue;
    }
    in.enter('[');
    if (!in.next(']')) in.error("a merge without tokens");
    left = in.string();
    if (!in.next(']')) in.error("a merge of one token");
    builder.merge(left, in.string());
    if (in.next(']')) in.error("a merge of more than two tokens");
  }
}

}  // namespace

std::shared_ptr<const BpeTokenizer> BpeTokenizer::from_json(std::string_view text,
                                                            const std::string& name) {
  BpeBuilder builder(name);
  JsonPull in(text, name);
  json sections = json::object(), model = json::object();
  std::string_view merges;  // put off until the vocabulary is there
  in.enter('{');
  while (in.next('}')) {
    std::string key(in.key());
    if (key == "model") {
      in.enter('{');
      while (in.next('}')) {
        key = in.key();
        if (key == "vocab") {
          read_vocab(in, builder);
        } else if (key == "merges" && builder.indexed()) {
          read_merges(in, builder);
        } else if (key == "merges") {
          merges = in.skip();
        } else {
          model[key] = parse_part(in.skip(), name, "model." + key);
        }
      }
    } else {
      sections[key] = parse_part(in.skip(), name, key);
    }
  }
  in.finish();
  if (!builder.indexed()) {
    fail(Status::model_file, "{}: model.vocab is missing; a byte-level BPE needs it", name);
  }
  if (!merges.empty()) {
    JsonPull late(merges, name + " (model.merges)");
    read_merges(late, builder);
  }
  check_sections(sections, name, builder.tokenizer().nfc_);
  check_model(model, name, builder.tokenizer().ignore_merges_);
  if (sections.contains("added_tokens") && sections["added_tokens"].is_array()) {
    for (const json& entry : sections["added_tokens"]) {
      json id = entry.is_object() ? entry.value("id", json()) : json();
      builder.added(read_added(entry, id.is_number_integer() ? id.get<int64_t>() : -1, name));
    }
  }
  return builder.build();
}

std::shared_ptr<const BpeTokenizer> BpeTokenizer::from_vocab_and_merges(
    std::string_view vocab_json, std::string_view merges_txt, std::vector<AddedToken> added,
    const std::string& name) {
  BpeBuilder builder(name);
  JsonPull in(vocab_json, name + " (vocab.json)");
  read_vocab(in, builder);
  in.finish();
  bool first = true;
  while (!merges_txt.empty()) {
    size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    bool version = first && line.starts_with("#version");
    first = false;
    if (!line.empty() && !version) builder.merge(line);
  }
  for (AddedToken& token : added) builder.added(std::move(token));
  return builder.build();
}

std::shared_ptr<const BpeTokenizer> BpeTokenizer::from_gguf(
    std::string_view model, std::string_view pre, std::span<const std::string_view> tokens,
    std::span<const int32_t> types, std::span<const std::string_view> merges,
    const std::string& name) {
  if (model != "gpt2" || pre != "qwen2") {
    fail(Status::unsupported,
         "{}: the tokenizer is \"{}\" with pre-tokenizer \"{}\"; only \"gpt2\" with \"qwen2\" is "
         "supported",
         name, model, pre);
  }
  if (!types.empty() && types.size() != tokens.size()) {
    fail(Status::model_file,
         "{}: tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}", name,
         types.size(), tokens.size());
  }
  BpeBuilder builder(name);
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto type = types.empty() ? GgufTokenType::normal : static_cast<GgufTokenType>(types[i]);
    auto id = static_cast<int32_t>(i);
    switch (type) {
      case GgufTokenType::normal:
        builder.token(id, tokens[i]);
        break;
      case GgufTokenType::control:
      case GgufTokenType::user_defined:
        builder.added({id, std::string(tokens[i]), type == GgufTokenType::control, false});
        break;
      case GgufTokenType::unused:
        break;
      default:
        fail(Status::model_file,
             "{}: token {} (\"{}\") has the type {}, which byte-level BPE "
             "does not know",
             name, i, tokens[i], types[i]);
    }
  }
  builder.index();
  for (std::string_view line : merges) builder.merge(line);
  return builder.build();
}

std::shared_ptr<const BpeTokenizer> BpeTokenizer::load(const std::string& folder) {
  auto text_of = [](const std::shared_ptr<const MappedFile>& file) {
    return std::string_view(reinterpret_cast<const char*>(file->bytes().data()),
                            file->bytes().size());
  };
  auto path = [&](const char* file) { return (fs::path(folder) / file).string(); };
  if (fs::exists(path("tokenizer.json"))) {
    auto file = MappedFile::open(path("tokenizer.json"));
    return from_json(text_of(file), file->path());
  }
  if (!fs::exists(path("vocab.json")) || !fs::exists(path("merges.txt"))) {
    fail(Status::io, "{}: no tokenizer here; expected tokenizer.json, or vocab.json and merges.txt",
         folder);
  }
  std::vector<AddedToken> added;
  if (fs::exists(path("tokenizer_config.json"))) {
    std::string name = path("tokenizer_config.json");
    json config = parse_part(read_text_file(name), name, "the file");
    json decoder = config.is_object() ? config.value("added_tokens_decoder", json()) : json();
    if (!decoder.is_object()) {
      fail(Status::model_file,
           "{}: added_tokens_decoder is missing; without tokenizer.json it is needed for the added "
           "tokens",
           name);
    }
    for (const auto& [key, entry] : decoder.items()) {
      int64_t id = -1;
      auto end = std::from_chars(key.data(), key.data() + key.size(), id).ptr;
      added.push_back(read_added(entry, end == key.data() + key.size() ? id : -1, name));
    }
  }
  auto vocab = MappedFile::open(path("vocab.json"));
  auto merges = MappedFile::open(path("merges.txt"));
  return from_vocab_and_merges(text_of(vocab), text_of(merges), std::move(added), folder);
}

}  // namespace speech
