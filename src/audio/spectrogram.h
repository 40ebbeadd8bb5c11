// From samples to mel features: windows, short-time power spectra, mel filter banks.
//
// Plain functions in double precision; a family's front end is a few calls of them. Frames are
// independent, so a caller may spread them over threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "audio/fft.h"

namespace speech {

// Hann's window of `size` points: 0.5 - 0.5 cos(2 pi n / size), the period of a signal of that
// length (torch.hann_window's default, scipy's sym=False), or with size - 1 in place of size,
// symmetric (periodic=False). One point: 1.
std::vector<double> hann_window(int size, bool periodic);

// Which samples stand in for those before the first and after the last.
enum class Padding { zeros, reflect };  // reflect: sample -i is sample i (the edge not repeated)

// Short-time Fourier transform: frame t is about sample t * hop + offset.
class Stft {
 public:
  // `window` of at most `size` points stands in the middle of `size` (torch.stft, librosa).
  Stft(int size, int hop, std::span<const double> window, Padding padding);

  int bins() const { return fft_.bins(); }

  // Frames of torch.stft(center=True): 1 + samples / hop.
  int64_t frames(int64_t samples) const { return 1 + samples / hop_; }

  // The power |X|^2 of frames [first, first + out.size() / bins()) of `x` into out[frames, bins].
  // `start` is the sample at which frame 0 begins: -size / 2 for center=True, 0 for none, any
  // other for one-sided paddings. A reflection that would need to turn twice is Error(internal).
  void power(std::span<const float> x, int64_t start, int64_t first, std::span<double> out) const;

 private:
  int size_, hop_;
  Padding padding_;
  std::vector<double> window_;  // padded to size_
  RealFft fft_;
};

enum class MelScale {
  slaney,  // linear below 1000 Hz, logarithmic above (Slaney 1998; librosa's default)
  htk,     // 2595 log10(1 + f / 700)
};

double hz_to_mel(double hz, MelScale scale);
double mel_to_hz(double mel, MelScale scale);

// Triangles [mels, size / 2 + 1] between mels + 2 points evenly spaced on the scale. `area_norm`:
// each times 2 / (its width in Hz), "slaney" in librosa. Frequencies in Hz.
std::vector<double> mel_filters(MelScale scale, bool area_norm, int mels, int size, int rate,
                                double lowest, double highest);

// A filter matrix applied to spectra: the zeros at both ends of each row are skipped.
class FilterBank {
 public:
  FilterBank(std::span<const float> matrix, int filters, int bins);
  FilterBank(std::span<const double> matrix, int filters, int bins);

  int filters() const { return static_cast<int>(rows_.size()); }
  // out[filters] = matrix * spectrum[bins], summed in double from low to high bins.
  void apply(std::span<const double> spectrum, std::span<double> out) const;

 private:
  struct Row {
    int first = 0;
    std::vector<double> weights;
  };
  std::vector<Row> rows_;
  int bins_;
};

}  // namespace speech
