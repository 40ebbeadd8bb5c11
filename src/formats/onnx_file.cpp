#include "formats/onnx_file.h"

#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

constexpr int kMaxNesting = 32;  // of subgraphs
constexpr size_t kMaxAxes = 64;

struct OnnxType {
  int number;
  std::string_view name;
  DType type;
  int bits;
};

constexpr OnnxType kTypes[] = {
    {1, "F32", DType::f32, 32},
    {2, "U8", DType::u8, 8},
    {3, "I8", DType::i8, 8},
    {4, "U16", DType::u16, 16},
    {5, "I16", DType::i16, 16},
    {6, "I32", DType::i32, 32},
    {7, "I64", DType::i64, 64},
    {9, "BOOL", DType::boolean, 8},
    {10, "F16", DType::f16, 16},
    {11, "F64", DType::f64, 64},
    {12, "U32", DType::u32, 32},
    {13, "U64", DType::u64, 64},
    {14, "C64", DType::other, 64},
    {15, "C128", DType::other, 128},
    {16, "BF16", DType::bf16, 16},
    {17, "F8_E4M3", DType::f8_e4m3, 8},
    {18, "F8_E4M3FNUZ", DType::other, 8},
    {19, "F8_E5M2", DType::f8_e5m2, 8},
    {20, "F8_E5M2FNUZ", DType::other, 8},
    {21, "U4", DType::other, 4},
    {22, "I4", DType::other, 4},
    {23, "F4_E2M1", DType::other, 4},
};
constexpr int kStringType = 8;

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// A field of a protobuf message: a number or a run of bytes.
struct Field {
  uint64_t number;
  uint32_t wire;
  uint64_t value = 0;                // of varints
  std::span<const std::byte> bytes;  // of everything else

  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

uint64_t read_varint(ByteReader& in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    auto byte = in.read<uint8_t>("a number");
    value |= static_cast<uint64_t>(byte & 0x7f) << std::min(shift, 63);
    if (byte < 0x80) return value;
  }
  fail(Status::model_file, "{}: a number of the ONNX file does not end", in.file());
}

Field read_field(ByteReader& in) {
  uint64_t tag = read_varint(in);
  Field field{tag >> 3, static_cast<uint32_t>(tag & 7), 0, {}};
  switch (field.wire) {
    case kVarint:
      field.value = read_varint(in);
      break;
    case kFixed64:
      field.bytes = in.take(8, "a field of the ONNX file");
      break;
    case kBytes:
      field.bytes = in.take(read_varint(in), "a field of the ONNX file");
      break;
    case kFixed32:
      field.bytes = in.take(4, "a field of the ONNX file");
      break;
    default:
      fail(Status::model_file, "{} is not an ONNX file or is damaged: wire type {}", in.file(),
           field.wire);
  }
  return field;
}

}  // namespace

class OnnxFile::Reader {
 public:
  explicit Reader(OnnxFile& file) : file_(file) {}

