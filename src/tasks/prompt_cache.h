// Keys and values of prompts seen before, in the process and on disk.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/language_model.h"

namespace speech {

// A request whose ids begin with ids seen before starts from their keys and values, all but the
// last one (whose logits are needed). In memory the caches of the most recently used sequences are
// kept; a folder, if given, keeps prompts across runs, one file each: written beside and renamed,
// named by fingerprint and ids, checked when read. A file that is damaged or of another model is a
// miss.
//
// Caches move in and out: a sequence that has ended leaves its cache here, and one that continues
// all of it takes it along, so that a conversation costs no copy however long it is. Only a
// sequence that shares a part of another one copies that part.
class PromptCache {
 public:
  struct Limits {
    size_t entries = 8;
    size_t bytes = size_t{512} << 20;
    size_t files = 16;     // of this model
    size_t file_ids = 16;  // prompts shorter than this are not written
  };

  PromptCache(const LanguageModel& model, Limits limits, std::string folder = {});

  // The longest prefix of `ids`, at most ids.size() - 1 positions; null if there is none longer
  // than `known`. An entry that is such a prefix as a whole leaves the cache.
  std::optional<KvCache> find(std::span<const int32_t> ids, size_t known = 0);
  // Keeps `cache`, whose positions are those of `ids`, in memory.
  void store(std::span<const int32_t> ids, KvCache cache);
  // Keeps the first ids.size() positions of `cache` on disk, if there is a folder.
  void write(std::span<const int32_t> ids, const KvCache& cache);

 private:
  struct Entry {
    std::vector<int32_t> ids;
    KvCache cache;
  };

  std::string file_name(std::span<const int32_t> ids) const;
  void write_file(std::span<const int32_t> ids, const KvCache& cache) const;
  void drop_old_files() const;
  // The entry of a file if it is whole, of this model, and shares more than `common` positions with
  // `ids`; only those positions are read.
  std::optional<Entry> read_file(const std::string& path, size_t common,
                                 std::span<const int32_t> ids) const;

  const LanguageModel& model_;
  Limits limits_;
  std::string folder_;
  std::string prefix_;        // of this model's file names
  std::list<Entry> entries_;  // most recent first
};

}  // namespace speech
