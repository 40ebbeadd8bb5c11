// Fourier transform of real signals in double precision.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace speech {

struct Complex {
  double re = 0, im = 0;
};

// A plan for one length; any length >= 1 (fast where its prime factors are small). Const calls may
// run on several threads at once, each with its own scratch.
class RealFft {
 public:
  explicit RealFft(int size);

  int size() const { return size_; }
  int bins() const { return size_ / 2 + 1; }

  // out[k] = sum_n in[n] exp(-2 pi i k n / size), k = 0 .. size / 2.
  void forward(std::span<const double> in, std::span<Complex> out,
               std::vector<Complex>& scratch) const;

 private:
  void transform(Complex* x, Complex* other) const;

  int size_;
  int length_;                    // of the complex transform: size / 2 where size is even
  std::vector<int> factors_;      // of length_
  std::vector<Complex> roots_;    // exp(-2 pi i k / length_)
  std::vector<Complex> untwist_;  // exp(-2 pi i k / size), for even sizes
};

}  // namespace speech
