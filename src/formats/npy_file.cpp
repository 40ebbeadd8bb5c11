#include "formats/npy_file.h"

#include <charconv>
#include <optional>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

constexpr uint64_t kMaxHeader = 1 << 20;
constexpr size_t kMaxAxes = 64;

struct NpyType {
  std::string_view name;  // without the byte order
  DType type;
  int bytes;
};

constexpr NpyType kTypes[] = {
    {"f8", DType::f64, 8},   {"f4", DType::f32, 4},     {"f2", DType::f16, 2},
    {"i8", DType::i64, 8},   {"i4", DType::i32, 4},     {"i2", DType::i16, 2},
    {"i1", DType::i8, 1},    {"u8", DType::u64, 8},     {"u4", DType::u32, 4},
    {"u2", DType::u16, 2},   {"u1", DType::u8, 1},      {"b1", DType::boolean, 1},
    {"c8", DType::other, 8}, {"c16", DType::other, 16},
};

// The header is the text of a Python dict: {'descr': '<f4', 'fortran_order': False,
// 'shape': (2, 3), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view path) : text_(text), path_(path) {}

  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;

  void parse() {
    expect('{');
    while (!accept('}')) {
      std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        descr = quoted();
      } else if (key == "fortran_order" && !fortran) {
        fortran = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        damaged(fmt::format("the key '{}' is unknown or occurs twice", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) damaged("something follows the dict");
    if (!descr || !fortran || !shape) damaged("it lacks descr, fortran_order or shape");
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail(Status::model_file, "{}: the header of the .npy file is not readable at character {}: {}",
         path_, at_, what);
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) damaged(fmt::format("'{}' is missing", c));
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::string quoted() {
    char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') {
      if (!accept('\'')) damaged("a text in quotes is missing (arrays of records are not read)");
    }
    size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) damaged("a text does not end");
    std::string text(text_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) damaged("True or False is missing");
    return false;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t number = 0;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
      if (error != std::errc() || number < 0) damaged("an axis is not a number");
      at_ = static_cast<size_t>(end - text_.data());
      accept('L');  // as Python 2 wrote them
      if (numbers.size() == kMaxAxes) damaged(fmt::format("more than {} axes", kMaxAxes));
      numbers.push_back(number);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return numbers;
  }

  std::string_view text_, path_;
  size_t at_ = 0;
};

}  // namespace

std::shared_ptr<const NpyFile> NpyFile::open(const std::string& path) {
  return parse(MappedFile::open(path));
}

std::shared_ptr<const NpyFile> NpyFile::parse(std::shared_ptr<const MappedFile> mapped) {
  auto file = std::make_shared<NpyFile>();
  file->path_ = mapped->path();
  file->files_ = {mapped};
  const std::string& path = file->path_;
  ByteReader in(mapped->bytes(), path);
  if (in.remaining() < 6 || in.text(6, "the magic") != "\x93NUMPY") {
    fail(Status::model_file, "{} is not a .npy file", path);
  }
  auto version = in.read<uint8_t>("the version");
  in.read<uint8_t>("the version");
  if (version < 1 || version > 3) {
    fail(Status::model_file, "{} has .npy version {}; versions 1 to 3 are read", path, version);
  }
  uint64_t length = version == 1 ? in.read<uint16_t>("the header's length")
                                 : in.read<uint32_t>("the header's length");
  if (length > kMaxHeader) {
    fail(Status::model_file, "{}: the header takes {} bytes; at most {} are read", path, length,
         kMaxHeader);
  }
  HeaderParser header(in.text(length, "the header"), path);
  header.parse();

  std::string_view descr = *header.descr;
  char order = descr.empty() ? ' ' : descr[0];
  if (order == '>') fail(Status::model_file, "{} is big-endian ('{}')", path, descr);
  if (order == '<' || order == '|' || order == '=') descr.remove_prefix(1);
  const NpyType* type = nullptr;
  for (const NpyType& known : kTypes) {
    if (known.name == descr) type = &known;
  }
  if (!type) {
    fail(Status::model_file, "{}: values of type '{}' are not supported", path, *header.descr);
  }
  TensorEntry tensor;
  tensor.name = "array";
  tensor.type = type->type;
  tensor.type_name = type->type == DType::other ? fmt::format("complex{}", type->bytes * 8)
                                                : std::string(dtype_name(type->type));
  tensor.shape = *header.shape;
  int64_t count = tensor.elements(), bytes;
  if (count < 0 || __builtin_mul_overflow(count, int64_t{type->bytes}, &bytes) ||
      static_cast<uint64_t>(bytes) != in.remaining()) {
    fail(Status::model_file,
         "{}: values of type {} and shape {} do not take the {} bytes there are", path,
         tensor.type_name, tensor.shape_text(), in.remaining());
  }
  tensor.bytes = in.take(in.remaining(), "the values");
  if (*header.fortran && tensor.shape.size() > 1 && count > 0) {
    int64_t step = 1;
    for (int64_t size : tensor.shape) {
      tensor.strides.push_back(step);
      step *= size;
    }
  }
  file->tensors_.push_back(std::move(tensor));
  file->index_tensors();
  return file;
}

}  // namespace speech
