#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint32_t kTypes = 13;
constexpr int kMaxNesting = 8;        // arrays of arrays
constexpr uint64_t kMaxName = 65535;  // keys (by the format) and tensor names
constexpr uint32_t kMaxAxes = 4;      // GGML_MAX_DIMS
constexpr std::string_view kAlignmentKey = "general.alignment";

// Bytes of a scalar; of a string or array, those of its fixed part.
constexpr int kFixedBytes[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr std::string_view kTypeNames[kTypes] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

// Numbers 4, 5, 31-33 and 36-38 were withdrawn by ggml.
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", 1, 4, DType::f32},
    {1, "F16", 1, 2, DType::f16},
    {2, "Q4_0", 32, 18, DType::other},
    {3, "Q4_1", 32, 20, DType::other},
    {6, "Q5_0", 32, 22, DType::other},
    {7, "Q5_1", 32, 24, DType::other},
    {8, "Q8_0", 32, 34, DType::q8_0},
    {9, "Q8_1", 32, 36, DType::other},
    {10, "Q2_K", 256, 84, DType::other},
    {11, "Q3_K", 256, 110, DType::other},
    {12, "Q4_K", 256, 144, DType::q4_k},
    {13, "Q5_K", 256, 176, DType::q5_k},
    {14, "Q6_K", 256, 210, DType::q6_k},
    {15, "Q8_K", 256, 292, DType::other},
    {16, "IQ2_XXS", 256, 66, DType::other},
    {17, "IQ2_XS", 256, 74, DType::other},
    {18, "IQ3_XXS", 256, 98, DType::other},
    {19, "IQ1_S", 256, 50, DType::other},
    {20, "IQ4_NL", 32, 18, DType::other},
    {21, "IQ3_S", 256, 110, DType::other},
    {22, "IQ2_S", 256, 82, DType::other},
    {23, "IQ4_XS", 256, 136, DType::other},
    {24, "I8", 1, 1, DType::i8},
    {25, "I16", 1, 2, DType::i16},
    {26, "I32", 1, 4, DType::i32},
    {27, "I64", 1, 8, DType::i64},
    {28, "F64", 1, 8, DType::f64},
    {29, "IQ1_M", 256, 56, DType::other},
    {30, "BF16", 1, 2, DType::bf16},
    {34, "TQ1_0", 256, 54, DType::other},
    {35, "TQ2_0", 256, 66, DType::other},
    {39, "MXFP4", 32, 17, DType::other},
    {40, "NVFP4", 64, 36, DType::other},
    {41, "Q1_0", 128, 18, DType::other},
};

GgufType read_type(ByteReader& in, std::string_view key) {
  auto number = in.read<uint32_t>("a value type");
  if (number >= kTypes) {
    fail(Status::model_file, "{}: key {} has value type {}; the last one known is {}", in.file(),
         key, number, kTypes - 1);
  }
  return static_cast<GgufType>(number);
}

GgufValue read_value(ByteReader& in, GgufType type, std::string_view key, int depth);

// Walks over the elements of an array; `each` is called with every one of them.
template <typename Each>
void read_elements(ByteReader& in, GgufType element, uint64_t count, std::string_view key,
                   int depth, Each&& each) {
  for (uint64_t i = 0; i < count; ++i) each(read_value(in, element, key, depth));
}

