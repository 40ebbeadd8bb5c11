#include "tasks/prompt_cache.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace speech {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'S', 'P', 'K', 'V', '0', '0', '0', '3'};

uint64_t hash(std::span<const std::byte> bytes) {  // FNV-1a
  uint64_t h = 0xCBF29CE484222325u;
  for (std::byte b : bytes) h = (h ^ static_cast<uint64_t>(b)) * 0x100000001B3u;
  return h;
}

uint32_t crc(uint32_t value, std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(value, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

// The head of a file; fingerprint, ids, then the cache's blocks follow.
struct Header {
  char magic[8];
  uint64_t fingerprint_size, ids, block_bytes;
  uint32_t checksum;  // of all that follows the header
  uint32_t reserved;
};

}  // namespace

PromptCache::PromptCache(const LanguageModel& model, Limits limits, std::string folder)
    : model_(model), limits_(limits), folder_(std::move(folder)) {
  std::string fingerprint = model.fingerprint();
  prefix_ = fmt::format("{:016x}-", hash(std::as_bytes(std::span(fingerprint))));
  if (!folder_.empty()) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail(Status::io, "cannot make the folder {}: {}", folder_, error.message());
  }
}

std::string PromptCache::file_name(std::span<const int32_t> ids) const {
  return (fs::path(folder_) / fmt::format("{}{:016x}.kv", prefix_, hash(std::as_bytes(ids))))
      .string();
}

std::optional<KvCache> PromptCache::find(std::span<const int32_t> ids, size_t known) {
  if (ids.size() < 2) return std::nullopt;
  std::span<const int32_t> usable = ids.first(ids.size() - 1);
  size_t best = known;
  auto entry = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    size_t common = common_prefix(usable, it->ids);
    if (common > best) {
      best = common;
      entry = it;
    }
  }
  std::optional<Entry> from_disk;
  if (!folder_.empty() && best < usable.size()) {
    std::error_code error;
    for (const auto& file : fs::directory_iterator(folder_, error)) {
      std::string name = file.path().filename().string();
      if (!name.starts_with(prefix_) || !name.ends_with(".kv")) continue;
      try {
        auto found = read_file(file.path().string(), best, usable);
        if (!found) continue;
        best = found->ids.size();
        from_disk = std::move(found);
      } catch (const Error& e) {
        log_warn("prompt cache: {}: ignored: {}", name, e.what());
      }
    }
  }
  if (from_disk) return std::move(from_disk->cache);
  if (entry == entries_.end()) return std::nullopt;
  if (best == entry->ids.size()) {
    KvCache whole = std::move(entry->cache);
    entries_.erase(entry);
    return whole;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->cache.prefix(static_cast<int64_t>(best));
}

void PromptCache::store(std::span<const int32_t> ids, KvCache cache) {
  if (ids.empty() || static_cast<int64_t>(ids.size()) != cache.positions()) return;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->ids.size() >= ids.size() && common_prefix(it->ids, ids) == ids.size()) {
      entries_.splice(entries_.begin(), entries_, it);
      return;
    }
  }
  // What the new entry continues is no longer needed by itself.
  entries_.remove_if([&](const Entry& e) {
    return e.ids.size() <= ids.size() && common_prefix(e.ids, ids) == e.ids.size();
  });
  entries_.push_front({{ids.begin(), ids.end()}, std::move(cache)});
  auto total = [&] {
    size_t bytes = 0;
    for (const Entry& e : entries_) bytes += e.cache.bytes();
    return bytes;
  };
  while (entries_.size() > limits_.entries || (!entries_.empty() && total() > limits_.bytes)) {
    entries_.pop_back();
  }
}

void PromptCache::write(std::span<const int32_t> ids, const KvCache& cache) {
  if (folder_.empty() || ids.size() < limits_.file_ids) return;
  if (static_cast<int64_t>(ids.size()) > cache.positions()) return;
  try {
    write_file(ids, cache);
  } catch (const std::exception& e) {  // a full disk must not end a request
    log_warn("prompt cache: not written: {}", e.what());
  }
}

void PromptCache::write_file(std::span<const int32_t> ids, const KvCache& cache) const {
  std::string path = file_name(ids);
  if (fs::exists(path)) return;
  std::string fingerprint = model_.fingerprint();
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(fingerprint)),
                                                std::as_bytes(ids)};
  for (int64_t b = 0; b < KvCache::blocks_of(static_cast<int64_t>(ids.size())); ++b) {
    parts.push_back(cache.block(b));
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.fingerprint_size = fingerprint.size();
  header.ids = ids.size();
  header.block_bytes = cache.block_bytes();
  for (auto part : parts) header.checksum = crc(header.checksum, part);
  OutputFile out(path);
  out.write(std::as_bytes(std::span(&header, 1)));
  for (auto part : parts) out.write(part);
  out.commit();
  drop_old_files();
}

void PromptCache::drop_old_files() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& file : fs::directory_iterator(folder_)) {
    std::string name = file.path().filename().string();
    if (!name.starts_with(prefix_) || !name.ends_with(".kv")) continue;
    std::error_code gone;  // other processes drop files of this folder too
    auto time = file.last_write_time(gone);
    if (!gone) files.emplace_back(time, file.path());
  }
  std::sort(files.begin(), files.end());
  std::error_code ignored;
  for (size_t i = 0; i + limits_.files < files.size(); ++i) fs::remove(files[i].second, ignored);
}

std::optional<PromptCache::Entry> PromptCache::read_file(const std::string& path, size_t common,
                                                         std::span<const int32_t> ids) const {
  auto file = MappedFile::open(path);
  std::span<const std::byte> bytes = file->bytes();
  Header header;
  auto broken = [](const char* what) { fail(Status::model_file, "{}", what); };
  if (bytes.size() < sizeof header) broken("it is cut short");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) broken("it is no prompt cache");
  std::span<const std::byte> rest = bytes.subspan(sizeof header);
  KvCache cache = model_.new_cache();
  if (header.block_bytes != cache.block_bytes() || header.fingerprint_size > rest.size() ||
      header.ids > rest.size() / 4 || header.ids == 0) {
    broken("its sizes are not this model's");
  }
  auto block_count = static_cast<uint64_t>(KvCache::blocks_of(static_cast<int64_t>(header.ids)));
  if (rest.size() != header.fingerprint_size + header.ids * 4 + block_count * header.block_bytes) {
    broken("it is cut short");
  }
  std::string fingerprint = model_.fingerprint();
  if (fingerprint.size() != header.fingerprint_size ||
      std::memcmp(rest.data(), fingerprint.data(), fingerprint.size()) != 0) {
    return std::nullopt;  // another model, or this one changed
  }
  std::vector<int32_t> stored(header.ids);
  std::memcpy(stored.data(), rest.data() + fingerprint.size(), header.ids * 4);
  size_t shared = common_prefix(ids, stored);
  if (shared <= common) return std::nullopt;
  if (crc(0, rest) != header.checksum) broken("its checksum is wrong");

  std::span<const std::byte> blocks = rest.subspan(fingerprint.size() + header.ids * 4);
  auto positions = static_cast<int64_t>(shared);
  cache.restore(positions, blocks.first(static_cast<size_t>(KvCache::blocks_of(positions)) *
                                        cache.block_bytes()));
  stored.resize(shared);
  return Entry{std::move(stored), std::move(cache)};
}

}  // namespace speech
