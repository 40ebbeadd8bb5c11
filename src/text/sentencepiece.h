// The part of a SentencePiece model file that decoding needs.
// Format: google/sentencepiece, sentencepiece_model.proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace speech {

struct SentencePieceModel {
  enum class Kind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    Kind kind = Kind::normal;
  };

  std::vector<Piece> pieces;  // by id
  std::string unknown_surface = " \xe2\x81\x87 ";
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;

  // Reads the bytes of a .model file; `name` is for messages. Error(model_file).
  static SentencePieceModel parse(std::span<const std::byte> bytes, const std::string& name);
};

}  // namespace speech
