#include "formats/nemo_file.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace speech {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMaxName = 65536;
constexpr size_t kMaxMembers = 100'000;
constexpr std::string_view kWeights = "model_weights.ckpt";

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

// Text up to the first zero byte.
std::string_view field(std::string_view block, size_t offset, size_t size) {
  std::string_view text = block.substr(offset, size);
  return text.substr(0, text.find('\0'));
}

// A number of a tar header: octal digits, or binary with the first bit set (GNU).
std::optional<uint64_t> tar_number(std::string_view text) {
  uint64_t number = 0;
  if (static_cast<uint8_t>(text[0]) & 0x80) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (number >> 55) return {};
      number = number << 8 | (static_cast<uint8_t>(text[i]) & (i == 0 ? 0x7f : 0xff));
    }
    return number;
  }
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_first_of(std::string_view(" \0", 2)));
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 8);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// The sum over a header's bytes, its own field counted as spaces.
bool checksum_fits(std::string_view block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(block[i]);
  }
  return tar_number(block.substr(148, 8)) == sum;
}

// "LENGTH KEY=VALUE\n" ...: those that say something about the next member.
struct PaxRecords {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
};

PaxRecords read_pax(std::string_view text, std::string_view file) {
  PaxRecords records;
  while (!text.empty()) {
    size_t length = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    size_t digits = static_cast<size_t>(end - text.data());
    if (error != std::errc() || length > text.size() || length < digits + 3 ||
        text[digits] != ' ' || text[length - 1] != '\n') {
      fail(Status::model_file, "{}: an extended header of the tar archive is damaged", file);
    }
    std::string_view record = text.substr(digits + 1, length - digits - 2);
    text.remove_prefix(length);
    size_t equals = record.find('=');
    std::string_view key = record.substr(0, equals);
    std::string_view value = equals == std::string_view::npos ? "" : record.substr(equals + 1);
    if (key == "path") records.path = value;
    if (key == "size") {
      uint64_t size = 0;
      auto result = std::from_chars(value.data(), value.data() + value.size(), size);
      if (result.ec != std::errc() || result.ptr != value.data() + value.size()) {
        fail(Status::model_file, "{}: the tar archive gives a size as '{}'", file, value);
      }
      records.size = size;
    }
  }
  return records;
}

// Unpacks a gzipped file into a temporary one that has no name any more, and maps that.
std::shared_ptr<const MappedFile> gunzip(std::span<const std::byte> packed,
                                         const std::string& path) {
  const uint64_t allowed = (uint64_t{64} << 20) + 64 * packed.size();
  const char* folder = std::getenv("TMPDIR");
  std::string name = fmt::format("{}/speech-XXXXXX", folder && *folder ? folder : "/tmp");
  int fd = ::mkstemp(name.data());
  if (fd < 0) {
    fail(Status::io, "cannot unpack {}: cannot make {}: {}", path, name, std::strerror(errno));
  }
  struct Cleanup {
    int fd;
    const std::string& name;
    z_stream stream{};
    ~Cleanup() {
      inflateEnd(&stream);
      ::close(fd);
      ::unlink(name.c_str());
    }
  } file{fd, name};

  z_stream& stream = file.stream;
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK)
    fail(Status::out_of_memory, "zlib cannot start");
  std::vector<Bytef> buffer(size_t{1} << 18);
  uint64_t consumed = 0, written = 0;
  for (;;) {
    if (stream.avail_in == 0) {
      uint64_t piece = std::min<uint64_t>(uint64_t{1} << 30, packed.size() - consumed);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + consumed));
      stream.avail_in = static_cast<uInt>(piece);
      consumed += piece;
    }
    stream.next_out = buffer.data();
    stream.avail_out = static_cast<uInt>(buffer.size());
    int result = inflate(&stream, Z_NO_FLUSH);
    size_t count = buffer.size() - stream.avail_out;
    if (count > allowed - written) {
      fail(Status::model_file, "{} unfolds to more than {} bytes", path, allowed);
    }
    for (size_t done = 0; done < count;) {
      ssize_t n = ::write(fd, buffer.data() + done, count - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        fail(Status::io, "cannot unpack {} into {}: {}; set TMPDIR to a folder with more room",
             path, name, std::strerror(errno));
      }
      done += static_cast<size_t>(n);
    }
    written += count;
    if (result == Z_STREAM_END) {
      // A further gzip member may follow; anything else after the end is padding.
      auto rest = packed.subspan(packed.size() - (packed.size() - consumed) - stream.avail_in);
      if (!is_gzip(rest)) break;
      inflateReset(&stream);
    } else if (result != Z_OK) {
      fail(Status::model_file, "{} cannot be unpacked: it is cut short or damaged", path);
    }
  }
  return MappedFile::open(name);
}

}  // namespace

