#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace speech {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr uint32_t kRoots[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::block(const std::byte* bytes) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = 0;
    for (int j = 0; j < 4; ++j) w[i] = w[i] << 8 | std::to_integer<uint32_t>(bytes[4 * i + j]);
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    uint32_t t = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                 ((e & f) ^ (~e & g)) + kRoots[i] + w[i];
    uint32_t u =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + u;
  }
  uint32_t next[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += next[i];
}

void Sha256::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t filled = size_ % 64;
    if (filled == 0 && bytes.size() >= 64) {
      block(bytes.data());
      size_ += 64;
      bytes = bytes.subspan(64);
      continue;
    }
    size_t count = std::min(64 - filled, bytes.size());
    std::memcpy(rest_.data() + filled, bytes.data(), count);
    size_ += count;
    if (size_ % 64 == 0) block(rest_.data());
    bytes = bytes.subspan(count);
  }
}

std::string Sha256::hex() {
  uint64_t bits = size_ * 8;
  std::array<std::byte, 72> tail{std::byte{0x80}};
  size_t zeros = (119 - size_ % 64) % 64;  // up to 8 bytes before the end of a block
  for (size_t i = 0; i < 8; ++i) tail[1 + zeros + i] = std::byte(bits >> (56 - 8 * i));
  update(std::span(tail).first(9 + zeros));
  std::string text;
  for (uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

}  // namespace speech
