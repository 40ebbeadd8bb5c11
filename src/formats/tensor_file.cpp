#include "formats/tensor_file.h"

#include <bit>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "quant/half.h"

namespace speech {
namespace {

struct DTypeFacts {
  std::string_view name;
  int bytes;
};

constexpr DTypeFacts kDTypes[] = {
    {"F64", 8},  {"F32", 4},  {"F16", 2},  {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I64", 8},
    {"I32", 4},  {"I16", 2},  {"I8", 1},   {"U64", 8},  {"U32", 4},     {"U16", 2},     {"U8", 1},
    {"BOOL", 1}, {"Q8_0", 0}, {"Q6_K", 0}, {"Q5_K", 0}, {"Q4_K", 0},    {"other", 0},
};

// "e4m3fn": no infinities, and exponent and fraction all ones are NaN. The rest, moved to the place
// of an f16's exponent and fraction, differ from it by the bias alone: 15 - 7.
float f8_e4m3_to_f32(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u | (bits & 0x80u) << 24);
  return f16_to_f32(static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 256;
}

float f32_at(DType type, const std::byte* p) {
  switch (type) {
    case DType::f64:
      return static_cast<float>(load<double>(p));
    case DType::f32:
      return load<float>(p);
    case DType::f16:
      return f16_to_f32(load<uint16_t>(p));
    case DType::bf16:
      return bf16_to_f32(load<uint16_t>(p));
    case DType::f8_e4m3:
      return f8_e4m3_to_f32(load<uint8_t>(p));
    case DType::f8_e5m2:
      return f16_to_f32(static_cast<uint16_t>(load<uint8_t>(p) << 8));
    case DType::u64:
      return static_cast<float>(load<uint64_t>(p));
    default:
      return 0;
  }
}

bool is_integer(DType type) {
  return type >= DType::i64 && type <= DType::boolean;
}

int64_t i64_at(const TensorEntry& tensor, const std::byte* p) {
  switch (tensor.type) {
    case DType::i64:
      return load<int64_t>(p);
    case DType::i32:
      return load<int32_t>(p);
    case DType::i16:
      return load<int16_t>(p);
    case DType::i8:
      return load<int8_t>(p);
    case DType::u64: {
      auto value = load<uint64_t>(p);
      if (value > static_cast<uint64_t>(INT64_MAX)) {
        fail(Status::model_file, "tensor {} holds {}, which is more than an int64 can hold",
             tensor.name, value);
      }
      return static_cast<int64_t>(value);
    }
    case DType::u32:
      return load<uint32_t>(p);
    case DType::u16:
      return load<uint16_t>(p);
    case DType::boolean:
      return load<uint8_t>(p) != 0;
    default:
      return load<uint8_t>(p);
  }
}

// Calls visit(pointer to value) for every element, last axis fastest.
template <typename Visit>
void for_each_value(const TensorEntry& tensor, Visit&& visit) {
  const auto width = static_cast<int64_t>(dtype_bytes(tensor.type));
  const int64_t count = checked_elements(tensor.shape);
  const auto available = static_cast<int64_t>(tensor.bytes.size()) / width;
  const std::byte* base = tensor.bytes.data();
  if (tensor.strides.empty()) {
    if (count < 0 || count > available) fail(Status::internal, "tensor {} is cut", tensor.name);
    for (int64_t i = 0; i < count; ++i) visit(base + i * width);
    return;
  }
  if (count == 0) return;
  std::vector<int64_t> at(tensor.shape.size(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (offset < 0 || offset >= available) fail(Status::internal, "tensor {} is cut", tensor.name);
    visit(base + offset * width);
    for (size_t axis = at.size(); axis-- > 0;) {
      offset += tensor.strides[axis];
      if (++at[axis] < tensor.shape[axis]) break;
      offset -= at[axis] * tensor.strides[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace

std::string_view dtype_name(DType type) {
  return kDTypes[static_cast<int>(type)].name;
}

int dtype_bytes(DType type) {
  return kDTypes[static_cast<int>(type)].bytes;
}

int64_t checked_elements(std::span<const int64_t> shape) {
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) return -1;
    empty |= size == 0;
  }
  if (empty) return 0;
  int64_t count = 1;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) return -1;
  }
  return count;
}

int64_t TensorEntry::elements() const {
  return checked_elements(shape);
}

std::string TensorEntry::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const TensorEntry* TensorFile::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const TensorEntry& TensorFile::require(std::string_view name) const {
  const TensorEntry* tensor = find(name);
  if (!tensor) fail(Status::model_file, "tensor {} is missing from {}", name, path_);
  return *tensor;
}

void TensorFile::release(const TensorEntry& tensor) const {
  for (const auto& file : files_) {
    auto bytes = file->bytes();
    if (tensor.bytes.data() >= bytes.data() &&
        tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()) {
      file->release(tensor.bytes);
    }
  }
}

void TensorFile::index_tensors() {
  index_.clear();
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) {
      fail(Status::model_file, "{}: tensor {} occurs twice", path_, tensors_[i].name);
    }
  }
}

std::vector<float> to_f32(const TensorEntry& tensor) {
  if (dtype_bytes(tensor.type) == 0) {
    fail(Status::model_file, "tensor {} has type {}; a plain float or integer type is needed",
         tensor.name, tensor.type_name);
  }
  std::vector<float> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  if (is_integer(tensor.type) && tensor.type != DType::u64) {
    for_each_value(tensor, [&](const std::byte* p) {
      values.push_back(static_cast<float>(i64_at(tensor, p)));
    });
  } else {
    for_each_value(tensor, [&](const std::byte* p) { values.push_back(f32_at(tensor.type, p)); });
  }
  return values;
}

std::vector<int64_t> to_i64(const TensorEntry& tensor) {
  if (!is_integer(tensor.type)) {
    fail(Status::model_file, "tensor {} has type {}; an integer type is needed", tensor.name,
         tensor.type_name);
  }
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  for_each_value(tensor, [&](const std::byte* p) { values.push_back(i64_at(tensor, p)); });
  return values;
}

}  // namespace speech
