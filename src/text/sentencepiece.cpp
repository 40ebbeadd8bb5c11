#include "text/sentencepiece.h"

#include <optional>

#include "base/error.h"

namespace speech {
namespace {

// A field of a protocol buffer message: a number or bytes, by wire type.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;                // wire type 0
  std::span<const std::byte> bytes;  // wire type 2 (and the raw 4 or 8 bytes of types 5 and 1)
};

class Fields {
 public:
  Fields(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::optional<Field> next() {
    if (bytes_.empty()) return std::nullopt;
    const uint64_t key = varint();
    Field field{key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        fail(Status::model_file, "{}: not a SentencePiece model (wire type {})", name_, key & 7);
    }
    return field;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint64_t>(take(1)[0]);
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail(Status::model_file, "{}: not a SentencePiece model (a number does not end)", name_);
  }
  std::span<const std::byte> take(uint64_t size) {
    if (size > bytes_.size()) {
      fail(Status::model_file, "{}: not a whole SentencePiece model (it ends too early)", name_);
    }
    const auto out = bytes_.first(static_cast<size_t>(size));
    bytes_ = bytes_.subspan(static_cast<size_t>(size));
    return out;
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Field numbers of sentencepiece_model.proto.
namespace number {
constexpr uint64_t pieces = 1, trainer_spec = 2, normalizer_spec = 3;   // ModelProto
constexpr uint64_t piece = 1, type = 3;                                 // SentencePiece
constexpr uint64_t unk_surface = 44;                                    // TrainerSpec
constexpr uint64_t add_dummy_prefix = 3, remove_extra_whitespaces = 4;  // NormalizerSpec
}  // namespace number

SentencePieceModel::Piece parse_piece(std::span<const std::byte> bytes, const std::string& name) {
  SentencePieceModel::Piece out;
  Fields fields(bytes, name);
  while (auto f = fields.next()) {
    if (f->number == number::piece) out.text = text_of(f->bytes);
    if (f->number == number::type) {
      if (f->value < 1 || f->value > 6) {
        fail(Status::model_file, "{}: piece \"{}\" has the unknown type {}", name, out.text,
             f->value);
      }
      out.kind = static_cast<SentencePieceModel::Kind>(f->value);
    }
  }
  return out;
}

}  // namespace

SentencePieceModel SentencePieceModel::parse(std::span<const std::byte> bytes,
                                             const std::string& name) {
  SentencePieceModel model;
  Fields fields(bytes, name);
  while (auto f = fields.next()) {
    if (f->number == number::pieces) {
      model.pieces.push_back(parse_piece(f->bytes, name));
    } else if (f->number == number::trainer_spec) {
      Fields spec(f->bytes, name);
      while (auto g = spec.next()) {
        if (g->number == number::unk_surface) model.unknown_surface = text_of(g->bytes);
      }
    } else if (f->number == number::normalizer_spec) {
      Fields spec(f->bytes, name);
      while (auto g = spec.next()) {
        if (g->number == number::add_dummy_prefix) model.add_dummy_prefix = g->value != 0;
        if (g->number == number::remove_extra_whitespaces) {
          model.remove_extra_whitespaces = g->value != 0;
        }
      }
    }
  }
  if (model.pieces.empty()) fail(Status::model_file, "{}: no pieces in this model", name);
  return model;
}

}  // namespace speech
