#include "formats/torch_file.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

using Kind = Pickle::Kind;
using Value = Pickle::Value;
using Json = nlohmann::ordered_json;

// Values may be shared and circular, so that a small pickle describes an endless tree.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxSteps = 4'000'000;
constexpr size_t kMaxNameBytes = size_t{64} << 20;  // of all names together
constexpr size_t kMaxMetadata = 1'000'000;
constexpr size_t kMaxAxes = 64;
// An expanded tensor (stride 0) has more values than its storage; no more than this.
constexpr int64_t kMaxExpanded = int64_t{1} << 26;

struct TorchType {
  std::string_view storage, dtype;  // names in module torch
  DType type;
  int bytes;
};

constexpr TorchType kTypes[] = {
    {"DoubleStorage", "float64", DType::f64, 8},
    {"FloatStorage", "float32", DType::f32, 4},
    {"HalfStorage", "float16", DType::f16, 2},
    {"BFloat16Storage", "bfloat16", DType::bf16, 2},
    {"LongStorage", "int64", DType::i64, 8},
    {"IntStorage", "int32", DType::i32, 4},
    {"ShortStorage", "int16", DType::i16, 2},
    {"CharStorage", "int8", DType::i8, 1},
    {"ByteStorage", "uint8", DType::u8, 1},
    {"BoolStorage", "bool", DType::boolean, 1},
    {"ComplexFloatStorage", "complex64", DType::other, 8},
    {"ComplexDoubleStorage", "complex128", DType::other, 16},
    {"", "float8_e4m3fn", DType::f8_e4m3, 1},
    {"", "float8_e5m2", DType::f8_e5m2, 1},
    {"", "uint16", DType::u16, 2},
    {"", "uint32", DType::u32, 4},
    {"", "uint64", DType::u64, 8},
};

const TorchType* find_type(std::string_view global) {
  if (!global.starts_with("torch.")) return nullptr;
  global.remove_prefix(6);
  for (const TorchType& type : kTypes) {
    if (global == type.dtype || global == type.storage) return &type;
  }
  return nullptr;
}

const Value* state_dict(const Pickle& pickle) {
  for (std::string_view key : {"state_dict", "model_state_dict"}) {
    const Value* value = pickle.find(pickle[pickle.root()], key);
    if (value && value->kind == Kind::dict) return value;
  }
  return nullptr;
}

// Wrappers of TorchScript around a plain list or dict: the value inside, else the value itself.
const Value& unwrap(const Pickle& pickle, const Value& value) {
  if (value.kind != Kind::call) return value;
  const Value& function = pickle[value.items[0]];
  const Value& arguments = pickle[value.items[1]];
  if (function.kind == Kind::global && function.text.starts_with("torch.jit._pickle.") &&
      !arguments.items.empty()) {
    return pickle[arguments.items[0]];
  }
  return value;
}

}  // namespace

// Finds the tensors of a pickle and names them.
class TorchFile::Walker {
 public:
  Walker(TorchFile& file, std::string root)
      : file_(file), pickle_(*file.pickle_), root_(std::move(root)) {}

  void walk() {
    const Value* dict = state_dict(pickle_);
    visit(dict ? *dict : pickle_[pickle_.root()], "", 0);
  }