  void read_model(std::span<const std::byte> bytes) {
    ByteReader in(bytes, file_.path_);
    bool has_graph = false;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.number == 1 && field.wire == kVarint) note("ir_version", field.value);
      if (field.wire != kBytes) continue;
      if (field.number == 2) note("producer_name", field.text());
      if (field.number == 3) note("producer_version", field.text());
      if (field.number == 8) read_opset(field.bytes);
      if (field.number == 14) read_property(field.bytes);
      if (field.number == 7) {
        if (has_graph) fail(Status::model_file, "{}: the ONNX file has two graphs", file_.path_);
        has_graph = true;
        read_graph(field.bytes, "", 0);
      }
    }
    if (!has_graph) {
      fail(Status::model_file, "{} is not an ONNX file or is cut short: it has no graph",
           file_.path_);
    }
  }

 private:
  template <typename T>
  void note(std::string_view key, const T& value) {
    file_.metadata_.emplace_back(key, fmt::format("{}", value));
  }

  void read_opset(std::span<const std::byte> bytes) {
    ByteReader in(bytes, file_.path_);
    std::string domain;
    uint64_t version = 0;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.number == 1 && field.wire == kBytes) domain = field.text();
      if (field.number == 2 && field.wire == kVarint) version = field.value;
    }
    note(domain.empty() ? "opset" : "opset." + domain, version);
  }

  void read_property(std::span<const std::byte> bytes) {
    ByteReader in(bytes, file_.path_);
    std::string key, value;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.number == 1 && field.wire == kBytes) key = field.text();
      if (field.number == 2 && field.wire == kBytes) value = field.text();
    }
    note(key, value);
  }

  void read_graph(std::span<const std::byte> bytes, const std::string& scope, int depth) {
    if (depth > kMaxNesting) {
      fail(Status::model_file, "{}: its graphs are nested more than {} deep", file_.path_,
           kMaxNesting);
    }
    ByteReader in(bytes, file_.path_);
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.wire != kBytes) continue;
      if (field.number == 1) read_node(field.bytes, scope, depth);
      if (field.number == 5) add_tensor(field.bytes, std::nullopt, scope);
      if (field.number == 15) {
        fail(Status::model_file, "{}: sparse initializers are not supported", file_.path_);
      }
    }
  }

  void read_node(std::span<const std::byte> bytes, const std::string& scope, int depth) {
    ByteReader in(bytes, file_.path_);
    std::string_view output, name, type;
    std::vector<std::span<const std::byte>> attributes;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.wire != kBytes) continue;
      if (field.number == 2 && output.empty()) output = field.text();
      if (field.number == 3) name = field.text();
      if (field.number == 4) type = field.text();
      if (field.number == 5) attributes.push_back(field.bytes);
    }
    for (auto attribute : attributes) {
      read_attribute(attribute, output, name.empty() ? output : name, type, scope, depth);
    }
  }

  void read_attribute(std::span<const std::byte> bytes, std::string_view output,
                      std::string_view node, std::string_view type, const std::string& scope,
                      int depth) {
    ByteReader in(bytes, file_.path_);
    std::string_view name;
    std::optional<std::span<const std::byte>> tensor;
    std::vector<std::span<const std::byte>> graphs;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      if (field.wire != kBytes) continue;
      if (field.number == 1) name = field.text();
      if (field.number == 5) tensor = field.bytes;
      if (field.number == 6 || field.number == 11) graphs.push_back(field.bytes);
    }
    if (tensor && type == "Constant" && name == "value") add_tensor(*tensor, output, scope);
    if (graphs.empty()) return;
    std::string inner = scope.empty() ? fmt::format("{}.{}", node, name)
                                      : fmt::format("{}/{}.{}", scope, node, name);
    if (inner.size() > 4096) fail(Status::model_file, "{}: names are too long", file_.path_);
    for (auto graph : graphs) read_graph(graph, inner, depth + 1);
  }

  // The data of a TensorProto, from whichever field has it.
  void add_tensor(std::span<const std::byte> bytes, std::optional<std::string_view> name,
                  const std::string& scope) {
    ByteReader in(bytes, file_.path_);
    std::optional<std::span<const std::byte>> raw;
    std::vector<Field> values;
    uint64_t type_number = 0;
    bool external = false;
    TensorEntry tensor;
    while (in.remaining() > 0) {
      Field field = read_field(in);
      switch (field.number) {
        case 1:
          read_axes(field, tensor.shape);
          break;
        case 2:
          type_number = field.value;
          break;
        case 4:   // float_data
        case 5:   // int32_data
        case 7:   // int64_data
        case 10:  // double_data
        case 11:  // uint64_data
          values.push_back(field);
          break;
        case 8:
          tensor.name = field.text();
          break;
        case 9:
          if (field.wire == kBytes) raw = field.bytes;
          break;
        case 13:
          external = true;
          break;
        case 14:
          external |= field.value == 1;
          break;
      }
    }
    if (name) tensor.name = *name;
    if (tensor.name.empty()) {
      fail(Status::model_file, "{}: a tensor of the ONNX file has no name", file_.path_);
    }
    if (!names_.insert(tensor.name).second) {
      tensor.name = scope.empty() ? tensor.name : fmt::format("{}/{}", scope, tensor.name);
      if (!names_.insert(tensor.name).second) {
        fail(Status::model_file, "{}: tensor {} occurs twice", file_.path_, tensor.name);
      }
    }
    if (external) {
      fail(Status::model_file,
           "{}: tensor {} lies in a separate file, which is not supported; save the model as one "
           "file",
           file_.path_, tensor.name);
    }
    if (type_number == kStringType) return;  // texts are no weights
    const OnnxType* type = nullptr;
    for (const OnnxType& known : kTypes) {
      if (static_cast<uint64_t>(known.number) == type_number) type = &known;
    }
    if (!type) {
      fail(Status::model_file, "{}: tensor {} has type number {}, which is not known", file_.path_,
           tensor.name, type_number);
    }
    tensor.type = type->type;
    tensor.type_name = type->name;
    tensor.bytes = raw ? *raw : decode(values, *type, tensor.name);
    int64_t count = tensor.elements(), bits;
    if (count < 0 || __builtin_mul_overflow(count, int64_t{type->bits}, &bits) ||
        static_cast<uint64_t>(bits / 8 + (bits % 8 != 0)) != tensor.bytes.size()) {
      fail(Status::model_file, "{}: tensor {} of type {} and shape {} has {} bytes", file_.path_,
           tensor.name, type->name, tensor.shape_text(), tensor.bytes.size());
    }
    file_.tensors_.push_back(std::move(tensor));
  }

  void read_axes(const Field& field, std::vector<int64_t>& shape) {
    if (field.wire == kVarint) {
      shape.push_back(static_cast<int64_t>(field.value));
    } else {
      ByteReader in(field.bytes, file_.path_);
      while (in.remaining() > 0 && shape.size() <= kMaxAxes) {
        shape.push_back(static_cast<int64_t>(read_varint(in)));
      }
    }
    if (shape.size() > kMaxAxes) {
      fail(Status::model_file, "{}: a tensor has more than {} axes", file_.path_, kMaxAxes);
    }
  }

  // Floats lie in the file as they are when they are packed in one piece; integers are varints.
  std::span<const std::byte> decode(const std::vector<Field>& fields, const OnnxType& type,
                                    const std::string& name) {
    bool floats = type.type == DType::f32 || type.number == 14;
    bool doubles = type.type == DType::f64 || type.number == 15;
    uint64_t expected = floats                                               ? 4
                        : doubles                                            ? 10
                        : type.type == DType::i64                            ? 7
                        : type.type == DType::u32 || type.type == DType::u64 ? 11
                                                                             : 5;
    for (const Field& field : fields) {
      if (field.number != expected) {
        fail(Status::model_file, "{}: tensor {} of type {} has its values in field {}, not {}",
             file_.path_, name, type.name, field.number, expected);
      }
    }
    if (fields.empty()) return {};
    if ((floats || doubles) && fields.size() == 1) return fields[0].bytes;
    std::vector<std::byte> bytes;
    // Types of 4 bits have two values to a byte, and there is no telling them apart here.
    size_t width = static_cast<size_t>(std::max(type.bits / 8, 1));
    auto append = [&](uint64_t value) {
      const auto* from = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), from, from + width);
    };
    for (const Field& field : fields) {
      if (floats || doubles) {
        bytes.insert(bytes.end(), field.bytes.begin(), field.bytes.end());
      } else if (field.wire == kVarint) {
        append(field.value);
      } else {
        ByteReader in(field.bytes, file_.path_);
        while (in.remaining() > 0) append(read_varint(in));
      }
    }
    file_.decoded_.push_back(std::move(bytes));
    return file_.decoded_.back();
  }

  OnnxFile& file_;
  std::unordered_set<std::string> names_;
};

std::shared_ptr<const OnnxFile> OnnxFile::open(const std::string& path) {
  return parse(MappedFile::open(path));
}

std::shared_ptr<const OnnxFile> OnnxFile::parse(std::shared_ptr<const MappedFile> mapped) {
  auto file = std::make_shared<OnnxFile>();
  file->path_ = mapped->path();
  file->files_ = {mapped};
  Reader(*file).read_model(mapped->bytes());
  file->index_tensors();
  return file;
}

}  // namespace speech
