// Stages of a run, for comparison with the official code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute/backend.h"

namespace speech {

// Collects named tensors while a model runs. Model code holds a pointer that is null when nobody
// asks:
//   trace(run, "02_encoder.layer.0", x);
class Trace {
 public:
  struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> floats;  // one of the two is used
    std::vector<int32_t> ints;
  };

  void add(std::string name, const Tensor& x, Backend& backend);
  void add(std::string name, std::vector<int64_t> shape, std::span<const float> values);
  void add_ints(std::string name, std::vector<int64_t> shape, std::span<const int32_t> values);

  const std::vector<Entry>& entries() const { return entries_; }
  // Every name added from now on begins with `prefix` (several inputs in one file).
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Images (the outputs of 2-d convolutions, [channels, height, width]) are large: every n-th
  // channel is kept, or none with 0.
  void set_channel_step(int step) { channel_step_ = step; }
  int channel_step() const { return channel_step_; }
  // Which chunks of the input a family shall keep the stages of, where it works in many (ascending;
  // empty: its own choice).
  void set_rows(std::vector<int64_t> rows) { rows_ = std::move(rows); }
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  std::string prefix_;
  int channel_step_ = 0;
  std::vector<int64_t> rows_;
  std::vector<Entry> entries_;
};

// What a forward pass needs besides weights and inputs.
struct Run {
  Backend& backend;
  Workspace& workspace;
  Trace* trace = nullptr;

  Tensor tensor(std::initializer_list<int64_t> shape) { return workspace.tensor(shape); }
};

// Records a stage; nothing but a test of a pointer when tracing is off.
inline void trace(Run& run, std::string_view name, const Tensor& x) {
  if (run.trace) run.trace->add(std::string(name), x, run.backend);
}

}  // namespace speech
