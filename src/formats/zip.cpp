#include "formats/zip.h"

#include <zlib.h>

#include <algorithm>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kEndSize = 22, kLocatorSize = 20, kLocalSize = 30, kCentralSize = 46;
constexpr uint16_t kZip64Extra = 1;
constexpr uint64_t kMaxDeflateRatio = 1032;  // the most that deflate can reach

// Sizes and offsets of 0xffffffff are replaced by those of the zip64 extra field, in its order.
void apply_zip64(ByteReader extra, uint64_t& size, uint64_t& packed, uint64_t& offset) {
  while (extra.remaining() >= 4) {
    auto id = extra.read<uint16_t>("an extra field");
    auto length = extra.read<uint16_t>("an extra field");
    ByteReader field(extra.take(length, "an extra field"), extra.file());
    if (id != kZip64Extra) continue;
    for (uint64_t* value : {&size, &packed, &offset}) {
      if (*value == 0xffffffff) *value = field.read<uint64_t>("a zip64 field");
    }
    return;
  }
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, std::string file)
    : bytes_(bytes), file_(std::move(file)) {
  // The end record is followed by a comment of up to 65535 bytes.
  uint64_t last = bytes.size() < kEndSize ? 0 : bytes.size() - kEndSize + 1;
  uint64_t first = last > 65536 ? last - 65536 : 0;
  uint64_t end = last;
  bool found = false;
  while (end > first && !found) {
    --end;
    found = load<uint32_t>(&bytes[end]) == kEnd &&
            load<uint16_t>(&bytes[end + 20]) == bytes.size() - end - kEndSize;
  }
  if (!found) {
    fail(Status::model_file, "{}: the zip archive has no end record: it is cut short or damaged",
         file_);
  }
  uint64_t count = load<uint16_t>(&bytes[end + 10]);
  uint64_t size = load<uint32_t>(&bytes[end + 12]);
  uint64_t offset = load<uint32_t>(&bytes[end + 16]);
  if (end >= kLocatorSize && load<uint32_t>(&bytes[end - kLocatorSize]) == kLocator64) {
    auto at = load<uint64_t>(&bytes[end - kLocatorSize + 8]);
    if (at > bytes.size() || bytes.size() - at < 56 || load<uint32_t>(&bytes[at]) != kEnd64) {
      fail(Status::model_file, "{}: the zip64 end record at byte {} is damaged", file_, at);
    }
    count = load<uint64_t>(&bytes[at + 32]);
    size = load<uint64_t>(&bytes[at + 40]);
    offset = load<uint64_t>(&bytes[at + 48]);
  }
  read_directory(offset, size, count);
}

