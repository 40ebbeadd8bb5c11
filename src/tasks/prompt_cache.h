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

// A request whose ids begin with ids seen before starts from a copy of their keys and values, all
// but the last one (whose logits are needed). In memory the most recently used entries are kept; a
// folder, if given, keeps them across runs, one file each: written beside and renamed, named by
// fingerprint and ids, checked when read. A file that is damaged or of another model is a miss.
class PromptCache {
 public:
  struct Limits {
    size_t entries = 8;
    size_t bytes = size_t{512} << 20;
    size_t files = 16;     // of this model
    size_t file_ids = 16;  // prompts shorter than this are not written
  };

  PromptCache(const LanguageModel& model, Limits limits, std::string folder = {});

  // The longest prefix of `ids`, at most ids.size() - 1 positions; null if there is none.
  std::optional<KvCache> find(std::span<const int32_t> ids);
  // Keeps a copy of the first ids.size() positions of `cache`. `persistent`: on disk too.
  void store(std::span<const int32_t> ids, const KvCache& cache, bool persistent);

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
