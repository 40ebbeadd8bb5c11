// Whether compressed and chunked files are as long as they say. The decoders behind libsndfile and
// libav take a file that was cut short as a shorter recording.
//
// After RFC 3533 (Ogg), EBU Tech 3306 (RF64), Sony's "Wave-64 Format Specification", Sun's au(5),
// "Audio Interchange File Format AIFF-C" (Apple, 1991), Apple's "Core Audio Format
// Specification 1.0", RFC 9639 (FLAC), ISO/IEC 11172-3 and 13818-3 (MPEG audio frames), ISO/IEC
// 14496-12 (MP4 boxes), RFC 8794 (EBML) and RFC 9559 (Matroska). The Xing header of MP3 files has
// no specification; LAME writes it.
#include <array>
#include <map>
#include <optional>
#include <string>

#include "audio/read_formats.h"
#include "base/error.h"
#include "base/log.h"

namespace speech::audio {
namespace {

// A file of bytes that are read as big-endian or little-endian numbers; what is past the end reads
// as zeros, so that callers check once.
class Bytes {
 public:
  explicit Bytes(const MappedFile& file) : file_(file), bytes_(file.bytes()), behind_(file) {}

  const std::string& path() const { return file_.path(); }
  uint64_t size() const { return bytes_.size(); }
  uint8_t at(uint64_t i) const {
    return i < bytes_.size() ? std::to_integer<uint8_t>(bytes_[i]) : 0;
  }
  uint64_t big(uint64_t from, int count) const {
    uint64_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | at(from + static_cast<uint64_t>(i));
    return value;
  }
  uint64_t little(uint64_t from, int count) const {
    uint64_t value = 0;
    for (int i = count; i-- > 0;) value = value << 8 | at(from + static_cast<uint64_t>(i));
    return value;
  }
  bool has(uint64_t from, std::string_view tag) const {
    for (char c : tag) {
      if (at(from++) != static_cast<uint8_t>(c)) return false;
    }
    return true;
  }
  // Everything before `position` has been looked at.
  void passed(uint64_t position) {
    behind_.passed(static_cast<size_t>(std::min(position, size())));
  }

  // Error unless `count` bytes of `what` are there from `from` on.
  void require(uint64_t from, uint64_t count, const char* what) const {
    const uint64_t left = from < size() ? size() - from : 0;
    if (count <= left) return;
    fail_option(Status::invalid_argument, "audio", "{} is cut short: {} of {} bytes, {} there",
                path(), what, count, left);
  }

