#include "models/fastconformer/transducer.h"

#include <algorithm>
#include <cmath>

namespace speech::fastconformer {

Prediction Transducer::start() const {
  const auto size = w_.lstm.size() * static_cast<size_t>(w_.embed.cols);
  return {std::vector<float>(size), std::vector<float>(size), {}};
}

std::vector<Prediction> Transducer::predict(Run& run, std::span<const int32_t> labels,
                                            std::span<const Prediction* const> before) const {
  Workspace::Scope scope(run.workspace);
  Backend& b = run.backend;
  const auto n = static_cast<int64_t>(labels.size());
  const int64_t width = w_.embed.cols;
  const auto size = static_cast<size_t>(width);
  std::vector<Prediction> after(labels.size());

  Tensor x = run.tensor({n, width});
  b.gather(x, w_.embed, labels);
  Tensor gates = run.tensor({n, 4 * width});
  for (size_t l = 0; l < w_.lstm.size(); ++l) {
    const Lstm& lstm = w_.lstm[l];
    Tensor h = run.tensor({n, width}), c = run.tensor({n, width});
    for (int64_t i = 0; i < n; ++i) {
      const Prediction& state = *before[static_cast<size_t>(i)];
      b.write(h[i], std::span(state.h).subspan(l * size, size));
      b.write(c[i], std::span(state.c).subspan(l * size, size));
    }
    b.matmul(gates, x, lstm.input, {.bias = lstm.bias});
    b.matmul(gates, h, lstm.hidden, {.add = gates});
    b.lstm_step(h, c, gates);
    for (int64_t i = 0; i < n; ++i) {
      Prediction& state = after[static_cast<size_t>(i)];
      state.h.resize(w_.lstm.size() * size);
      state.c.resize(w_.lstm.size() * size);
      b.read(h[i], std::span(state.h).subspan(l * size, size));
      b.read(c[i], std::span(state.c).subspan(l * size, size));
    }
    x = h;
  }
  Tensor side = run.tensor({n, w_.joint_pred.weight.rows});
  b.matmul(side, x, w_.joint_pred.weight, {.bias = w_.joint_pred.bias});
  for (int64_t i = 0; i < n; ++i) {
    Prediction& state = after[static_cast<size_t>(i)];
    state.joint.resize(static_cast<size_t>(side.dim(1)));
    b.read(side[i], state.joint);
  }
  return after;
}

Tensor Transducer::encoder_side(Run& run, const Tensor& encoded) const {
  Tensor out = run.tensor({encoded.dim(0), w_.joint_enc.weight.rows});
  run.backend.matmul(out, encoded, w_.joint_enc.weight, {.bias = w_.joint_enc.bias});
  return out;
}

Tensor Transducer::joint(Run& run, const Tensor& encoder_side,
                         std::span<const Query> queries) const {
  Backend& b = run.backend;
  int64_t rows = 0;
  for (const Query& q : queries) rows += q.rows;
  Tensor logits = run.tensor({rows, w_.joint_out.weight.rows});

  Workspace::Scope scope(run.workspace);
  const int64_t width = encoder_side.dim(1);
  Tensor x = run.tensor({rows, width}), prediction = run.tensor({width});
  int64_t row = 0;
  for (const Query& q : queries) {
    b.write(prediction, q.prediction->joint);
    b.add_row(x.slice(0, row, row + q.rows), encoder_side.slice(0, q.row, q.row + q.rows),
              prediction);
    row += q.rows;
  }
  b.activate(x, x, Activation::relu);
  b.matmul(logits, x, w_.joint_out.weight, {.bias = w_.joint_out.bias});
  return logits;
}

double log_probability(std::span<const float> logits, int32_t index) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - max);
  return logits[static_cast<size_t>(index)] - max - std::log(sum);
}

}  // namespace speech::fastconformer