 private:
  void visit(const Value& value, const std::string& name, int depth) {
    if (depth > kMaxDepth || ++steps_ > kMaxSteps) {
      fail(Status::model_file, "{}: its values are nested too deep or shared too often, at {}",
           file_.path_, name);
    }
    switch (value.kind) {
      case Kind::dict:
        for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
          visit_member(pickle_[value.items[i]], pickle_[value.items[i + 1]], name, depth);
        }
        return;
      case Kind::list:
      case Kind::tuple:
        for (size_t i = 0; i < value.items.size(); ++i) {
          visit(pickle_[value.items[i]], join(name, fmt::format("{}", i)), depth + 1);
        }
        return;
      case Kind::object:
        if (value.items.size() > 2) visit_object(pickle_[value.items[2]], name, depth);
        return;
      case Kind::call: {
        const Value& inner = unwrap(pickle_, value);
        if (&inner != &value) return visit(inner, name, depth + 1);
        if (auto tensor = read_tensor(value, name.empty() ? "tensor" : name)) add(*tensor);
        return;
      }
      default:
        return;
    }
  }

  void visit_member(const Value& key, const Value& value, const std::string& name, int depth) {
    if (key.kind == Kind::text) {
      visit(value, join(name, key.text), depth + 1);
    } else if (key.kind == Kind::integer) {
      visit(value, join(name, fmt::format("{}", key.integer)), depth + 1);
    }
  }

  // A pickled torch.nn.Module keeps its tensors in three dicts, which its state dict's names do not
  // mention; a scripted one has them among its attributes.
  void visit_object(const Value& state, const std::string& name, int depth) {
    bool is_module = pickle_.find(state, "_modules") != nullptr;
    for (std::string_view part : {"_parameters", "_buffers", "_modules"}) {
      const Value* members = is_module ? pickle_.find(state, part) : nullptr;
      if (members) visit(*members, name, depth + 1);
    }
    if (!is_module && state.kind == Kind::dict) visit(state, name, depth + 1);
  }

  std::string join(const std::string& name, std::string_view key) {
    std::string joined = name.empty() ? std::string(key) : fmt::format("{}.{}", name, key);
    name_bytes_ += joined.size();
    if (name_bytes_ > kMaxNameBytes) {
      fail(Status::model_file, "{}: the names of its tensors take more than {} bytes", file_.path_,
           kMaxNameBytes);
    }
    return joined;
  }

  void add(TensorEntry& tensor) { file_.tensors_.push_back(std::move(tensor)); }

  // The tensor that a call makes; nothing if the call makes something else.
  std::optional<TensorEntry> read_tensor(const Value& call, const std::string& name) {
    const Value* made = &call;
    for (int i = 0; i < 4; ++i) {
      if (!pickle_.is_call(*made, "torch._utils._rebuild_parameter") &&
          !pickle_.is_call(*made, "torch._utils._rebuild_parameter_with_state")) {
        break;
      }
      const Value& arguments = pickle_[made->items[1]];
      if (arguments.items.empty()) bad(name, "a parameter without a tensor");
      made = &pickle_[arguments.items[0]];
    }
    if (made->kind != Kind::call) {
      if (made != &call) bad(name, "a parameter without a tensor");
      return {};
    }
    const Value& function = pickle_[made->items[0]];
    const Value& arguments = pickle_[made->items[1]];
    if (function.kind != Kind::global) return {};
    if (function.text == "torch._utils._rebuild_tensor" ||
        function.text == "torch._utils._rebuild_tensor_v2") {
      return build(arguments, nullptr, name);
    }
    if (function.text == "torch._utils._rebuild_tensor_v3") {
      if (arguments.items.size() < 7) bad(name, "a tensor without a type");
      return build(arguments, &pickle_[arguments.items[6]], name);
    }
    if (function.text.starts_with("torch._utils._rebuild_") ||
        function.text.starts_with("torch._tensor._rebuild_")) {
      bad(name, fmt::format("made by {}, which is not supported", function.text));
    }
    return {};
  }

  [[noreturn]] void bad(const std::string& name, std::string_view what) const {
    fail(Status::model_file, "{}: tensor {} is {}", file_.path_, name, what);
  }

  int64_t integer(const Value& value, const std::string& name) const {
    if (value.kind != Kind::integer || value.integer < 0) {
      bad(name, "described by something else than numbers of at least 0");
    }
    return value.integer;
  }

  std::vector<int64_t> integers(const Value& value, const std::string& name) const {
    // torch.Size(...) is a call around a tuple.
    const Value* tuple = &value;
    if (pickle_.is_call(value, "torch.Size") && pickle_[value.items[1]].items.size() == 1) {
      tuple = &pickle_[pickle_[value.items[1]].items[0]];
    }
    if (tuple->kind != Kind::tuple && tuple->kind != Kind::list) {
      bad(name, "without shape or strides");
    }
    if (tuple->items.size() > kMaxAxes) {
      bad(name, fmt::format("of {} axes; at most {} are read", tuple->items.size(), kMaxAxes));
    }
    std::vector<int64_t> numbers;
    for (Pickle::Id id : tuple->items) numbers.push_back(integer(pickle_[id], name));
    return numbers;
  }

  // Arguments: storage, offset in it, shape, strides, ...; `dtype` if the storage is untyped.
  TensorEntry build(const Value& arguments, const Value* dtype, const std::string& name) {
    if (arguments.items.size() < 4) bad(name, "described by too few values");
    const Value& storage = pickle_[arguments.items[0]];
    const Value* id = storage.kind == Kind::persistent ? &pickle_[storage.items[0]] : nullptr;
    // ("storage", class, key, device, number of values)
    if (!id || id->kind != Kind::tuple || id->items.size() < 5 ||
        pickle_[id->items[2]].kind != Kind::text) {
      bad(name, "without a storage");
    }
    const Value& type_name = dtype ? *dtype : pickle_[id->items[1]];
    const TorchType* type = type_name.kind == Kind::global ? find_type(type_name.text) : nullptr;
    if (!type) {
      bad(name, fmt::format("of type {}, which is not supported",
                            type_name.kind == Kind::global ? type_name.text : "(none)"));
    }
    int64_t held = integer(pickle_[id->items[4]], name);
    if (dtype) held /= type->bytes;  // an untyped storage counts bytes
    int64_t held_bytes;
    auto data = storage_bytes(pickle_[id->items[2]].text, name);
    if (__builtin_mul_overflow(held, int64_t{type->bytes}, &held_bytes) ||
        static_cast<uint64_t>(held_bytes) > data.size()) {
      bad(name, fmt::format("in a storage of {} values, for which {} bytes do not suffice", held,
                            data.size()));
    }

    TensorEntry tensor;
    tensor.name = name;
    tensor.type = type->type;
    tensor.type_name = type->type == DType::other ? type->dtype : dtype_name(type->type);
    int64_t offset = integer(pickle_[arguments.items[1]], name);
    tensor.shape = integers(pickle_[arguments.items[2]], name);
    tensor.strides = integers(pickle_[arguments.items[3]], name);
    int64_t count = tensor.elements();
    if (count < 0 || tensor.strides.size() != tensor.shape.size() ||
        (count > held && count > kMaxExpanded)) {
      bad(name, fmt::format("of the impossible shape {}", tensor.shape_text()));
    }
    if (count == 0) {
      tensor.strides.clear();
      return tensor;
    }
    int64_t reach = 1, step = 1;
    bool contiguous = true;
    for (size_t axis = tensor.shape.size(); axis-- > 0;) {
      int64_t span;
      if (__builtin_mul_overflow(tensor.shape[axis] - 1, tensor.strides[axis], &span) ||
          __builtin_add_overflow(reach, span, &reach)) {
        bad(name, "reaching past the end of its storage");
      }
      contiguous &= tensor.shape[axis] == 1 || tensor.strides[axis] == step;
      step *= tensor.shape[axis];
    }
    if (offset > held || reach > held - offset) bad(name, "reaching past the end of its storage");
    if (contiguous) tensor.strides.clear();
    tensor.bytes = data.subspan(static_cast<uint64_t>(offset * type->bytes),
                                static_cast<uint64_t>(reach * type->bytes));
    return tensor;
  }

  std::span<const std::byte> storage_bytes(std::string_view key, const std::string& name) {
    const ZipMember* member = file_.zip_->find(fmt::format("{}/data/{}", root_, key));
    if (!member) bad(name, fmt::format("in storage {}, which is missing from the archive", key));
    return file_.zip_->contents(*member);
  }

  TorchFile& file_;
  const Pickle& pickle_;
  std::string root_;
  size_t steps_ = 0, name_bytes_ = 0;
};

