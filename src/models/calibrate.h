// Calibration: what the matrices of a model are multiplied with when it runs on typical inputs.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compute/input_statistics.h"
#include "models/registry.h"

namespace speech {

// Runs a model file and watches its products. It knows weights by where they lie in the mapped
// file, so that any family that multiplies them there can be calibrated; what it runs is what the
// task is for: recognizers take audio files, language models text files.
class Calibration {
 public:
  // Loads the model. Errors, all of "calibrate": unsupported for a task whose models cannot be
  // calibrated; io, unsupported or invalid_argument for an input that cannot be read, naming it.
  Calibration(const Family& family, std::shared_ptr<const GgufFile> file,
              std::vector<std::string> inputs, int threads);

  // Statistics of those of `tensors` that enter products, from one run over all inputs.
  // Error(model_file) when the model's activations are not finite; "calibrate" for an input at
  // fault; cancelled. Progress is not reported; it is asked whether to stop.
  std::map<std::string, InputStatistics> collect(const std::set<std::string>& tensors,
                                                 const Control& control);

  // The same checks of the inputs without the model.
  static void check(Task task, const std::vector<std::string>& inputs);

 private:
  void watch(Backend& backend, const Tensor& x, const Weight& w);
  void run(const std::string& input, const Control& control);

  std::shared_ptr<const GgufFile> file_;
  std::vector<std::string> inputs_;
  std::map<const std::byte*, const TensorEntry*> places_;  // by address
  Backend* backend_ = nullptr;                             // the one that computes
  std::unique_ptr<Model> model_;
  const std::set<std::string>* wanted_ = nullptr;  // during collect()
  std::map<std::string, InputStatistics> found_;
};

}  // namespace speech
