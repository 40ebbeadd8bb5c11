#include "audio/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace speech {
namespace {

constexpr int kZeroCrossings = 64;
constexpr double kRolloff = 0.9475937167399596, kBeta = 14.769656459379492;
// A rate this many times the other: headers that promise gigahertz must not cost gigabytes.
constexpr int64_t kLargestRatio = 4096;
// Taps of all phases are kept up to this many (16 MB), else made for each output.
constexpr int64_t kKeptTaps = int64_t{1} << 21;
// Sums and terms side by side: enough chains of dependent steps to keep a core busy.
constexpr int64_t kLanes = 16;

// The modified Bessel function of order 0 is I0(2 sqrt(z)) = sum z^k / (k!)^2. All terms are
// positive, so nothing cancels, and past these many none counts up to the filter's beta.
constexpr int kBesselTerms = 32;
constexpr auto kBessel = [] {
  std::array<double, kBesselTerms> terms{1};
  for (int k = 1; k < kBesselTerms; ++k) terms[k] = terms[k - 1] / (static_cast<double>(k) * k);
  return terms;
}();

// values[j] = I0(2 sqrt(z[j])); side by side, as each is a chain of dependent steps.
void bessel_i0(const double* z, double* values) {
  double sums[kLanes] = {};
  for (int k = kBesselTerms - 1; k >= 0; --k) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] = sums[j] * z[j] + kBessel[k];
  }
  std::copy_n(sums, kLanes, values);
}