GgufValue read_value(ByteReader& in, GgufType type, std::string_view key, int depth) {
  GgufValue value;
  value.type = type;
  if (type == GgufType::string) {
    auto length = in.read<uint64_t>("a string's length");
    value.bytes = in.take(length, "a string");
    return value;
  }
  if (type != GgufType::array) {
    value.bytes = in.take(kFixedBytes[static_cast<int>(type)], "a value");
    if (type == GgufType::boolean && value.bytes[0] > std::byte{1}) {
      fail(Status::model_file, "{}: key {} holds a bool that is {}, neither 0 nor 1", in.file(),
           key, static_cast<int>(value.bytes[0]));
    }
    return value;
  }
  if (depth >= kMaxNesting) {
    fail(Status::model_file, "{}: key {} nests arrays more than {} deep", in.file(), key,
         kMaxNesting);
  }
  value.element = read_type(in, key);
  value.count = in.read<uint64_t>("an array's length");
  auto size = static_cast<uint64_t>(kFixedBytes[static_cast<int>(value.element)]);
  if (value.count > in.remaining() / size) {
    fail(Status::model_file,
         "{}: key {} is an array of {} elements, for which the {} bytes left do not suffice",
         in.file(), key, value.count, in.remaining());
  }
  uint64_t begin = in.position();
  bool fixed = value.element != GgufType::string && value.element != GgufType::array &&
               value.element != GgufType::boolean;
  if (fixed) {
    in.take(value.count * size, "an array");
  } else {
    read_elements(in, value.element, value.count, key, depth + 1, [](const GgufValue&) {});
  }
  value.bytes = in.since(begin);
  return value;
}

std::string read_name(ByteReader& in, std::string_view what) {
  auto length = in.read<uint64_t>(what);
  if (length == 0 || length > kMaxName) {
    fail(Status::model_file, "{}: {} at byte {} is {} bytes long; 1 to {} are allowed", in.file(),
         what, in.position() - 8, length, kMaxName);
  }
  return std::string(in.text(length, what));
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

bool tensor_rows_fit(std::span<const int64_t> shape, const GgmlType& type) {
  return (shape.empty() ? 1 : shape.back()) % type.block == 0;
}

// Bytes of a tensor, or nothing if rows are no whole blocks or the size overflows.
std::optional<uint64_t> tensor_size(std::span<const int64_t> shape, const GgmlType& type) {
  int64_t count = checked_elements(shape);
  if (count < 0 || !tensor_rows_fit(shape, type)) return {};
  uint64_t bytes;
  if (__builtin_mul_overflow(static_cast<uint64_t>(count) / static_cast<uint64_t>(type.block),
                             static_cast<uint64_t>(type.block_bytes), &bytes)) {
    return {};
  }
  return bytes;
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  return kTypeNames[static_cast<int>(type)];
}

const GgmlType* ggml_type(uint32_t number) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

const GgmlType* ggml_type(DType dtype) {
  if (dtype == DType::other) return nullptr;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.dtype == dtype) return &type;
  }
  return nullptr;
}

std::string GgufValue::type_text() const {
  if (type != GgufType::array) return std::string(gguf_type_name(type));
  return fmt::format("array of {}", gguf_type_name(element));
}

int64_t GgufValue::as_integer() const {
  switch (type) {
    case GgufType::u8:
      return load<uint8_t>(bytes.data());
    case GgufType::i8:
      return load<int8_t>(bytes.data());
    case GgufType::u16:
      return load<uint16_t>(bytes.data());
    case GgufType::i16:
      return load<int16_t>(bytes.data());
    case GgufType::u32:
      return load<uint32_t>(bytes.data());
    case GgufType::i32:
      return load<int32_t>(bytes.data());
    case GgufType::i64:
      return load<int64_t>(bytes.data());
    default:
      fail(Status::internal, "a {} is no int64", type_text());
  }
}

uint64_t GgufValue::as_u64() const {
  if (type != GgufType::u64) fail(Status::internal, "a {} is no u64", type_text());
  return load<uint64_t>(bytes.data());
}

double GgufValue::as_float() const {
  if (type == GgufType::f32) return load<float>(bytes.data());
  if (type != GgufType::f64) fail(Status::internal, "a {} is no float", type_text());
  return load<double>(bytes.data());
}

std::vector<GgufValue> GgufValue::elements() const {
  std::vector<GgufValue> values;
  if (type != GgufType::array) return values;
  values.reserve(count);
  ByteReader in(bytes, "metadata");
  read_elements(in, element, count, "", 0,
                [&](const GgufValue& value) { values.push_back(value); });
  return values;
}

std::shared_ptr<const GgufFile> GgufFile::open(const std::string& path) {
  return parse(MappedFile::open(path));
}

