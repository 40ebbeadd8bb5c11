// What every model file has in common: a list of named tensors over mapped bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"

namespace speech {

// Element types of model files. The block types and their order of bytes are ggml's.
enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  q8_0,
  q6_k,
  q5_k,
  q4_k,
  other,  // a ggml type that this library does not compute with; TensorEntry::type_name says which
};

// "F32", "BF16", "Q4_K", "F8_E4M3", "BOOL", ...
std::string_view dtype_name(DType type);
// Bytes of one value; 0 for block types and `other`.
int dtype_bytes(DType type);

struct TensorEntry {
  std::string name;
  DType type = DType::f32;
  std::string type_name;       // dtype_name(type), or the file's own name for `other`
  std::vector<int64_t> shape;  // outermost axis first (PyTorch order); [] for a scalar
  // In elements; empty when the values lie in order (only torch and npy files have others).
  std::vector<int64_t> strides;
  // The values, little-endian, at any alignment; with strides, from the first to the last in use.
  std::span<const std::byte> bytes;

  int64_t elements() const;
  std::string shape_text() const;  // "[512, 128]"
};

// The tensors' names, types and shapes are checked when a file is opened: bytes holds what shape
// and type ask for, elements() does not overflow, no name occurs twice.
class TensorFile {
 public:
  TensorFile() = default;
  virtual ~TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  virtual std::string_view format()
      const = 0;  // "gguf", "safetensors", "torch", "torchscript", "nemo", "npy", "onnx"
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;  // null if there is none
  // find() or Error(model_file) "tensor NAME is missing from FILE".
  const TensorEntry& require(std::string_view name) const;
  const std::string& path() const { return path_; }
  // Checks all bytes against the checksums that the format has: Error(model_file). It reads the
  // whole file, so opening does not.
  virtual void check_contents() const {}
  // MappedFile::release for the bytes of one tensor: for passes over a whole file.
  void release(const TensorEntry& tensor) const;

 protected:
  // Called once tensors_ is complete: Error(model_file) if a name occurs twice.
  void index_tensors();

  std::vector<TensorEntry> tensors_;
  std::string path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;  // what the spans point into

 private:
  std::unordered_map<std::string_view, size_t> index_;
};

// Number of elements, or -1 if a size is negative or the product exceeds an int64_t.
int64_t checked_elements(std::span<const int64_t> shape);

// Values of a float tensor (f64, f32, f16, bf16, f8) or integer tensor as f32, strides followed.
// Error(model_file) for block types.
std::vector<float> to_f32(const TensorEntry& tensor);
std::vector<int64_t> to_i64(const TensorEntry& tensor);  // integer and bool tensors

// Opens any file or folder this library can read, by its contents (not its name): a GGUF file, a
// safetensors file, a folder with model.safetensors or an index, a torch zip archive (.pt, .ckpt,
// .jit), a .nemo archive (its model_weights.ckpt), a .npy or a .onnx file.
std::shared_ptr<const TensorFile> open_tensor_file(const std::string& path);
// The same for a file that is mapped already.
std::shared_ptr<const TensorFile> parse_tensor_file(std::shared_ptr<const MappedFile> file);

}  // namespace speech