// Adds in a fixed order. `n` is a multiple of kLanes.
double dot(const double* a, const double* b, int64_t n) {
  double sums[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

int64_t rounded_up(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

int reduced(int value, int other) {
  return value / std::gcd(value, other);
}

}  // namespace

// Output q * to + phase is the sum over n in -reach..reach of h(t) x[q * from + center(phase) + n]
// with h(t) = sinc(t) I0(beta sqrt(1 - (t / 64)^2)) / I0(beta) base / from,
// t = ((center(phase) + n) / from - phase / to) base, base = min(from, to) * rolloff; zero where
// |t| >= 64.
struct Resampler::Filter {
  int64_t from, to;  // reduced
  int64_t reach;     // input samples to either side of the center, itself within half a sample
  int64_t taps;      // of a phase, with the zeros that fill the last lanes

  Filter(int from_rate, int to_rate)
      : from(reduced(from_rate, to_rate)), to(reduced(to_rate, from_rate)) {
    if (std::max(from, to) > kLargestRatio * std::min(from, to)) {
      fail_option(
          Status::invalid_argument, "audio",
          "audio of {} Hz cannot be resampled to {} Hz: one rate is over {} times the other",
          from_rate, to_rate, kLargestRatio);
    }
    base_ = static_cast<double>(std::min(from, to)) * kRolloff;
    const double step = base_ / static_cast<double>(from);  // of t between two samples
    reach = static_cast<int64_t>(std::ceil(kZeroCrossings / step + 0.5)) - 1;
    taps = rounded_up(span());
    // sin(pi t) is made of the sines and cosines of whole steps from the center: one pair of tables
    // serves all phases.
    for (int64_t i = 0; i < taps; ++i) {
      const double angle = std::numbers::pi * step * static_cast<double>(i - reach);
      sines_.push_back(std::sin(angle));
      cosines_.push_back(std::cos(angle));
    }
    const double beta = static_cast<float>(kBeta);
    quarter_ = beta * beta / 4;
    double z[kLanes] = {quarter_}, peak[kLanes];
    bessel_i0(z, peak);
    scale_ = step / static_cast<float>(peak[0]);
    if (to * taps > kKeptTaps) return;
    kept_.resize(static_cast<size_t>(to * taps));
    for (int64_t phase = 0; phase < to; ++phase) make(phase, kept_.data() + phase * taps);
  }

  // The first of the span() input samples that an output is made of.
  int64_t first(int64_t output) const { return output / to * from + center(output % to) - reach; }
  int64_t span() const { return 2 * reach + 1; }

  // The taps of a phase; `scratch` holds them if they are not kept.
  const double* row(int64_t phase, std::vector<double>& scratch) const {
    if (!kept_.empty()) return kept_.data() + phase * taps;
    scratch.resize(static_cast<size_t>(taps));
    make(phase, scratch.data());
    return scratch.data();
  }

 private:
  // The input sample nearest to a phase, counted from its block's first.
  int64_t center(int64_t phase) const { return (2 * phase * from + to) / (2 * to); }

  void make(int64_t phase, double* out) const {
    // The center's t, from an exact fraction; the others are whole steps away.
    const auto f = static_cast<double>(from);
    const double offset = static_cast<double>(center(phase) * to - phase * from) /
                          (f * static_cast<double>(to)) * base_;
    const double sine = std::sin(std::numbers::pi * offset);
    const double cosine = std::cos(std::numbers::pi * offset);
    const double step = base_ / f;
    for (int64_t i = 0; i < taps; i += kLanes) {
      double t[kLanes], z[kLanes], window[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        t[j] = offset + step * static_cast<double>(i + j - reach);
        const double edge = t[j] / kZeroCrossings;
        z[j] = quarter_ * (1 - edge * edge);
      }
      bessel_i0(z, window);
      for (int64_t j = 0; j < kLanes; ++j) {
        const double sine_t = sine * cosines_[static_cast<size_t>(i + j)] +
                              cosine * sines_[static_cast<size_t>(i + j)];
        const double sinc = t[j] == 0 ? 1 : sine_t / (std::numbers::pi * t[j]);
        out[i + j] = z[j] > 0 ? sinc * window[j] * scale_ : 0;
      }
    }
  }

  double base_, quarter_, scale_;
  std::vector<double> sines_, cosines_;  // [taps]
  std::vector<double> kept_;             // [to, taps], or nothing
};

int64_t resampled_length(int64_t samples, int from, int to) {
  if (from == to) return samples;
  int64_t f = reduced(from, to), t = reduced(to, from);
  double exact = static_cast<double>(samples * t) / static_cast<double>(f);
  auto length = static_cast<int64_t>(std::ceil(static_cast<float>(exact)));
  return std::min(length, (samples / f + 1) * t);
}

Resampler::Resampler(int from, int to) : from_(from), to_(to) {
  if (from < 1 || to < 1) {
    fail_option(Status::invalid_argument, "audio", "a sample rate of {} Hz is not possible",
                std::min(from, to));
  }
  if (from == to) return;
  filter_ = std::make_shared<Filter>(from, to);
  input_.assign(static_cast<size_t>(filter_->reach), 0.0);
  input_start_ = -filter_->reach;
}

void Resampler::push(std::span<const float> in, std::vector<float>& out) {
  received_ += static_cast<int64_t>(in.size());
  if (!filter_) {
    out.insert(out.end(), in.begin(), in.end());
    return;
  }
  input_.insert(input_.end(), in.begin(), in.end());
  run(received_, out);
}

void Resampler::end(std::vector<float>& out) {
  if (!filter_) return;
  // Zeros as far as the last output reaches.
  const int64_t length = resampled_length(received_, from_, to_);
  const int64_t end = length > 0 ? filter_->first(length - 1) + filter_->span() : 0;
  if (end > received_) input_.insert(input_.end(), static_cast<size_t>(end - received_), 0.0);
  run(std::max(end, received_), out);
}

// Computes the outputs whose taps lie before input sample `end`.
void Resampler::run(int64_t end, std::vector<float>& out) {
  const Filter& f = *filter_;
  const int64_t length = resampled_length(received_, from_, to_);
  // The last lanes of a row may lie behind the last sample that counts: zeros times anything
  // finite.
  input_.resize(input_.size() + kLanes);
  for (; given_ < length && f.first(given_) + f.span() <= end; ++given_) {
    const double* x = input_.data() + (f.first(given_) - input_start_);
    out.push_back(static_cast<float>(dot(f.row(given_ % f.to, scratch_), x, f.taps)));
  }
  input_.resize(input_.size() - kLanes);
  // Forget what no later output reads, once it is worth the move.
  const int64_t dead = std::min(f.first(given_), received_) - input_start_;
  if (dead > 4096 + static_cast<int64_t>(input_.size()) / 2) {
    input_.erase(input_.begin(), input_.begin() + dead);
    input_start_ += dead;
  }
}

std::vector<float> resample(std::span<const float> samples, int from, int to) {
  Resampler resampler(from, to);
  std::vector<float> out;
  out.reserve(
      static_cast<size_t>(resampled_length(static_cast<int64_t>(samples.size()), from, to)));
  // In blocks, so that the copy in double stays small.
  constexpr size_t kBlock = 1 << 16;
  while (!samples.empty()) {
    size_t count = std::min(samples.size(), kBlock);
    resampler.push(samples.first(count), out);
    samples = samples.subspan(count);
  }
  resampler.end(out);
  return out;
}

}  // namespace speech