std::shared_ptr<const GgufFile> GgufFile::parse(std::shared_ptr<const MappedFile> file) {
  auto gguf = std::make_shared<GgufFile>();
  gguf->read(std::move(file));
  return gguf;
}

void GgufFile::read(std::shared_ptr<const MappedFile> file) {
  path_ = file->path();
  files_ = {file};
  ByteReader in(file->bytes(), path_);
  if (in.remaining() < 4 || in.read<uint32_t>("the magic") != kMagic) {
    fail(Status::model_file, "{} is not a GGUF file: it does not begin with \"GGUF\"", path_);
  }
  auto version = in.read<uint32_t>("the version");
  if (version == __builtin_bswap32(kVersion)) {
    fail(Status::model_file, "{} is a big-endian GGUF file; only little-endian ones are read",
         path_);
  }
  if (version != kVersion) {
    fail(Status::model_file, "{} has GGUF version {}; version {} is read", path_, version,
         kVersion);
  }
  auto tensor_count = in.read<uint64_t>("the tensor count");
  auto pair_count = in.read<uint64_t>("the key count");
  constexpr uint64_t kLeastTensor = 8 + 1 + 4 + 4 + 8, kLeastPair = 8 + 1 + 4 + 1;
  if (tensor_count > in.remaining() / kLeastTensor || pair_count > in.remaining() / kLeastPair) {
    fail(Status::model_file, "{} announces {} keys and {} tensors, more than {} bytes can hold",
         path_, pair_count, tensor_count, file->bytes().size());
  }

  uint64_t begin = in.position();
  metadata_.reserve(pair_count);
  for (uint64_t i = 0; i < pair_count; ++i) {
    uint64_t pair_begin = in.position();
    GgufKeyValue pair;
    pair.key = read_name(in, "a key");
    GgufType type = read_type(in, pair.key);
    pair.value = read_value(in, type, pair.key, 0);
    pair.bytes = in.since(pair_begin);
    metadata_.push_back(std::move(pair));
  }
  metadata_bytes_ = in.since(begin);
  for (size_t i = 0; i < metadata_.size(); ++i) {
    if (!keys_.emplace(metadata_[i].key, i).second) {
      fail(Status::model_file, "{}: key {} occurs twice", path_, metadata_[i].key);
    }
  }
  if (has(kAlignmentKey)) {
    alignment_ = get_u32(kAlignmentKey);
    if (!std::has_single_bit(alignment_)) {
      fail(Status::model_file, "{}: key {} is {}, which is not a power of two", path_,
           kAlignmentKey, alignment_);
    }
  }

  struct Place {
    uint64_t offset, bytes;
    size_t tensor;
  };
  std::vector<Place> places;
  places.reserve(tensor_count);
  tensors_.reserve(tensor_count);
  types_.reserve(tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorEntry tensor;
    tensor.name = read_name(in, "a tensor's name");
    auto axes = in.read<uint32_t>("a number of axes");
    if (axes > kMaxAxes) {
      fail(Status::model_file, "{}: tensor {} has {} axes; at most {} are allowed", path_,
           tensor.name, axes, kMaxAxes);
    }
    tensor.shape.resize(axes);
    for (uint32_t axis = 0; axis < axes; ++axis) {
      auto size = in.read<uint64_t>("an axis");
      if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(Status::model_file, "{}: axis {} of tensor {} is {} long", path_, axis, tensor.name,
             size);
      }
      tensor.shape[axes - 1 - axis] = static_cast<int64_t>(size);
    }
    auto number = in.read<uint32_t>("a tensor's type");
    const GgmlType* type = ggml_type(number);
    if (!type) {
      fail(Status::model_file, "{}: tensor {} has type number {}, which is not known", path_,
           tensor.name, number);
    }
    tensor.type = type->dtype;
    tensor.type_name = type->name;
    auto size = tensor_size(tensor.shape, *type);
    if (!size) {
      fail(Status::model_file, "{}: tensor {} of type {} has shape {}: {}", path_, tensor.name,
           type->name, tensor.shape_text(),
           tensor_rows_fit(tensor.shape, *type)
               ? std::string("too many values")
               : fmt::format("rows must be multiples of {}", type->block));
    }
    auto offset = in.read<uint64_t>("a tensor's offset");
    if (offset % alignment_ != 0) {
      fail(Status::model_file, "{}: tensor {} lies at offset {}, not a multiple of {}", path_,
           tensor.name, offset, alignment_);
    }
    places.push_back({offset, *size, tensors_.size()});
    tensors_.push_back(std::move(tensor));
    types_.push_back(type);
  }

  uint64_t data = align_up(in.position(), alignment_);
  uint64_t available = file->bytes().size() > data ? file->bytes().size() - data : 0;
  for (const Place& place : places) {
    if (place.bytes > available || place.offset > available - place.bytes) {
      fail(Status::model_file,
           "{}: tensor {} takes {} bytes at offset {}, past the end of the data ({} bytes): the "
           "file is cut short or damaged",
           path_, tensors_[place.tensor].name, place.bytes, place.offset, available);
    }
    if (place.bytes == 0) continue;
    tensors_[place.tensor].bytes = file->bytes().subspan(data + place.offset, place.bytes);
  }
  index_tensors();  // a name that occurs twice says more than the overlap that it may be
  std::erase_if(places, [](const Place& place) { return place.bytes == 0; });
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].offset - places[i - 1].offset < places[i - 1].bytes) {
      fail(Status::model_file, "{}: tensors {} and {} overlap", path_,
           tensors_[places[i - 1].tensor].name, tensors_[places[i].tensor].name);
    }
  }
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  auto it = keys_.find(key);
  return it == keys_.end() ? nullptr : &metadata_[it->second].value;
}