void TorchFile::check_contents() const {
  for (const ZipMember& member : zip_->members()) zip_->check(member);
}

std::shared_ptr<const TorchFile> TorchFile::open(const std::string& path) {
  return parse(MappedFile::open(path));
}

std::shared_ptr<const TorchFile> TorchFile::parse(std::shared_ptr<const MappedFile> file) {
  auto bytes = file->bytes();
  std::string path = file->path();
  return parse(std::move(file), bytes, path);
}

std::shared_ptr<const TorchFile> TorchFile::parse(std::shared_ptr<const MappedFile> mapped,
                                                  std::span<const std::byte> archive,
                                                  std::string name) {
  auto file = std::make_shared<TorchFile>();
  file->path_ = std::move(name);
  file->files_ = {std::move(mapped)};
  file->zip_ = std::make_unique<ZipArchive>(archive, file->path_);
  ZipArchive& zip = *file->zip_;
  // Everything lies under one folder, named as the archive was when it was written.
  constexpr std::string_view kPickle = "/data.pkl";
  const ZipMember* pickle = nullptr;
  for (const ZipMember& member : zip.members()) {
    if (member.name.ends_with(kPickle) && member.name.find('/') == member.name.rfind('/')) {
      if (pickle) {
        fail(Status::model_file, "{} holds two models: {} and {}", file->path_, pickle->name,
             member.name);
      }
      pickle = &member;
    }
  }
  if (!pickle) {
    fail(Status::model_file, "{} is a zip archive, but not of PyTorch: it has no data.pkl",
         file->path_);
  }
  std::string root = pickle->name.substr(0, pickle->name.size() - kPickle.size());
  if (const ZipMember* order = zip.find(root + "/byteorder")) {
    auto text = zip.contents(*order);
    if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != "little") {
      fail(Status::model_file, "{} was written by a big-endian machine; save it on another",
           file->path_);
    }
  }
  file->script_ = zip.find(root + "/constants.pkl") != nullptr;
  zip.check(*pickle);
  file->pickle_ = std::make_unique<Pickle>(zip.contents(*pickle), file->path_);
  Walker(*file, root).walk();
  file->index_tensors();
  return file;
}