std::shared_ptr<const NemoFile> NemoFile::open(const std::string& path) {
  return parse(MappedFile::open(path));
}

bool NemoFile::is_archive(std::span<const std::byte> bytes) {
  return is_gzip(bytes) || (bytes.size() >= kBlock && as_text(bytes.subspan(257, 5)) == "ustar");
}

std::shared_ptr<const NemoFile> NemoFile::parse(std::shared_ptr<const MappedFile> mapped) {
  auto file = std::make_shared<NemoFile>();
  file->path_ = mapped->path();
  if (is_gzip(mapped->bytes())) mapped = gunzip(mapped->bytes(), file->path_);
  file->files_ = {mapped};
  file->read_tar(mapped->bytes());
  const NemoMember& weights = file->require_member(kWeights);
  file->weights_ =
      TorchFile::parse(mapped, weights.bytes, fmt::format("{} ({})", file->path_, kWeights));
  file->tensors_ = file->weights_->tensors();
  file->index_tensors();
  return file;
}

void NemoFile::read_tar(std::span<const std::byte> tar) {
  ByteReader in(tar, path_);
  PaxRecords pax;
  std::optional<std::string> long_name;
  std::unordered_set<std::string> names;
  while (in.remaining() > 0) {
    std::string_view block = in.text(kBlock, "a tar header");
    if (block.find_first_not_of('\0') == std::string_view::npos) return;  // the end
    if (!checksum_fits(block)) {
      fail(Status::model_file, "{}: the tar header at byte {} is damaged", path_,
           in.position() - kBlock);
    }
    auto size = tar_number(block.substr(124, 12));
    char type = block[156];
    bool is_header = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    if (!is_header && pax.size) size = pax.size;
    if (!size) {
      fail(Status::model_file, "{}: the tar header at byte {} has no size", path_,
           in.position() - kBlock);
    }
    auto bytes = in.take(*size, "a member of the tar archive");
    in.take(std::min(in.remaining(), (kBlock - *size % kBlock) % kBlock), "padding");
    if (is_header) {
      if (*size > kMaxName) {
        fail(Status::model_file, "{}: a tar header takes {} bytes; at most {} are read", path_,
             *size, kMaxName);
      }
      if (type == 'L') long_name = field(as_text(bytes), 0, bytes.size());
      if (type == 'x') pax = read_pax(as_text(bytes), path_);
      continue;
    }
    std::string name(field(block, 0, 100));
    std::string_view prefix = field(block, 345, 155);
    bool posix = block.substr(257, 6) == std::string_view("ustar\0", 6);
    if (posix && !prefix.empty()) name = fmt::format("{}/{}", prefix, name);
    if (long_name) name = *long_name;
    if (pax.path) name = *pax.path;
    long_name.reset();
    pax = {};
    if (type != '0' && type != '\0' && type != '7') continue;  // folders and links
    while (name.starts_with("./")) name.erase(0, 2);
    if (!names.insert(name).second) {
      fail(Status::model_file, "{}: {} occurs twice in the archive", path_, name);
    }
    if (members_.size() >= kMaxMembers) {
      fail(Status::model_file, "{}: the archive has more than {} members", path_, kMaxMembers);
    }
    members_.push_back({std::move(name), bytes});
  }
}

const NemoMember* NemoFile::find_member(std::string_view name) const {
  for (std::string_view prefix : {"nemo:", "./"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  for (const NemoMember& member : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

const NemoMember& NemoFile::require_member(std::string_view name) const {
  const NemoMember* member = find_member(name);
  if (!member) fail(Status::model_file, "{} is missing from the archive {}", name, path_);
  return *member;
}

}  // namespace speech