const GgufValue& GgufFile::require_value(std::string_view key, GgufType type) const {
  const GgufValue* value = find_value(key);
  if (!value) {
    fail(Status::model_file, "{}: key {} ({}) is missing", path_, key, gguf_type_name(type));
  }
  if (value->type != type) {
    fail(Status::model_file, "{}: key {} must be {}, but is {}", path_, key, gguf_type_name(type),
         value->type_text());
  }
  return *value;
}

const GgufValue& GgufFile::require_array(std::string_view key, GgufType element) const {
  const GgufValue* value = find_value(key);
  if (!value) {
    fail(Status::model_file, "{}: key {} (array of {}) is missing", path_, key,
         gguf_type_name(element));
  }
  if (value->type != GgufType::array || value->element != element) {
    fail(Status::model_file, "{}: key {} must be array of {}, but is {}", path_, key,
         gguf_type_name(element), value->type_text());
  }
  return *value;
}

std::string GgufFile::get_string(std::string_view key) const {
  return std::string(require_value(key, GgufType::string).as_string());
}
uint32_t GgufFile::get_u32(std::string_view key) const {
  return load<uint32_t>(require_value(key, GgufType::u32).bytes.data());
}
int32_t GgufFile::get_i32(std::string_view key) const {
  return load<int32_t>(require_value(key, GgufType::i32).bytes.data());
}
uint64_t GgufFile::get_u64(std::string_view key) const {
  return load<uint64_t>(require_value(key, GgufType::u64).bytes.data());
}
int64_t GgufFile::get_i64(std::string_view key) const {
  return load<int64_t>(require_value(key, GgufType::i64).bytes.data());
}
float GgufFile::get_f32(std::string_view key) const {
  return load<float>(require_value(key, GgufType::f32).bytes.data());
}
double GgufFile::get_f64(std::string_view key) const {
  return load<double>(require_value(key, GgufType::f64).bytes.data());
}
bool GgufFile::get_bool(std::string_view key) const {
  return require_value(key, GgufType::boolean).as_bool();
}

std::vector<std::string> GgufFile::get_strings(std::string_view key) const {
  std::vector<std::string> values;
  for (const GgufValue& value : require_array(key, GgufType::string).elements()) {
    values.emplace_back(value.as_string());
  }
  return values;
}