namespace {

class MetadataBuilder {
 public:
  MetadataBuilder(const Pickle& pickle, const Value* skipped, std::string_view path)
      : pickle_(pickle), skipped_(skipped), path_(path) {}

  // Nothing for what is no plain value; in lists, such items become null.
  std::optional<Json> build(const Value& wrapped, int depth) {
    const Value& value = unwrap(pickle_, wrapped);
    if (&value == skipped_) return {};
    if (depth > kMaxDepth || ++steps_ > kMaxMetadata) {
      fail(Status::model_file, "{}: its metadata is nested too deep or too large", path_);
    }
    switch (value.kind) {
      case Kind::none:
        return Json(nullptr);
      case Kind::boolean:
        return Json(value.integer != 0);
      case Kind::integer:
        return Json(value.integer);
      case Kind::real:
        return Json(value.real);
      case Kind::text:
        steps_ += value.text.size() / 16;  // texts may be shared, too
        return Json(value.text);
      case Kind::list:
      case Kind::tuple: {
        Json list = Json::array();
        bool plain = false;
        for (Pickle::Id id : value.items) {
          auto item = build(pickle_[id], depth + 1);
          plain |= item.has_value();
          list.push_back(std::move(item).value_or(Json()));
        }
        if (!plain && !value.items.empty()) return {};
        return list;
      }
      case Kind::dict: {
        Json dict = Json::object();
        for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
          const Value& key = pickle_[value.items[i]];
          auto item = key.kind == Kind::text || key.kind == Kind::integer
                          ? build(pickle_[value.items[i + 1]], depth + 1)
                          : std::nullopt;
          if (!item) continue;
          auto name =
              key.kind == Kind::text ? std::string(key.text) : fmt::format("{}", key.integer);
          // Appended unseen: ordered_json looks keys up one by one. Duplicates do no harm here.
          dict.get_ref<Json::object_t&>().emplace_back(std::move(name), std::move(*item));
        }
        if (dict.empty() && !value.items.empty()) return {};
        return dict;
      }
      case Kind::object:
        return value.items.size() > 2 ? build(pickle_[value.items[2]], depth + 1) : std::nullopt;
      default:
        return {};
    }
  }

 private:
  const Pickle& pickle_;
  const Value* skipped_;
  std::string_view path_;
  size_t steps_ = 0;
};

}  // namespace

Json TorchFile::metadata() const {
  MetadataBuilder builder(*pickle_, state_dict(*pickle_), path_);
  return builder.build((*pickle_)[pickle_->root()], 0).value_or(Json());
}

}  // namespace speech
