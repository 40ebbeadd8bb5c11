// Change of the sample rate by a windowed sinc.
//
// The filter is torchaudio's sinc_interp_kaiser with the "kaiser_best" values: 64 zero crossings,
// cut-off at 0.9475937167399596 of the lower Nyquist frequency, Kaiser window of beta
// 14.769656459379492 (beta and I0(beta) rounded to float32, everything else in double).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace speech {

// Samples that `samples` become: ceil of the exact number in float32, as torchaudio takes it, but
// never more than the filter's blocks hold.
int64_t resampled_length(int64_t samples, int from, int to);

// Resamples audio that comes in pieces. The samples given are the same bytes however the audio is
// cut, and each is given as soon as no later input can change it.
class Resampler {
 public:
  // Error(invalid_argument, "audio") for a rate below 1 Hz or over 4096 times the other. Equal
  // rates pass everything on unchanged. Rates with a small common divisor are slower: their taps
  // are too many to keep, so each output makes its own.
  Resampler(int from, int to);

  void push(std::span<const float> in, std::vector<float>& out);  // appends to out
  void end(std::vector<float>& out);  // the rest; push() and end() may not be called after it

 private:
  struct Filter;
  void run(int64_t end, std::vector<float>& out);

  int from_, to_;
  std::shared_ptr<const Filter> filter_;  // null for equal rates
  std::vector<double> input_;             // the samples from `input_start_` on; zeros before 0
  std::vector<double> scratch_;           // taps of one output
  int64_t input_start_ = 0, received_ = 0, given_ = 0;
};

// All at once.
std::vector<float> resample(std::span<const float> samples, int from, int to);

}  // namespace speech