template <typename T>
std::vector<T> GgufFile::numbers(std::string_view key, GgufType element) const {
  const GgufValue& value = require_array(key, element);
  std::vector<T> values(value.count);
  if (!values.empty()) std::memcpy(values.data(), value.bytes.data(), value.bytes.size());
  return values;
}

std::vector<uint32_t> GgufFile::get_u32s(std::string_view key) const {
  return numbers<uint32_t>(key, GgufType::u32);
}
std::vector<int32_t> GgufFile::get_i32s(std::string_view key) const {
  return numbers<int32_t>(key, GgufType::i32);
}
std::vector<float> GgufFile::get_f32s(std::string_view key) const {
  return numbers<float>(key, GgufType::f32);
}
std::vector<double> GgufFile::get_f64s(std::string_view key) const {
  return numbers<double>(key, GgufType::f64);
}

std::vector<bool> GgufFile::get_bools(std::string_view key) const {
  std::vector<bool> values;
  for (std::byte byte : require_array(key, GgufType::boolean).bytes) {
    values.push_back(byte != std::byte{0});
  }
  return values;
}

void GgufWriter::note_key(std::string_view key) {
  if (out_) fail(Status::internal, "GGUF key {} comes after begin()", key);
  if (key.empty() || key.size() > kMaxName) fail(Status::internal, "bad GGUF key '{}'", key);
  if (!keys_.emplace(key).second) fail(Status::internal, "GGUF key {} is added twice", key);
  ++pair_count_;
}

void GgufWriter::add(std::string_view key, GgufType type, std::string_view value) {
  note_key(key);
  pairs_ += bytes_of(static_cast<uint64_t>(key.size()));
  pairs_ += key;
  pairs_ += bytes_of(static_cast<uint32_t>(type));
  pairs_ += value;
  if (key == kAlignmentKey && type == GgufType::u32) {
    std::memcpy(&alignment_, value.data(), sizeof(alignment_));
    if (!std::has_single_bit(alignment_)) {
      fail(Status::internal, "{} must be a power of two, not {}", kAlignmentKey, alignment_);
    }
  }
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  std::string bytes(bytes_of(static_cast<uint64_t>(value.size())));
  add(key, GgufType::string, bytes.append(value));
}
void GgufWriter::add_u8(std::string_view key, uint8_t value) {
  add(key, GgufType::u8, bytes_of(value));
}
void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  add(key, GgufType::u32, bytes_of(value));
}
void GgufWriter::add_i32(std::string_view key, int32_t value) {
  add(key, GgufType::i32, bytes_of(value));
}
void GgufWriter::add_u64(std::string_view key, uint64_t value) {
  add(key, GgufType::u64, bytes_of(value));
}
void GgufWriter::add_i64(std::string_view key, int64_t value) {
  add(key, GgufType::i64, bytes_of(value));
}
void GgufWriter::add_f32(std::string_view key, float value) {
  add(key, GgufType::f32, bytes_of(value));
}
void GgufWriter::add_f64(std::string_view key, double value) {
  add(key, GgufType::f64, bytes_of(value));
}
void GgufWriter::add_bool(std::string_view key, bool value) {
  add(key, GgufType::boolean, bytes_of(static_cast<uint8_t>(value)));
}

