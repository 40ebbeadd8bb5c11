// An official checkpoint as the converter sees it: configuration, and values under the layout's
// tensor names.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/nemo_file.h"
#include "models/fastconformer/layout.h"

namespace speech::fastconformer {

// Tensors by the names of NeMo's state dict, whatever the file calls them.
class StateDict {
 public:
  // `rename` gives the file's name of NeMo's.
  StateDict(const TensorFile& file, std::string (*rename)(std::string name))
      : file_(&file), rename_(rename) {}

  bool has(const std::string& name) const { return file_->find(rename_(name)) != nullptr; }
  // Axis `axis` of a tensor; Error(model_file) if there is no such.
  int64_t dim(const std::string& name, size_t axis) const;
  // The values, which must be as many as `count`. Error(model_file) also for a value that is no
  // finite number.
  std::vector<float> values(const std::string& name, int64_t count) const;
  // Error(model_file) naming a tensor of the file that values() has not been asked for and that
  // `ignored` does not know: nothing is left out of a conversion by mistake.
  void check_all_used(bool (*ignored)(std::string_view file_name)) const;

 private:
  const TensorFile* file_;
  std::string (*rename_)(std::string);
  mutable std::set<std::string, std::less<>> used_;
};

struct Checkpoint {
  Config config;
  int64_t window = 0;  // samples under the analysis window
  bool ctc = false;    // it has a CTC head
  StateDict state;
  bool (*ignored)(std::string_view file_name);  // tensors that are no weights of the layout
};

// A .nemo archive. Error(model_file) for a model that this family cannot run, saying what about it.
Checkpoint read_nemo(const NemoFile& file);
// The class that the archive's model_config.yaml names, with its package; empty if it names none.
std::string nemo_target(const NemoFile& file);

// A folder as transformers' ParakeetForTDT saves it; `weights` are its tensors.
Checkpoint read_transformers(const std::string& folder, const TensorFile& weights);
// config.json's model_type, or empty.
std::string transformers_type(const std::string& folder);

// Sizes that the checkpoint's tensors give.
Widths read_widths(const Checkpoint& checkpoint);
// The values of one of layout_tensors().
std::vector<float> layout_values(const Checkpoint& checkpoint, const TensorSpec& spec);

// NeMo's rule for the marks that lose the space before them: characters of category P of every
// piece that is no special one and does not begin a word.
std::vector<std::string> punctuation_of(const std::vector<std::string>& pieces);

}  // namespace speech::fastconformer
