// GGUF version 3, little-endian: reader and writer.
// Format: ggml, docs/gguf.md. A file is a header, key/value pairs, tensor descriptions, padding to
// the alignment, and the tensors' data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/tensor_file.h"

namespace speech {

enum class GgufType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};

std::string_view gguf_type_name(GgufType type);  // "u32", "string", "bool", ...

// A metadata value: a view of validated bytes of the file.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;   // element type of an array
  uint64_t count = 0;                // elements of an array
  std::span<const std::byte> bytes;  // the scalar, the string's text, or the array's elements

  std::string type_text() const;  // "u32", "array of string"

  // Scalars and strings; the caller has looked at `type`.
  int64_t as_integer() const;  // every integer type but u64
  uint64_t as_u64() const;
  double as_float() const;  // f32, f64
  bool as_bool() const { return bytes[0] != std::byte{0}; }
  std::string_view as_string() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Elements of an array, arrays of arrays included.
  std::vector<GgufValue> elements() const;
};

struct GgufKeyValue {
  std::string key;
  GgufValue value;
  std::span<const std::byte> bytes;  // the whole pair as it lies in the file
};

// One of ggml's tensor types.
struct GgmlType {
  uint32_t number;
  std::string_view name;  // "Q4_K"
  int block;              // values per block
  int block_bytes;
  DType dtype;  // DType::other when this library only knows its size
};

const GgmlType* ggml_type(uint32_t number);  // null for an unknown or withdrawn number
const GgmlType* ggml_type(DType type);       // null if GGUF has no such type

class GgufFile : public TensorFile {
 public:
  // Errors: io, model_file. Every length, count, type, offset and name is checked here.
  static std::shared_ptr<const GgufFile> open(const std::string& path);
  static std::shared_ptr<const GgufFile> parse(std::shared_ptr<const MappedFile> file);

  std::string_view format() const override { return "gguf"; }

  const std::vector<GgufKeyValue>& metadata() const { return metadata_; }  // in file order
  bool has(std::string_view key) const { return find_value(key) != nullptr; }
  const GgufValue* find_value(std::string_view key) const;  // null if absent

  // Values by exact type. Error(model_file) naming the key, the type wanted and the type found.
  std::string get_string(std::string_view key) const;
  uint32_t get_u32(std::string_view key) const;
  int32_t get_i32(std::string_view key) const;
  uint64_t get_u64(std::string_view key) const;
  int64_t get_i64(std::string_view key) const;
  float get_f32(std::string_view key) const;
  double get_f64(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::vector<std::string> get_strings(std::string_view key) const;
  std::vector<uint32_t> get_u32s(std::string_view key) const;
  std::vector<int32_t> get_i32s(std::string_view key) const;
  std::vector<float> get_f32s(std::string_view key) const;
  std::vector<double> get_f64s(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;

  uint32_t alignment() const { return alignment_; }
  // The bytes of all key/value pairs.
  std::span<const std::byte> metadata_bytes() const { return metadata_bytes_; }
  // ggml's type of tensors()[i]. Its ne (innermost axis first) is the shape read backwards.
  const GgmlType& tensor_type(size_t i) const { return *types_[i]; }

 private:
  void read(std::shared_ptr<const MappedFile> file);
  const GgufValue& require_value(std::string_view key, GgufType type) const;
  const GgufValue& require_array(std::string_view key, GgufType element) const;
  template <typename T>
  std::vector<T> numbers(std::string_view key, GgufType element) const;

  std::vector<GgufKeyValue> metadata_;
  std::unordered_map<std::string_view, size_t> keys_;
  std::span<const std::byte> metadata_bytes_;
  std::vector<const GgmlType*> types_;
  uint32_t alignment_ = 32;
};

// Writes a GGUF file as a stream: first all metadata and tensor descriptions, then begin(), then
// the tensors' bytes in the order they were declared, then finish(). Misuse is Error(internal).
class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    const GgmlType* type;
    uint64_t bytes;
  };

  void add_string(std::string_view key, std::string_view value);
  void add_u8(std::string_view key, uint8_t value);
  void add_u32(std::string_view key, uint32_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_u64(std::string_view key, uint64_t value);
  void add_i64(std::string_view key, int64_t value);
  void add_f32(std::string_view key, float value);
  void add_f64(std::string_view key, double value);
  void add_bool(std::string_view key, bool value);
  void add_strings(std::string_view key, std::span<const std::string> values);
  void add_u32s(std::string_view key, std::span<const uint32_t> values);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  void add_f64s(std::string_view key, std::span<const double> values);
  void add_bools(std::string_view key, const std::vector<bool>& values);
  // A pair of another file, to the byte.
  void add_pair(const GgufKeyValue& pair);

  // Shape outermost axis first, at most 4 axes; rows in whole blocks of the type.
  void add_tensor(std::string_view name, std::span<const int64_t> shape, const GgmlType& type);

  uint64_t file_size() const;  // of the finished file
  const std::vector<Tensor>& tensors() const { return tensors_; }

  // Called by begin() before anything is written, and after every write() with the share of the
  // tensors' bytes that is done, 0..1. What it throws ends the writing.
  void set_progress(std::function<void(double done)> progress) { progress_ = std::move(progress); }

  // Writes everything before the data.
  void begin(OutputFile& out);
  // The next bytes of the current tensor, in pieces of any size that do not cross into the next.
  void write(std::span<const std::byte> bytes);
  // Error(internal) unless every tensor got all its bytes. The file is not committed.
  void finish();

 private:
  // Appends a pair; `value` holds its bytes as they go into the file.
  void add(std::string_view key, GgufType type, std::string_view value);
  template <typename T>
  void add_array(std::string_view key, GgufType element, std::span<const T> values);
  void note_key(std::string_view key);
  void end_full_tensors();
  std::string header() const;

  std::string pairs_;
  uint64_t pair_count_ = 0;
  std::unordered_set<std::string> keys_, names_;
  std::vector<Tensor> tensors_;
  uint32_t alignment_ = 32;
  OutputFile* out_ = nullptr;
  size_t current_ = 0;
  uint64_t written_ = 0;  // of the current tensor
  uint64_t total_ = 0, total_written_ = 0;
  std::function<void(double)> progress_;
};

}  // namespace speech
