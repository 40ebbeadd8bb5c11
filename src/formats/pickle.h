// Reader of Python pickles that runs nothing: calls and objects stay descriptions of themselves.
// Format: CPython, Lib/pickletools.py; protocols 2 to 5.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace speech {

class Pickle {
 public:
  using Id = uint32_t;

  enum class Kind : uint8_t {
    none,
    boolean,     // integer: 0 or 1
    integer,     // integer; those that need more than 64 bits are `opaque`
    real,        // real
    text,        // text
    bytes,       // text
    tuple,       // items
    list,        // items; sets too
    dict,        // items: key, value, key, value ...; OrderedDict too
    global,      // text: "module.name", never looked up
    call,        // items: function, tuple of arguments
    object,      // items: class, tuple of arguments, and the state if there is any
    persistent,  // items: the persistent id
    opaque,
  };

  struct Value {
    Kind kind = Kind::none;
    union {
      int64_t integer = 0;
      double real;
    };
    std::string_view text;
    std::vector<Id> items;
  };

  // `bytes` must outlive the pickle; `file` names it in messages. Error(model_file) for damage and
  // for opcodes of protocol 0 and extension registries. Values may refer to each other in circles:
  // whoever walks them has to bound his steps.
  Pickle(std::span<const std::byte> bytes, std::string_view file);

  Id root() const { return root_; }
  const Value& operator[](Id id) const { return values_[id]; }
  // The value under a text key of a dict, or null; the last one if there are several.
  const Value* find(const Value& dict, std::string_view key) const;
  // True for a call of the function "module.name".
  bool is_call(const Value& value, std::string_view function) const;

 private:
  class Machine;

  std::vector<Value> values_;
  std::deque<std::string> names_;  // of globals
  Id root_ = 0;
};

}  // namespace speech
