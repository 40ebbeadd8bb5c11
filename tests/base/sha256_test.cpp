#include "base/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace speech {
namespace {

std::string hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

// The examples of FIPS 180-2, appendix B.
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, PiecesAndTheWholeAreTheSame) {
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7);
  for (size_t length = 0; length < bytes.size(); ++length) {
    auto view = std::span(bytes).first(length);
    Sha256 hash;
    for (size_t at = 0; at < length; at += 13) {
      hash.update(view.subspan(at, std::min<size_t>(13, length - at)));
    }
    EXPECT_EQ(hash.hex(), sha256_hex(view)) << length;
  }
}

}  // namespace
}  // namespace speech
