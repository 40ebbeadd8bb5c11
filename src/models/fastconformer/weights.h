// The weights of a FastConformer model, named as in the paper, lying in the mapped file.
#pragma once

#include <memory>
#include <vector>

#include "compute/tensor.h"
#include "models/fastconformer/layout.h"

namespace speech::fastconformer {

struct Linear {
  Weight weight;
  Tensor bias;  // empty where the model has none
};

struct Norm {
  Tensor weight, bias;
};

struct Subsampling {
  struct Stage {
    Tensor depthwise, bias;
    Linear pointwise;
  };
  Tensor conv, conv_bias;  // the first convolution, from the features
  std::vector<Stage> stages;
  Linear out;
};

struct Layer {
  Norm ff1_norm;
  Linear ff1_up, ff1_down;
  Norm attn_norm;
  Linear q, k, v, attn_out;
  Weight pos;
  Tensor pos_bias_u, pos_bias_v;  // [heads, head size]
  Norm conv_norm;
  Linear conv_value, conv_gate;  // the halves of the first pointwise convolution
  Tensor conv_dw, conv_dw_bias;  // [d_model, kernel]; the batch norm is folded in
  Linear conv_out;
  Norm ff2_norm;
  Linear ff2_up, ff2_down;
  Norm out_norm;
};

struct Lstm {
  Weight input, hidden;  // gates i, f, g, o
  Tensor bias;
};

struct Weights {
  Tensor window, filterbank;
  Subsampling subsampling;
  std::vector<Layer> layers;
  Weight embed;
  std::vector<Lstm> lstm;
  Linear joint_enc, joint_pred, joint_out;
  Linear ctc;  // empty unless the file carries the head

  std::shared_ptr<const GgufFile> file;          // keeps the mapping
  std::vector<std::unique_ptr<float[]>> copies;  // vectors that were not aligned in it
};

// The file has been checked with check_tensors.
Weights load_weights(std::shared_ptr<const GgufFile> file, const Config& config);

}  // namespace speech::fastconformer
