// Model names: which files they stand for, and where those may lie on this machine. Nothing here
// reaches the network.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace speech {

struct CatalogFile {
  std::string_view type;  // "q8_0"
  std::string_view file;
  uint64_t bytes;
  std::string_view sha256;
};

struct CatalogModel {
  std::string_view name;        // "silero-vad"; a released name keeps its model for ever
  std::string_view repository;  // on huggingface.co; empty: the files come with this program
  std::string_view revision;
  Task task;
  std::string_view languages;                // tags with spaces between
  CatalogFile file;                          // of the bare name
  std::span<const CatalogFile> others = {};  // of "NAME:TYPE" alone

  std::vector<CatalogFile> files() const;  // all of them
  // Where a file is on the hub; empty without a repository.
  std::string url(const CatalogFile& file) const;
};

std::span<const CatalogModel> catalog();

// What "NAME", "NAME:TYPE" or "OWNER/REPOSITORY[:TYPE]" stands for.
struct CatalogChoice {
  const CatalogModel* model;
  CatalogFile file;
};
std::optional<CatalogChoice> find_in_catalog(std::string_view text);

// Folders in which a model's file is looked for, in this order: those of $SPEECH_MODELS (separated
// by colons), share/speech/models beside the program's bin folder, the folder installed into, the
// models folder of the source tree, and the user's cache folder.
std::vector<std::string> model_folders();

// The cache folder: $SPEECH_MODEL_DIR (absolute), else $XDG_CACHE_HOME/speech.cpp/models, else
// ~/.cache/speech.cpp/models.
std::string cache_folder();

// Path of one of the model's files, whole by its size, or nothing. In a folder of model_folders()
// it is FILE, NAME/FILE or OWNER--REPOSITORY/SHA256/FILE.
std::optional<std::string> locate_model(const CatalogModel& model, const CatalogFile& file);

// The path that a MODEL argument stands for. A text that ends in a known file extension or contains
// a slash (and is no repository of the catalog) is a path; anything else is a name.
// Error(invalid_argument, "model_path") for an unknown name, Error(io, "model_path") for a known
// one whose file is not on this machine.
std::string resolve_model(const std::string& text);

// Whether resolve_model() takes a text as a path, and whether it is any name or path.
bool is_model_path(std::string_view text);
bool is_model(std::string_view text);

}  // namespace speech
