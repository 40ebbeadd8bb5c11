#include "formats/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeader = 100'000'000;  // as the reference reader
constexpr uint64_t kMaxIndex = 100'000'000;

struct FileType {
  std::string_view name;
  DType type;
  int bits;
};

constexpr FileType kTypes[] = {
    {"F64", DType::f64, 64},          {"F32", DType::f32, 32},
    {"F16", DType::f16, 16},          {"BF16", DType::bf16, 16},
    {"F8_E4M3", DType::f8_e4m3, 8},   {"F8_E5M2", DType::f8_e5m2, 8},
    {"I64", DType::i64, 64},          {"I32", DType::i32, 32},
    {"I16", DType::i16, 16},          {"I8", DType::i8, 8},
    {"U64", DType::u64, 64},          {"U32", DType::u32, 32},
    {"U16", DType::u16, 16},          {"U8", DType::u8, 8},
    {"BOOL", DType::boolean, 8},      {"F8_E8M0", DType::other, 8},
    {"C64", DType::other, 64},        {"F8_E4M3FNUZ", DType::other, 8},
    {"F8_E5M2FNUZ", DType::other, 8}, {"F6_E2M3", DType::other, 6},
    {"F6_E3M2", DType::other, 6},     {"F4", DType::other, 4},
};

const FileType* find_type(std::string_view name) {
  for (const FileType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

struct HeaderTensor {
  std::string name, dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

// Reads the header without building a document of it: duplicate keys are seen, and nothing deeper
// than the format's three levels is kept.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(std::string_view path) : path_(path) {}

  std::vector<HeaderTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;

  bool null() override {
    if (depth_ == 1 && key_ == "__metadata__") return true;  // MLX writes this
    return wrong("null");
  }
  bool boolean(bool) override { return wrong("a bool"); }
  bool number_integer(number_integer_t value) override { return wrong(fmt::format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!numbers_) return wrong(fmt::format("{}", value));
    numbers_->push_back(value);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override { return wrong(text); }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      metadata.emplace_back(field_, std::move(text));
      return true;
    }
    if (depth_ == 2 && field_ == "dtype") {
      tensors.back().dtype = std::move(text);
      return true;
    }
    return wrong("a string");
  }
  bool binary(binary_t&) override { return wrong("binary"); }

  bool start_object(std::size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    if (depth_ != 1 || numbers_) return wrong("an object");
    depth_ = 2;
    in_metadata_ = key_ == "__metadata__";
    fields_.clear();
    if (!in_metadata_) tensors.push_back({key_, {}, {}, {}});
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      if (text == "__metadata__" && std::exchange(seen_metadata_, true)) {
        fail(Status::model_file, "{}: __metadata__ occurs twice", path_);
      }
      key_ = std::move(text);
    } else {
      if (!fields_.insert(text).second) {
        fail(Status::model_file, "{}: {} of {} occurs twice", path_, text, key_);
      }
      field_ = std::move(text);
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || numbers_) return wrong("an array");
    HeaderTensor& tensor = tensors.back();
    if (field_ == "shape") {
      numbers_ = &tensor.shape.emplace();
    } else if (field_ == "data_offsets") {
      numbers_ = &tensor.offsets.emplace();
    } else {
      return wrong("an array");
    }
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail(Status::model_file, "{}: the header is not valid JSON at its byte {}", path_, position);
  }

 private:
  bool wrong(std::string_view found) {
    if (depth_ == 0) fail(Status::model_file, "{}: the header is not a JSON object", path_);
    if (depth_ == 1) {
      fail(Status::model_file, "{}: entry {} of the header is {}, not an object", path_, key_,
           found);
    }
    fail(Status::model_file, "{}: {} of {} in the header has an unexpected value: {}", path_,
         field_, key_, found);
  }

  std::string_view path_;
  int depth_ = 0;
  bool in_metadata_ = false, seen_metadata_ = false;
  std::string key_, field_;
  std::unordered_set<std::string> fields_;
  std::vector<uint64_t>* numbers_ = nullptr;
};