 private:
  const MappedFile& file_;
  std::span<const std::byte> bytes_;
  ReadBehind behind_;
};

// The checksum of an Ogg page: its own four bytes count as zeros.
uint32_t ogg_checksum(const Bytes& file, uint64_t at, uint64_t length) {
  static const auto table = [] {
    std::array<uint32_t, 256> values;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t v = i << 24;
      for (int bit = 0; bit < 8; ++bit) v = v << 1 ^ (v >> 31 ? 0x04C11DB7 : 0);
      values[i] = v;
    }
    return values;
  }();
  uint32_t sum = 0;
  for (uint64_t i = 0; i < length; ++i) {
    const uint32_t byte = i >= 22 && i < 26 ? 0 : file.at(at + i);
    sum = sum << 8 ^ table[sum >> 24 ^ byte];
  }
  return sum;
}

// Pages, each with the length of its parts, a checksum and its number in its stream. The last page
// of a stream is marked as such. Decoders skip what is missing or damaged without a word.
void check_ogg(Bytes& file) {
  constexpr uint64_t kHeader = 27;
  struct Stream {
    uint32_t next;
    bool ended;
  };
  std::map<uint64_t, Stream> streams;
  uint64_t at = 0;
  while (at < file.size()) {
    const uint64_t left = file.size() - at;
    if (!file.has(at, std::string_view("OggS").substr(0, std::min<uint64_t>(left, 4)))) break;
    file.require(at, kHeader, "an Ogg page header");
    const uint64_t parts = file.at(at + 26);
    uint64_t length = kHeader + parts;
    for (uint64_t i = 0; i < parts; ++i) length += file.at(at + kHeader + i);
    file.require(at, length, "an Ogg page");
    const auto number = static_cast<uint32_t>(file.little(at + 18, 4));
    const auto stream = streams.try_emplace(file.little(at + 14, 4), Stream{number, false}).first;
    if (ogg_checksum(file, at, length) != file.little(at + 22, 4)) {
      fail_option(Status::invalid_argument, "audio", "{} is damaged: Ogg page {} at byte {}",
                  file.path(), number, at);
    }
    if (number != stream->second.next) {
      fail_option(Status::invalid_argument, "audio",
                  "{} lacks a part: Ogg page {} where page {} belongs, at byte {}", file.path(),
                  number, stream->second.next, at);
    }
    stream->second = {number + 1, (file.at(at + 5) & 4) != 0};
    at += length;
    file.passed(at);
  }
  for (const auto& [serial, stream] : streams) {
    if (stream.ended) continue;
    // Recorders that are stopped leave such files too.
    log_warn("{} may be cut short: its last page is not marked as the end", file.path());
    return;
  }
}

// Chunks of AIFF (sizes of 4 bytes, even) and of Core Audio files (8 bytes).
void check_chunks(Bytes& file, uint64_t at, int size_bytes, std::string_view data) {
  bool found = false;
  while (at < file.size()) {
    const uint64_t header = 4 + static_cast<uint64_t>(size_bytes);
    if (file.size() - at < header) break;
    const uint64_t size = file.big(at + 4, size_bytes);
    const bool samples = file.has(at, data);
    if (samples && size_bytes == 8 && size == ~uint64_t{0}) return;  // the rest of the file
    file.require(at + header, size, samples ? "a chunk of samples" : "a chunk");
    at += header + size + (size_bytes == 4 ? size % 2 : 0);
    found = found || samples;
  }
  if (found) return;
  fail_option(Status::invalid_argument, "audio", "{} is cut short: it has no samples", file.path());
}

// RF64: a WAVE file whose sizes past 32 bits stand in its first chunk.
void check_rf64(Bytes& file) {
  if (!file.has(12, "ds64")) return;
  const uint64_t samples = file.little(28, 8);
  for (uint64_t at = 12; file.size() - at >= 8 && at < file.size();) {
    uint64_t size = file.little(at + 4, 4);
    const bool data = file.has(at, "data");
    if (data && size == 0xFFFFFFFF) size = samples;
    file.require(at + 8, size, data ? "samples" : "a chunk");
    if (data) return;
    at += 8 + size + size % 2;
  }
  fail_option(Status::invalid_argument, "audio", "{} is cut short: it has no samples", file.path());
}

// Wave-64: chunks with a name of 16 bytes and a size of 8, their header counted in, at multiples
// of 8.
void check_wave64(Bytes& file) {
  for (uint64_t at = 40; at < file.size() && file.size() - at >= 24;) {
    const uint64_t size = file.little(at + 16, 8);
    const bool data = file.has(at, "data");
    if (size < 24) return;  // no chunk
    file.require(at, size, data ? "samples" : "a chunk");
    if (data) return;
    at += (size + 7) / 8 * 8;
  }
  fail_option(Status::invalid_argument, "audio", "{} is cut short: it has no samples", file.path());
}

// Sun's and NeXT's files; all ones: until the end.
void check_au(Bytes& file) {
  const uint64_t from = file.big(4, 4), size = file.big(8, 4);
  if (size != 0xFFFFFFFF) file.require(from, size, "samples");
}

// The length of an MPEG audio frame in bytes from its header; nothing for another thing.
struct MpegFrame {
  uint64_t length = 0, side = 0;  // side: bytes between the header and a Xing header
};
std::optional<MpegFrame> mpeg_frame(const Bytes& file, uint64_t at) {
  if (file.at(at) != 0xFF || (file.at(at + 1) & 0xE0) != 0xE0) return {};
  const int version = file.at(at + 1) >> 3 & 3, layer = 4 - (file.at(at + 1) >> 1 & 3);
  const int rate_index = file.at(at + 2) >> 2 & 3, bitrate_index = file.at(at + 2) >> 4;
  const bool mpeg1 = version == 3, mono = file.at(at + 3) >> 6 == 3;
  // Layers 1 and 2 are left to the decoder, and so are free bit rates.
  if (version == 1 || layer != 3 || rate_index == 3 || bitrate_index == 0 || bitrate_index == 15) {
    return {};
  }
  constexpr std::array<uint64_t, 15> kMpeg1 = {0,   32,  40,  48,  56,  64,  80, 96,
                                               112, 128, 160, 192, 224, 256, 320};
  constexpr std::array<uint64_t, 15> kMpeg2 = {0,  8,  16, 24,  32,  40,  48, 56,
                                               64, 80, 96, 112, 128, 144, 160};
  constexpr std::array<uint64_t, 3> kRates = {44100, 48000, 32000};
  const uint64_t rate = kRates[static_cast<size_t>(rate_index)] >> (mpeg1          ? 0
                                                                    : version == 2 ? 1
                                                                                   : 2);
  const uint64_t bits = (mpeg1 ? kMpeg1 : kMpeg2)[static_cast<size_t>(bitrate_index)] * 1000;
  const uint64_t padding = file.at(at + 2) >> 1 & 1;
  const uint64_t side = mpeg1 ? (mono ? 17 : 32) : (mono ? 9 : 17);
  return MpegFrame{(mpeg1 ? 144 : 72) * bits / rate + padding, side};
}

// Frames one behind the other. The first may hold a Xing header with the length of them all.
void check_mp3(Bytes& file) {
  uint64_t at = 0;
  while (file.has(at, "ID3")) {  // its size has seven bits in each byte
    uint64_t size = 0;
    for (uint64_t i = 6; i < 10; ++i) size = size << 7 | (file.at(at + i) & 0x7F);
    file.require(at + 10, size, "an ID3 tag");
    at += 10 + size + (file.at(at + 5) & 0x10 ? 10 : 0);
  }
  const auto first = mpeg_frame(file, at);
  if (!first) return;
  file.require(at, first->length, "an MP3 frame");
  const uint64_t xing = at + 4 + first->side;
  if (file.has(xing, "Xing") || file.has(xing, "Info")) {
    const uint64_t flags = file.big(xing + 4, 4);
    const uint64_t bytes = file.big(xing + 8 + (flags & 1 ? 4 : 0), 4);
    if (flags & 2) return file.require(at, bytes, "MP3 frames");
  }
  const uint64_t second = at + first->length;
  if (second < file.size() && !mpeg_frame(file, second)) return;  // no MP3 after all
  while (const auto frame = mpeg_frame(file, at)) {
    file.require(at, frame->length, "an MP3 frame");
    at += frame->length;
    file.passed(at);
  }
}

// Metadata blocks of FLAC; the samples are counted while they are read.
void check_flac(Bytes& file) {
  for (uint64_t at = 4, last = 0; last == 0;) {
    file.require(at, 4 + file.big(at + 1, 3), "a FLAC metadata block");
    last = file.at(at) & 0x80;
    at += 4 + file.big(at + 1, 3);
  }
}

// Boxes of MP4 and QuickTime.
void check_mp4(Bytes& file) {
  for (uint64_t at = 0; at < file.size();) {
    file.require(at, 8, "a box header");
    uint64_t size = file.big(at, 4);
    if (size == 0) return;  // to the end of the file
    if (size == 1) size = file.big(at + 8, 8);
    if (size < 8) return;  // no box
    file.require(at, size, "a box");
    at += size;
  }
}

// A number of EBML: as many bytes as the zeros before its first one; all ones: unknown.
struct EbmlNumber {
  uint64_t value = 0, bytes = 0;
  bool unknown = false;
};
std::optional<EbmlNumber> ebml_number(const Bytes& file, uint64_t at, bool keep_marker) {
  uint64_t bytes = 1;
  while (bytes <= 8 && !(file.at(at) & 0x80 >> (bytes - 1))) ++bytes;
  if (bytes > 8) return {};
  const uint64_t value = file.big(at, static_cast<int>(bytes));
  const uint64_t marker = uint64_t{1} << (7 * bytes);
  return EbmlNumber{keep_marker ? value : value - marker, bytes, value - marker == marker - 1};
}

// Elements of WebM and Matroska. What is written live leaves the sizes of the segment and of its
// clusters unknown: their elements follow.
void check_ebml(Bytes& file) {
  constexpr uint64_t kSegment = 0x18538067, kCluster = 0x1F43B675;
  for (uint64_t at = 0; at < file.size();) {
    const auto id = ebml_number(file, at, true);
    if (!id) return;
    file.require(at, id->bytes + 1, "an element");
    const auto size = ebml_number(file, at + id->bytes, false);
    if (!size) return;
    file.require(at, id->bytes + size->bytes, "an element");
    at += id->bytes + size->bytes;
    file.passed(at);
    if (size->unknown) {
      if (id->value != kSegment && id->value != kCluster) return;
      continue;
    }
    file.require(at, size->value, id->value == kSegment ? "a segment" : "an element");
    at += size->value;
  }
}

}  // namespace

void check_whole(const MappedFile& mapped) {
  Bytes file(mapped);
  if (file.has(0, "OggS")) return check_ogg(file);
  if (file.has(0, "fLaC")) return check_flac(file);
  if (file.has(0, "FORM") && file.has(8, "AIF")) return check_chunks(file, 12, 4, "SSND");
  if (file.has(0, "RF64") && file.has(8, "WAVE")) return check_rf64(file);
  if (file.has(0, "riff\x2E\x91\xCF\x11")) return check_wave64(file);
  if (file.has(0, ".snd")) return check_au(file);
  if (file.has(0, "caff")) return check_chunks(file, 8, 8, "data");
  if (file.has(4, "ftyp")) return check_mp4(file);
  if (file.has(0, "\x1A\x45\xDF\xA3")) return check_ebml(file);
  if (file.has(0, "ID3") || mpeg_frame(file, 0)) return check_mp3(file);
}

}  // namespace speech::audio
