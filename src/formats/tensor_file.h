// What every model file has in common: a list of named tensors over mapped bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

struct TensorEntry {
  std::string name;
  DType type = DType::f32;
  std::string type_name;       // dtype_name(type), or the file's own name for `other`
  std::vector<int64_t> shape;  // outermost axis first (PyTorch order); [] for a scalar
  std::vector<int64_t>
      strides;  // in elements; empty when contiguous (only torch archives have them)
  std::span<const std::byte> bytes;  // the values, any alignment; whole storage reach when strided

  int64_t elements() const;
  std::string shape_text() const;  // "[512, 128]"
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual std::string_view format() const = 0;  // "gguf", "safetensors", "torch", "npy", "onnx"
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;  // null if there is none
  // find() or Error(model_file) "tensor NAME is missing from FILE".
  const TensorEntry& require(std::string_view name) const;
  const std::string& path() const { return path_; }

 protected:
  std::vector<TensorEntry> tensors_;
  std::string path_;
};

// Values of a float tensor (f64, f32, f16, bf16, f8) or integer tensor as f32, strides followed.
// Error(model_file) for block types.
std::vector<float> to_f32(const TensorEntry& tensor);
std::vector<int64_t> to_i64(const TensorEntry& tensor);  // integer and bool tensors

// Opens any file or folder this library can read, by its contents (not its name): a GGUF file, a
// safetensors file, a folder with model.safetensors or an index, a torch zip archive (.pt, .ckpt,
// .jit), a .nemo archive (its model_weights.ckpt), a .npy or a .onnx file.
std::shared_ptr<const TensorFile> open_tensor_file(const std::string& path);

}  // namespace speech
