#include "formats/pickle.h"

#include <bit>
#include <unordered_map>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

// A value takes some 60 bytes and an opcode as little as one; checkpoints have a few dozen values
// a tensor.
constexpr size_t kMaxValues = 8'000'000;

}  // namespace

// The pickle machine: a stack, marks into it, and a memo.
class Pickle::Machine {
 public:
  Machine(Pickle& pickle, std::span<const std::byte> bytes, std::string_view file)
      : pickle_(pickle), in_(bytes, file) {}

  void run() {
    while (step()) {
    }
    pickle_.root_ = pop();
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail(Status::model_file, "{}: the pickle is damaged before byte {}: {}", in_.file(),
         in_.position(), what);
  }

  Value& at(Id id) { return pickle_.values_[id]; }

  // Pushes a new value and returns it; the reference holds until the next push.
  Value& push(Kind kind) {
    if (pickle_.values_.size() >= kMaxValues) {
      fail(Status::model_file, "{}: the pickle holds more than {} values", in_.file(), kMaxValues);
    }
    stack_.push_back(static_cast<Id>(pickle_.values_.size()));
    Value& value = pickle_.values_.emplace_back();
    value.kind = kind;
    return value;
  }
  void push_integer(int64_t number) { push(Kind::integer).integer = number; }
  void push_text(Kind kind, uint64_t length) {
    std::string_view text = in_.text(length, "a text of a pickle");
    push(kind).text = text;
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Id top() const {
    if (stack_.size() <= floor()) damaged("the stack is empty");
    return stack_.back();
  }
  Id pop() {
    Id id = top();
    stack_.pop_back();
    return id;
  }
  // What lies above the last mark, in order; the mark goes too.
  std::vector<Id> pop_mark() {
    if (marks_.empty()) damaged("there is no mark");
    auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<Id> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  // Items for a list or dict; calls and objects that behave like one are not modelled.
  void extend(Kind kind, const std::vector<Id>& items) {
    Value& target = at(top());
    if (kind == Kind::dict && items.size() % 2 != 0) damaged("a key has no value");
    if (target.kind == kind) {
      target.items.insert(target.items.end(), items.begin(), items.end());
    } else if (target.kind != Kind::call && target.kind != Kind::object) {
      damaged("items are added to something that has none");
    }
  }

  void make_tuple(size_t count) {
    std::vector<Id> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push(Kind::tuple).items = std::move(items);
  }

  void make_global(std::string_view module, std::string_view name) {
    pickle_.names_.push_back(fmt::format("{}.{}", module, name));
    push(Kind::global).text = pickle_.names_.back();
  }

  void reduce() {
    Id arguments = pop(), function = pop();
    if (at(arguments).kind != Kind::tuple) damaged("the arguments of a call are no tuple");
    if (at(function).kind == Kind::global && at(function).text == "collections.OrderedDict") {
      make_ordered_dict(arguments);
    } else {
      push(Kind::call).items = {function, arguments};
    }
  }

  // OrderedDict() or OrderedDict([(key, value), ...])
  void make_ordered_dict(Id arguments) {
    std::vector<Id> items;
    if (!at(arguments).items.empty()) {
      const Value& pairs = at(at(arguments).items[0]);
      for (Id id : pairs.items) {
        const Value& pair = at(id);
        if (pair.items.size() != 2) damaged("an OrderedDict is not made of pairs");
        items.insert(items.end(), pair.items.begin(), pair.items.end());
      }
    }
    push(Kind::dict).items = std::move(items);
  }

  void build() {
    Id state = pop();
    Value& target = at(top());
    if (target.kind != Kind::object) return;  // attributes of an OrderedDict and the like
    if (target.items.size() > 2) damaged("an object has two states");
    target.items.push_back(state);
  }

  void memoize(uint64_t slot) { memo_[slot] = top(); }
  void recall(uint64_t slot) {
    auto it = memo_.find(slot);
    if (it == memo_.end()) damaged("it recalls what was not memoized");
    stack_.push_back(it->second);
  }

  std::string_view line() {
    uint64_t begin = in_.position();
    while (in_.read<char>("a line of a pickle") != '\n') {
    }
    auto bytes = in_.since(begin);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size() - 1};
  }

  void push_long(uint64_t length) {
    auto bytes = in_.take(length, "an integer");
    if (length > 8) {
      push(Kind::opaque);
      return;
    }
    uint64_t number = 0;
    for (size_t i = 0; i < length; ++i) number |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    if (length > 0 && length < 8 && (bytes[length - 1] & std::byte{0x80}) != std::byte{0}) {
      number |= ~uint64_t{0} << (8 * length);
    }
    push_integer(static_cast<int64_t>(number));
  }

  // One opcode; false after STOP.
  bool step() {
    constexpr std::string_view what = "an opcode of a pickle";
    auto opcode = in_.read<uint8_t>(what);
    switch (opcode) {
      case 0x80: {  // PROTO
        auto protocol = in_.read<uint8_t>(what);
        if (protocol > 5) damaged(fmt::format("protocol {} is not known", protocol));
        return true;
      }
      case 0x95:  // FRAME
        in_.read<uint64_t>(what);
        return true;
      case '.':  // STOP
        return false;
      case '(':  // MARK
        if (marks_.size() >= kMaxValues) damaged("too many marks");
        marks_.push_back(stack_.size());
        return true;
      case '0':  // POP, of a mark too
        if (!marks_.empty() && stack_.size() == marks_.back()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return true;
      case '1':  // POP_MARK
        pop_mark();
        return true;
      case '2':  // DUP
        stack_.push_back(top());
        return true;
      case 'N':
        push(Kind::none);
        return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push(Kind::boolean).integer = opcode == 0x88;
        return true;
      case 'J':  // BININT
        push_integer(in_.read<int32_t>(what));
        return true;
      case 'K':  // BININT1
        push_integer(in_.read<uint8_t>(what));
        return true;
      case 'M':  // BININT2
        push_integer(in_.read<uint16_t>(what));
        return true;
      case 0x8a:  // LONG1
        push_long(in_.read<uint8_t>(what));
        return true;
      case 0x8b:  // LONG4
        push_long(in_.read<uint32_t>(what));
        return true;
      case 'G': {  // BINFLOAT, the one big-endian number
        auto bits = __builtin_bswap64(in_.read<uint64_t>(what));
        push(Kind::real).real = std::bit_cast<double>(bits);
        return true;
      }
      case 'X':  // BINUNICODE
        push_text(Kind::text, in_.read<uint32_t>(what));
        return true;
      case 0x8c:  // SHORT_BINUNICODE
        push_text(Kind::text, in_.read<uint8_t>(what));
        return true;
      case 0x8d:  // BINUNICODE8
        push_text(Kind::text, in_.read<uint64_t>(what));
        return true;
      case 'T':  // BINSTRING, a str of Python 2
        push_text(Kind::text, in_.read<uint32_t>(what));
        return true;
      case 'U':  // SHORT_BINSTRING
        push_text(Kind::text, in_.read<uint8_t>(what));
        return true;
      case 'B':  // BINBYTES
        push_text(Kind::bytes, in_.read<uint32_t>(what));
        return true;
      case 'C':  // SHORT_BINBYTES
        push_text(Kind::bytes, in_.read<uint8_t>(what));
        return true;
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        push_text(Kind::bytes, in_.read<uint64_t>(what));
        return true;
      case ')':
        push(Kind::tuple);
        return true;
      case 't': {
        auto items = pop_mark();
        push(Kind::tuple).items = std::move(items);
        return true;
      }
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87:
        make_tuple(opcode - 0x84);
        return true;
      case ']':   // EMPTY_LIST
      case 0x8f:  // EMPTY_SET
        push(Kind::list);
        return true;
      case 'l':     // LIST
      case 0x91: {  // FROZENSET
        auto items = pop_mark();
        push(Kind::list).items = std::move(items);
        return true;
      }
      case 'a': {  // APPEND
        Id item = pop();
        extend(Kind::list, {item});
        return true;
      }
      case 'e':     // APPENDS
      case 0x90: {  // ADDITEMS
        auto items = pop_mark();
        extend(Kind::list, items);
        return true;
      }
      case '}':
        push(Kind::dict);
        return true;
      case 'd': {  // DICT
        auto items = pop_mark();
        if (items.size() % 2 != 0) damaged("a key has no value");
        push(Kind::dict).items = std::move(items);
        return true;
      }
      case 's': {  // SETITEM
        Id value = pop(), key = pop();
        extend(Kind::dict, {key, value});
        return true;
      }
      case 'u': {  // SETITEMS
        auto items = pop_mark();
        extend(Kind::dict, items);
        return true;
      }
      case 'c': {  // GLOBAL
        std::string_view module = line(), name = line();
        make_global(module, name);
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        Id name = pop(), module = pop();
        if (at(name).kind != Kind::text || at(module).kind != Kind::text) {
          damaged("the name of a global is no text");
        }
        make_global(at(module).text, at(name).text);
        return true;
      }
      case 'R':
        reduce();
        return true;
      case 0x81: {  // NEWOBJ
        Id arguments = pop(), type = pop();
        push(Kind::object).items = {type, arguments};
        return true;
      }
      case 0x92: {  // NEWOBJ_EX: class, arguments, keyword arguments
        pop();
        Id arguments = pop(), type = pop();
        push(Kind::object).items = {type, arguments};
        return true;
      }
      case 'b':
        build();
        return true;
      case 'Q': {  // BINPERSID
        Id id = pop();
        push(Kind::persistent).items = {id};
        return true;
      }
      case 'q':
        memoize(in_.read<uint8_t>(what));
        return true;
      case 'r':
        memoize(in_.read<uint32_t>(what));
        return true;
      case 0x94:  // MEMOIZE
        memoize(memo_.size());
        return true;
      case 'h':
        recall(in_.read<uint8_t>(what));
        return true;
      case 'j':
        recall(in_.read<uint32_t>(what));
        return true;
      default:
        fail(Status::model_file,
             "{}: the pickle uses opcode 0x{:02x} at byte {}, which is not read", in_.file(),
             opcode, in_.position() - 1);
    }
  }

  Pickle& pickle_;
  ByteReader in_;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Id> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, std::string_view file) {
  Machine(*this, bytes, file).run();
}

const Pickle::Value* Pickle::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Kind::dict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {
    const Value& name = values_[dict.items[i - 2]];
    if (name.kind == Kind::text && name.text == key) return &values_[dict.items[i - 1]];
  }
  return nullptr;
}

bool Pickle::is_call(const Value& value, std::string_view function) const {
  if (value.kind != Kind::call) return false;
  const Value& callee = values_[value.items[0]];
  return callee.kind == Kind::global && callee.text == function;
}

}  // namespace speech
