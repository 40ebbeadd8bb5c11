// The numbers and matrices of a Silero VAD model, from a GGUF file or an official checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speech {

class GgufFile;
class TensorFile;

namespace silero_vad {

struct Config {
  int64_t rate = 16000;               // Hz
  int64_t chunk = 512, context = 64;  // samples: new ones, and of the chunk before
  int64_t n_fft = 256, hop = 128;     // of the short-time transform
  int64_t reflect = 64;               // samples of padding, at the end only
  std::vector<int64_t> strides = {1, 2, 2, 1}, padding = {1, 1, 1, 1};  // of the encoder
  double threshold = 0.5;
  double neg_threshold_offset = 0.15, neg_threshold_floor = 0.01;
  int64_t min_speech_ms = 250, min_silence_ms = 100, speech_pad_ms = 30;
  int64_t min_cut_silence_ms = 98;

  int64_t input() const { return context + chunk; }
  int64_t padded() const { return input() + reflect; }
  int64_t frames() const { return (padded() - n_fft) / hop + 1; }
  int64_t bins() const { return n_fft / 2 + 1; }
};

// Matrices as PyTorch has them. They are copied out of the file: the whole model is 1.2 MB, and the
// convolutions are run in another order.
struct Weights {
  struct Conv {
    int64_t out = 0, in = 0, taps = 0;
    std::vector<float> weight, bias;  // [out, in, taps], [out]
  };
  Config config;
  std::vector<float> basis;  // [2 bins, n_fft]: real rows, then imaginary
  std::vector<Conv> encoder;
  int64_t features = 0, hidden = 0;      // inputs of the LSTM, its state
  std::vector<float> ih, hh, lstm_bias;  // [4 hidden, features], [4 hidden, hidden], gates i f g o
  std::vector<float> decoder, decoder_bias;  // [1, hidden], [1]
};

// The keys of a GGUF file, checked for themselves and against the tensors' shapes.
// Error(model_file) names the key or tensor. No weight is read.
Config read_config(const GgufFile& file);

// Config and weights. Error(model_file), also for a weight that is not finite.
Weights read_weights(const GgufFile& file);

}  // namespace silero_vad
}  // namespace speech