template <typename T>
void GgufWriter::add_array(std::string_view key, GgufType element, std::span<const T> values) {
  std::string bytes(bytes_of(static_cast<uint32_t>(element)));
  bytes += bytes_of(static_cast<uint64_t>(values.size()));
  if constexpr (std::is_same_v<T, std::string>) {
    for (const std::string& value : values) {
      bytes += bytes_of(static_cast<uint64_t>(value.size()));
      bytes += value;
    }
  } else {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  add(key, GgufType::array, bytes);
}

void GgufWriter::add_strings(std::string_view key, std::span<const std::string> values) {
  add_array(key, GgufType::string, values);
}
void GgufWriter::add_u32s(std::string_view key, std::span<const uint32_t> values) {
  add_array(key, GgufType::u32, values);
}
void GgufWriter::add_i32s(std::string_view key, std::span<const int32_t> values) {
  add_array(key, GgufType::i32, values);
}
void GgufWriter::add_f32s(std::string_view key, std::span<const float> values) {
  add_array(key, GgufType::f32, values);
}
void GgufWriter::add_f64s(std::string_view key, std::span<const double> values) {
  add_array(key, GgufType::f64, values);
}
void GgufWriter::add_bools(std::string_view key, const std::vector<bool>& values) {
  std::vector<uint8_t> bytes(values.begin(), values.end());
  add_array<uint8_t>(key, GgufType::boolean, bytes);
}

void GgufWriter::add_pair(const GgufKeyValue& pair) {
  // The value's bytes follow the key's length, the key and the type.
  size_t head = 8 + pair.key.size() + 4;
  std::string_view bytes(reinterpret_cast<const char*>(pair.bytes.data()), pair.bytes.size());
  add(pair.key, pair.value.type, bytes.substr(head));
}

void GgufWriter::add_tensor(std::string_view name, std::span<const int64_t> shape,
                            const GgmlType& type) {
  if (out_) fail(Status::internal, "GGUF tensor {} comes after begin()", name);
  if (name.empty() || name.size() > kMaxName || !names_.emplace(name).second) {
    fail(Status::internal, "bad or repeated GGUF tensor name '{}'", name);
  }
  auto bytes = tensor_size(shape, type);
  if (!bytes || shape.size() > kMaxAxes) {
    fail(Status::internal, "tensor {} of shape [{}] cannot be stored as {}", name,
         fmt::join(shape, ", "), type.name);
  }
  tensors_.push_back({std::string(name), {shape.begin(), shape.end()}, &type, *bytes});
  total_ += *bytes;
}

std::string GgufWriter::header() const {
  std::string text;
  text += bytes_of(kMagic);
  text += bytes_of(kVersion);
  text += bytes_of(static_cast<uint64_t>(tensors_.size()));
  text += bytes_of(pair_count_);
  text += pairs_;
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    text += bytes_of(static_cast<uint64_t>(tensor.name.size()));
    text += tensor.name;
    text += bytes_of(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t axis = tensor.shape.size(); axis-- > 0;) {
      text += bytes_of(static_cast<uint64_t>(tensor.shape[axis]));
    }
    text += bytes_of(tensor.type->number);
    text += bytes_of(offset);
    offset += align_up(tensor.bytes, alignment_);
  }
  text.resize(align_up(text.size(), alignment_), '\0');
  return text;
}

uint64_t GgufWriter::file_size() const {
  uint64_t size = header().size();
  for (const Tensor& tensor : tensors_) size += align_up(tensor.bytes, alignment_);
  return size;
}

void GgufWriter::begin(OutputFile& out) {
  if (out_ || out.size() != 0) fail(Status::internal, "GgufWriter::begin on a file in use");
  if (progress_) progress_(0);
  out.write(header());
  out_ = &out;
  end_full_tensors();
}

// Pads after the current tensor when it is complete (and after empty ones).
void GgufWriter::end_full_tensors() {
  while (current_ < tensors_.size() && written_ == tensors_[current_].bytes) {
    out_->pad_to(alignment_);
    ++current_;
    written_ = 0;
  }
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (!out_ || current_ >= tensors_.size() || bytes.size() > tensors_[current_].bytes - written_) {
    fail(Status::internal, "GgufWriter: {} bytes too many after tensor {}", bytes.size(),
         current_ < tensors_.size() ? tensors_[current_].name : "(the last)");
  }
  out_->write(bytes);
  written_ += bytes.size();
  total_written_ += bytes.size();
  end_full_tensors();
  if (progress_) progress_(static_cast<double>(total_written_) / static_cast<double>(total_));
}

void GgufWriter::finish() {
  if (!out_ || current_ != tensors_.size()) {
    fail(Status::internal, "GgufWriter: tensor {} is not complete",
         current_ < tensors_.size() ? tensors_[current_].name : "(none)");
  }
}

}  // namespace speech
