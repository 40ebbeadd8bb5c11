// Reader of zip archives in memory: stored and deflated members, zip64.
// Format: PKWARE APPNOTE.TXT 6.3.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace speech {

struct ZipMember {
  std::string name;
  std::span<const std::byte> stored;  // the bytes as they lie in the archive
  uint64_t size = 0;                  // uncompressed
  uint32_t crc = 0;
  bool deflated = false;
};

class ZipArchive {
 public:
  // `file` names the archive in messages; `bytes` must outlive the archive. Error(model_file) for
  // anything damaged, encrypted or compressed otherwise, and for names that occur twice.
  ZipArchive(std::span<const std::byte> bytes, std::string file);

  const std::vector<ZipMember>& members() const { return members_; }
  const ZipMember* find(std::string_view name) const;  // null if absent

  // The contents: of stored members the archive's own bytes, of deflated ones a copy that lives as
  // long as the archive, with its checksum verified. Copies may add up to 64 MiB + 64 times the
  // archive's size, so that a bomb is refused before it unfolds.
  std::span<const std::byte> contents(const ZipMember& member);
  // The checksum of a stored member, which contents() leaves alone: it reads all of its bytes.
  void check(const ZipMember& member) const;

 private:
  void read_directory(uint64_t offset, uint64_t size, uint64_t count);

  std::span<const std::byte> bytes_;
  std::string file_;
  std::vector<ZipMember> members_;
  std::unordered_map<std::string_view, size_t> index_;
  std::unordered_map<const ZipMember*, std::unique_ptr<std::byte[]>> inflated_;
  uint64_t inflated_bytes_ = 0;
};

}  // namespace speech
