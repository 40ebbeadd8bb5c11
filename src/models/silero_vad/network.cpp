#include "models/silero_vad/network.h"

#include <fmt/format.h>

#include <algorithm>

namespace speech::silero_vad {
namespace {

// Columns [begin, end) of a matrix of floats in memory.
Weight columns(const std::vector<float>& values, int64_t rows, int64_t begin, int64_t end) {
  int64_t cols = static_cast<int64_t>(values.size()) / rows;
  Weight w;
  w.rows = rows;
  w.cols = end - begin;
  w.data = reinterpret_cast<const std::byte*>(values.data() + begin);
  w.row_bytes = cols * static_cast<int64_t>(sizeof(float));
  return w;
}

Weight matrix(const std::vector<float>& values, int64_t rows) {
  return columns(values, rows, 0, static_cast<int64_t>(values.size()) / rows);
}

Tensor vector(const std::vector<float>& values) {
  return TensorAccess::make(const_cast<float*>(values.data()),
                            {static_cast<int64_t>(values.size())});
}

// Records x[n, frames * channels] as the official [n, channels, frames].
void trace_frames(Run& run, const std::string& name, const Tensor& x, int64_t frames) {
  if (!run.trace) return;
  int64_t n = x.dim(0), channels = x.dim(1) / frames;
  std::vector<float> values(static_cast<size_t>(x.size())), turned(values.size());
  run.backend.read(x, values);
  size_t at = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t f = 0; f < frames; ++f) {
        turned[at++] = values[static_cast<size_t>((i * frames + f) * channels + c)];
      }
    }
  }
  run.trace->add(name, {n, channels, frames}, turned);
}

}  // namespace

Network::Network(Weights weights) : weights_(std::move(weights)) {
  for (const Weights::Conv& conv : weights_.encoder) {
    std::vector<float> turned(conv.weight.size());
    size_t at = 0;
    for (int64_t o = 0; o < conv.out; ++o) {
      for (int64_t t = 0; t < conv.taps; ++t) {
        for (int64_t i = 0; i < conv.in; ++i) {
          turned[at++] = conv.weight[static_cast<size_t>((o * conv.in + i) * conv.taps + t)];
        }
      }
    }
    taps_first_.push_back(std::move(turned));
  }
}

uint64_t Network::weight_bytes() const {
  size_t values = weights_.basis.size() + weights_.ih.size() + weights_.hh.size() +
                  weights_.lstm_bias.size() + weights_.decoder.size() +
                  weights_.decoder_bias.size();
  for (const Weights::Conv& conv : weights_.encoder)
    values += conv.weight.size() + conv.bias.size();
  return values * sizeof(float);
}

void Network::pad(std::span<const float> input, std::span<float> padded) const {
  size_t n = input.size();
  std::copy(input.begin(), input.end(), padded.begin());
  // Reflected at the end only, the last sample not repeated.
  for (size_t j = 0; n + j < padded.size(); ++j) padded[n + j] = input[n - 2 - j];
}

// Frames lie beside each other in a row, so that a window of taps is a slice of columns: one
// product per output frame over all chunks, without the taps that would fall on zeros outside.
Tensor Network::convolve(Run& run, size_t block, const Tensor& x, int64_t frames, int stage) const {
  const Weights::Conv& conv = weights_.encoder[block];
  int64_t stride = config().strides[block], padding = config().padding[block];
  int64_t frames_out = (frames + 2 * padding - conv.taps) / stride + 1;
  Activation relu = run.trace ? Activation::none : Activation::relu;
  Tensor y = run.tensor({x.dim(0), frames_out * conv.out});
  for (int64_t t = 0; t < frames_out; ++t) {
    int64_t start = t * stride - padding;
    int64_t first = std::max<int64_t>(0, -start), last = std::min(conv.taps, frames - start);
    run.backend.matmul(y.slice(1, t * conv.out, (t + 1) * conv.out),
                       x.slice(1, (start + first) * conv.in, (start + last) * conv.in),
                       columns(taps_first_[block], conv.out, first * conv.in, last * conv.in),
                       {.bias = vector(conv.bias), .activation = relu});
  }
  if (run.trace) {
    trace_frames(run, fmt::format("{:02}_encoder{}_conv", stage, block), y, frames_out);
    run.backend.activate(y, y, Activation::relu);
    trace_frames(run, fmt::format("{:02}_encoder{}", stage + 1, block), y, frames_out);
  }
  return y;
}

Tensor Network::encode(Run& run, const Tensor& padded) const {
  const Config& c = config();
  int64_t n = padded.dim(0), frames = c.frames(), bins = c.bins();
  trace(run, "01_padded", padded);
  Tensor spectrum = run.tensor({n, frames * 2 * bins});
  for (int64_t t = 0; t < frames; ++t) {
    run.backend.matmul(spectrum.slice(1, t * 2 * bins, (t + 1) * 2 * bins),
                       padded.slice(1, t * c.hop, t * c.hop + c.n_fft),
                       matrix(weights_.basis, 2 * bins));
  }
  trace_frames(run, "02_stft_reim", spectrum, frames);
  Tensor x = run.tensor({n, frames * bins});
  run.backend.magnitude(x.reshape({n * frames, bins}), spectrum.reshape({n * frames, 2 * bins}));
  trace_frames(run, "03_stft_magnitude", x, frames);
  for (size_t block = 0; block < weights_.encoder.size(); ++block) {
    x = convolve(run, block, x, frames, 4 + 2 * static_cast<int>(block));
    frames = x.dim(1) / weights_.encoder[block].out;
  }
  Tensor gates = run.tensor({n, 4 * weights_.hidden});
  run.backend.matmul(gates, x, matrix(weights_.ih, 4 * weights_.hidden),
                     {.bias = vector(weights_.lstm_bias)});
  return gates;
}

void Network::add_state(Run& run, const Tensor& gates, const Tensor& h) const {
  run.backend.matmul(gates, h, matrix(weights_.hh, 4 * weights_.hidden), {.add = gates});
}

Tensor Network::decode(Run& run, const Tensor& h) const {
  // The ReLU is on a copy: the state that is carried on is not rectified.
  Tensor x = run.tensor({h.dim(0), weights_.hidden});
  run.backend.activate(x, h, Activation::relu);
  trace(run, "17_decoder_relu", x);
  Tensor prob = run.tensor({h.dim(0), 1});
  run.backend.matmul(prob, x, matrix(weights_.decoder, 1), {.bias = vector(weights_.decoder_bias)});
  trace(run, "18_logit", prob);
  run.backend.activate(prob, prob, Activation::sigmoid);
  trace(run, "19_prob", prob);
  return prob;
}

Tensor Network::forward(Run& run, const Tensor& padded, const Tensor& h, const Tensor& c,
                        const Tensor& all_h, const Tensor& all_c) const {
  Tensor gates = encode(run, padded);
  Tensor before = h;
  for (int64_t i = 0; i < padded.dim(0); ++i) {
    Tensor step = gates.slice(0, i, i + 1), after = all_h.slice(0, i, i + 1);
    add_state(run, step, before);
    run.backend.lstm_step(after, c, step);
    if (!all_c.empty()) run.backend.copy(all_c.slice(0, i, i + 1), c);
    before = after;
  }
  run.backend.copy(h, before);
  return decode(run, all_h);
}

}  // namespace speech::silero_vad