TensorEntry check_tensor(const HeaderTensor& header, std::string_view path) {
  if (header.dtype.empty() || !header.shape || !header.offsets || header.offsets->size() != 2) {
    fail(Status::model_file, "{}: tensor {} lacks dtype, shape or two data_offsets", path,
         header.name);
  }
  const FileType* type = find_type(header.dtype);
  if (!type) {
    fail(Status::model_file, "{}: tensor {} has type {}, which is not known", path, header.name,
         header.dtype);
  }
  TensorEntry tensor;
  tensor.name = header.name;
  tensor.type = type->type;
  tensor.type_name = type->name;
  for (uint64_t size : *header.shape) {
    // Sizes past INT64_MAX become negative and are refused by elements().
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  auto [begin, end] = std::pair((*header.offsets)[0], (*header.offsets)[1]);
  int64_t bits;
  if (tensor.elements() < 0 ||
      __builtin_mul_overflow(tensor.elements(), static_cast<int64_t>(type->bits), &bits) ||
      bits % 8 != 0) {
    fail(Status::model_file, "{}: tensor {} has the impossible shape {}", path, tensor.name,
         tensor.shape_text());
  }
  if (begin > end || end - begin != static_cast<uint64_t>(bits / 8)) {
    fail(Status::model_file, "{}: tensor {} ({} {}) needs {} bytes, but data_offsets are {} to {}",
         path, tensor.name, type->name, tensor.shape_text(), bits / 8, begin, end);
  }
  return tensor;
}

// The files of a folder, in order, with the tensors each must hold (empty: no index).
std::map<std::string, std::vector<std::string>> folder_files(const fs::path& folder) {
  std::map<std::string, std::vector<std::string>> files;
  fs::path index_path = folder / SafetensorsFile::kIndexName;
  std::error_code ignored;
  if (!fs::exists(index_path, ignored)) {
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      std::string name = entry.path().filename().string();
      if (name.starts_with("model") && name.ends_with(".safetensors")) files[name];
    }
    return files;
  }
  auto mapped = MappedFile::open(index_path.string());
  auto bytes = mapped->bytes();
  if (bytes.size() > kMaxIndex) {
    fail(Status::model_file, "{} is {} bytes long; at most {} are read", index_path.string(),
         bytes.size(), kMaxIndex);
  }
  auto text = reinterpret_cast<const char*>(bytes.data());
  Json index = Json::parse(text, text + bytes.size(), nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(Status::model_file, "{} is not a JSON object with a weight_map", index_path.string());
  }
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      fail(Status::model_file, "{}: tensor {} is said to lie in {}, which is not a file name",
           index_path.string(), tensor, file.dump());
    }
    files[name].push_back(tensor);
  }
  return files;
}

}  // namespace

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return parse(MappedFile::open(path));
  auto file = std::make_shared<SafetensorsFile>();
  file->read_folder(path);
  return file;
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::parse(
    std::shared_ptr<const MappedFile> file) {
  auto parsed = std::make_shared<SafetensorsFile>();
  parsed->path_ = file->path();
  parsed->read(std::move(file));
  parsed->index_tensors();
  return parsed;
}

bool SafetensorsFile::is_model_folder(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return false;
  return fs::exists(fs::path(path) / kIndexName, ignored) || !folder_files(path).empty();
}