void ZipArchive::read_directory(uint64_t offset, uint64_t size, uint64_t count) {
  if (offset > bytes_.size() || size > bytes_.size() - offset || count > size / kCentralSize) {
    fail(Status::model_file, "{}: the zip directory ({} members, {} bytes at {}) does not fit",
         file_, count, size, offset);
  }
  ByteReader in(bytes_.subspan(offset, size), file_);
  members_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (in.read<uint32_t>("a zip directory entry") != kCentral) {
      fail(Status::model_file, "{}: entry {} of the zip directory is damaged", file_, i);
    }
    in.take(4, "a zip directory entry");
    auto flags = in.read<uint16_t>("flags");
    auto method = in.read<uint16_t>("a method");
    in.take(4, "a time");
    ZipMember member;
    member.crc = in.read<uint32_t>("a checksum");
    uint64_t packed = in.read<uint32_t>("a size");
    member.size = in.read<uint32_t>("a size");
    auto name_length = in.read<uint16_t>("a length");
    auto extra_length = in.read<uint16_t>("a length");
    auto comment_length = in.read<uint16_t>("a length");
    in.take(8, "attributes");
    uint64_t local = in.read<uint32_t>("an offset");
    member.name = in.text(name_length, "a name");
    apply_zip64(ByteReader(in.take(extra_length, "extra fields"), file_), member.size, packed,
                local);
    in.take(comment_length, "a comment");

    if (flags & 1) fail(Status::model_file, "{}: {} is encrypted", file_, member.name);
    if (method != 0 && method != 8) {
      fail(Status::model_file,
           "{}: {} is compressed by method {}; only stored and deflated are read", file_,
           member.name, method);
    }
    member.deflated = method == 8;
    if (local > bytes_.size() || bytes_.size() - local < kLocalSize ||
        load<uint32_t>(&bytes_[local]) != kLocal) {
      fail(Status::model_file, "{}: {} has no header at byte {}: the archive is damaged", file_,
           member.name, local);
    }
    uint64_t data = local + kLocalSize + load<uint16_t>(&bytes_[local + 26]) +
                    load<uint16_t>(&bytes_[local + 28]);
    if (data > bytes_.size() || packed > bytes_.size() - data) {
      fail(Status::model_file, "{}: {} takes {} bytes at {}, past the end of the archive", file_,
           member.name, packed, data);
    }
    if (member.deflated ? member.size / kMaxDeflateRatio > packed : member.size != packed) {
      fail(Status::model_file, "{}: {} cannot hold {} bytes in {}", file_, member.name, member.size,
           packed);
    }
    member.stored = bytes_.subspan(data, packed);
    members_.push_back(std::move(member));
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!index_.emplace(members_[i].name, i).second) {
      fail(Status::model_file, "{}: {} occurs twice in the archive", file_, members_[i].name);
    }
  }
}

const ZipMember* ZipArchive::find(std::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &members_[it->second];
}

std::span<const std::byte> ZipArchive::contents(const ZipMember& member) {
  if (!member.deflated) return member.stored;
  auto& buffer = inflated_[&member];
  if (buffer) return {buffer.get(), member.size};
  uint64_t allowed = (uint64_t{64} << 20) + 64 * bytes_.size();
  if (member.size > allowed - inflated_bytes_) {
    fail(Status::model_file,
         "{}: {} unfolds to {} bytes; an archive of {} bytes may hold {} of compressed data", file_,
         member.name, member.size, bytes_.size(), allowed);
  }
  inflated_bytes_ += member.size;
  auto inflated =

      std::make_unique_for_overwrite<std::byte[]>(member.size + 1);  // 1 more: is it too long?
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) fail(Status::out_of_memory, "zlib cannot start");
  stream.next_out = reinterpret_cast<Bytef*>(inflated.get());
  uint64_t consumed = 0, room = member.size + 1;
  int result = Z_OK;
  while (result == Z_OK) {
    constexpr uint64_t kPiece = 1u << 30;  // zlib counts in 32 bits
    if (stream.avail_in == 0) {
      uint64_t piece = std::min<uint64_t>(kPiece, member.stored.size() - consumed);
      stream.next_in =
          reinterpret_cast<Bytef*>(const_cast<std::byte*>(member.stored.data() + consumed));
      stream.avail_in = static_cast<uInt>(piece);
      consumed += piece;
    }
    if (stream.avail_out == 0) {
      uint64_t piece = std::min<uint64_t>(kPiece, room);
      stream.avail_out = static_cast<uInt>(piece);
      room -= piece;
    }
    result = inflate(&stream, Z_NO_FLUSH);
  }
  bool whole = result == Z_STREAM_END && room + stream.avail_out == 1;
  inflateEnd(&stream);
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(inflated.get()), member.size);
  if (!whole || crc != member.crc) {
    fail(Status::model_file, "{}: {} cannot be unfolded: the archive is damaged", file_,
         member.name);
  }
  buffer = std::move(inflated);
  return {buffer.get(), member.size};
}

void ZipArchive::check(const ZipMember& member) const {
  if (member.deflated) return;
  uLong crc =
      crc32_z(0, reinterpret_cast<const Bytef*>(member.stored.data()), member.stored.size());
  if (crc != member.crc) {
    fail(Status::model_file, "{}: {} does not have its checksum: the archive is damaged", file_,
         member.name);
  }
}

}  // namespace speech