void SafetensorsFile::read_folder(const std::string& folder) {
  path_ = folder;
  auto files = folder_files(folder);
  if (files.empty()) {
    fail(Status::model_file, "{} holds neither {} nor model*.safetensors", folder, kIndexName);
  }
  std::vector<std::string> missing;
  for (const auto& [name, tensors] : files) {
    std::error_code ignored;
    if (!fs::exists(fs::path(folder) / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty()) {
    fail(Status::model_file, "{}: {} of the {} files that {} names are missing: {}", folder,
         missing.size(), files.size(), kIndexName, fmt::join(missing, ", "));
  }
  for (const auto& [name, tensors] : files) {
    size_t first = tensors_.size();
    read(MappedFile::open((fs::path(folder) / name).string()));
    std::unordered_set<std::string_view> found;
    for (size_t i = first; i < tensors_.size(); ++i) found.insert(tensors_[i].name);
    for (const std::string& tensor : tensors) {
      if (!found.contains(tensor)) {
        fail(Status::model_file, "{}: tensor {} is missing from {}, where {} says it is", folder,
             tensor, name, kIndexName);
      }
    }
  }
  index_tensors();
}

void SafetensorsFile::read(std::shared_ptr<const MappedFile> file) {
  const std::string& path = file->path();
  ByteReader in(file->bytes(), path);
  if (in.remaining() < 8) {
    fail(Status::model_file, "{} is not a safetensors file: it has {} bytes", path, in.remaining());
  }
  auto length = in.read<uint64_t>("the header's length");
  if (length > kMaxHeader || length > in.remaining()) {
    fail(Status::model_file,
         "{} is not a safetensors file or is cut short: its header would be {} bytes long ({} are "
         "left, {} are allowed)",
         path, length, in.remaining(), kMaxHeader);
  }
  std::string_view header = in.text(length, "the header");
  auto data = in.take(in.remaining(), "the data");
  HeaderHandler handler(path);
  nlohmann::json::sax_parse(header.begin(), header.end(), &handler);

  struct Place {
    uint64_t begin, end;
    size_t tensor;
  };
  std::vector<Place> places;
  places.reserve(handler.tensors.size());
  for (const HeaderTensor& entry : handler.tensors) {
    TensorEntry tensor = check_tensor(entry, path);
    auto [begin, end] = std::pair((*entry.offsets)[0], (*entry.offsets)[1]);
    if (end > data.size()) {
      fail(Status::model_file,
           "{}: tensor {} ends at byte {} of the data, which has {}: the file is cut short or "
           "damaged",
           path, tensor.name, end, data.size());
    }
    tensor.bytes = data.subspan(begin, end - begin);
    places.push_back({begin, end, tensors_.size()});
    tensors_.push_back(std::move(tensor));
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Place& place : places) {
    if (place.begin != covered) {
      fail(Status::model_file, "{}: tensor {} begins at byte {} of the data, {} at byte {}", path,
           tensors_[place.tensor].name, place.begin,
           place.begin < covered ? "overlapping another that ends" : "after a gap that begins",
           covered);
    }
    covered = place.end;
  }
  if (covered != data.size()) {
    fail(Status::model_file, "{}: {} bytes at the end belong to no tensor", path,
         data.size() - covered);
  }
  if (files_.empty()) metadata_ = std::move(handler.metadata);
  files_.push_back(std::move(file));
}

void SafetensorsWriter::add_metadata(std::string_view key, std::string_view value) {
  metadata_.emplace_back(key, value);
}

void SafetensorsWriter::add_tensor(std::string_view name, DType type,
                                   std::span<const int64_t> shape) {
  uint64_t begin = tensors_.empty() ? 0 : tensors_.back().end;
  int64_t bytes;
  if (out_ || name == "__metadata__" || dtype_bytes(type) == 0 || checked_elements(shape) < 0 ||
      __builtin_mul_overflow(checked_elements(shape), int64_t{dtype_bytes(type)}, &bytes)) {
    fail(Status::internal, "tensor {} of type {} and shape [{}] cannot go into a safetensors file",
         name, dtype_name(type), fmt::join(shape, ", "));
  }
  tensors_.push_back({std::string(name),
                      type,
                      {shape.begin(), shape.end()},
                      begin,
                      begin + static_cast<uint64_t>(bytes)});
}

void SafetensorsWriter::begin(OutputFile& out) {
  if (out_ || out.size() != 0) fail(Status::internal, "SafetensorsWriter::begin on a file in use");
  Json header = Json::object();
  if (!metadata_.empty()) {
    for (const auto& [key, value] : metadata_) header["__metadata__"][key] = value;
  }
  std::unordered_set<std::string_view> names;
  // Appended as text: looking names up in an ordered_json takes time proportional to their number.
  std::string text = header.dump();
  text.pop_back();
  for (const Tensor& tensor : tensors_) {
    if (!names.insert(tensor.name).second) {
      fail(Status::internal, "tensor {} is added twice", tensor.name);
    }
    Json entry = {{"dtype", dtype_name(tensor.type)},
                  {"shape", tensor.shape},
                  {"data_offsets", {tensor.begin, tensor.end}}};
    if (text.size() > 1) text += ',';
    text += Json(tensor.name).dump() + ":" + entry.dump();
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(text);
  header_size_ = out.size();
  out_ = &out;
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  uint64_t total = tensors_.empty() ? 0 : tensors_.back().end;
  if (!out_ || bytes.size() > total - (out_->size() - header_size_)) {
    fail(Status::internal, "SafetensorsWriter: more bytes than were declared");
  }
  out_->write(bytes);
}

void SafetensorsWriter::finish() {
  uint64_t total = tensors_.empty() ? 0 : tensors_.back().end;
  if (!out_ || out_->size() - header_size_ != total) {
    fail(Status::internal, "SafetensorsWriter: fewer bytes than were declared");
  }
}

}  // namespace speech
