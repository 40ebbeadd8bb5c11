#include "audio/spectrogram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <random>

#include "audio/read.h"
#include "formats/tensor_file.h"
#include "test_data.h"

namespace speech {
namespace {

std::vector<float> tensor(const std::string& name) {
  static const auto file = open_tensor_file(testing::data_path("audio/front_ends.safetensors"));
  return to_f32(file->require(name));
}

void expect_near(std::span<const double> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

TEST(RealFft, EqualsTheDefinition) {
  std::mt19937 random(1);
  for (int size : {1,  2,  3,  4,  5,  6,   7,   8,   9,   10,  12,  15,  16,   25,
                   30, 64, 77, 94, 97, 101, 128, 210, 256, 400, 480, 512, 1022, 1024}) {
    std::vector<double> x(static_cast<size_t>(size));
    for (double& v : x) v = static_cast<double>(random()) / 4294967296.0 - 0.5;
    RealFft fft(size);
    std::vector<Complex> out(static_cast<size_t>(fft.bins())), scratch;
    fft.forward(x, out, scratch);
    for (int k = 0; k < fft.bins(); ++k) {
      std::complex<double> sum = 0;
      for (int n = 0; n < size; ++n) {
        double angle = -2 * std::numbers::pi * static_cast<double>(int64_t{k} * n % size) / size;
        sum += x[static_cast<size_t>(n)] * std::polar(1.0, angle);
      }
      ASSERT_NEAR(out[static_cast<size_t>(k)].re, sum.real(), 1e-12) << size << " " << k;
      ASSERT_NEAR(out[static_cast<size_t>(k)].im, sum.imag(), 1e-12) << size << " " << k;
    }
  }
}

TEST(HannWindow, PeriodicAndSymmetric) {
  // NeMo's window is torch's symmetric one, in float32.
  expect_near(hann_window(400, false), tensor("nemo.window"), 1e-6);
  std::vector<double> periodic = hann_window(4, true);
  for (auto [i, want] : {std::pair{0, 0.0}, {1, 0.5}, {2, 1.0}, {3, 0.5}}) {
    EXPECT_NEAR(periodic[static_cast<size_t>(i)], want, 1e-15);
  }
  EXPECT_EQ(hann_window(1, false), std::vector<double>{1});
}

// librosa's matrices as NeMo stores them.
TEST(MelFilters, SlaneyEqualsLibrosa) {
  expect_near(mel_filters(MelScale::slaney, true, 80, 512, 16000, 0, 8000),
              tensor("nemo.filters_80"), 1e-8);
  expect_near(mel_filters(MelScale::slaney, true, 128, 512, 16000, 0, 8000),
              tensor("nemo.filters_128"), 1e-8);
}

// transformers' mel_filter_bank(mel_scale="htk").
TEST(MelFilters, HtkEqualsTransformers) {
  expect_near(mel_filters(MelScale::htk, false, 40, 512, 16000, 20, 8000), tensor("htk.filters_40"),
              1e-7);
  expect_near(mel_filters(MelScale::htk, true, 23, 400, 8000, 0, 4000),
              tensor("htk.filters_23_area"), 1e-8);
}

TEST(MelScales, ThereAndBack) {
  for (MelScale scale : {MelScale::slaney, MelScale::htk}) {
    for (double hz : {0.0, 20.0, 999.0, 1000.0, 1001.0, 8000.0}) {
      EXPECT_NEAR(mel_to_hz(hz_to_mel(hz, scale), scale), hz, 1e-9);
    }
  }
  EXPECT_NEAR(hz_to_mel(8000, MelScale::slaney), 45.245640471924965, 1e-12);
}

// The steps of NeMo's front end: pre-emphasis, zero padding, power, mel, logarithm.
TEST(Stft, GivesNemosLogMel) {
  std::vector<float> x = read_audio(testing::data_path("audio/nemo_main.wav")).samples;
  for (size_t i = x.size() - 1; i > 0; --i) x[i] -= 0.97f * x[i - 1];
  Stft stft(512, 160, hann_window(400, false), Padding::zeros);
  FilterBank bank(tensor("nemo.filters_80"), 80, 257);
  std::vector<float> want = tensor("nemo.logmel_80");
  int64_t frames = stft.frames(static_cast<int64_t>(x.size()));
  ASSERT_EQ(want.size(), static_cast<size_t>(frames * 80));
  std::vector<double> power(static_cast<size_t>(frames * 257)), mel(80);
  stft.power(x, -256, 0, power);
  // A float32 transform moves the power by parts of its largest bin: bounded by the mean error.
  double error = 0, size = 0;
  for (int64_t t = 0; t < frames; ++t) {
    bank.apply(std::span(power).subspan(static_cast<size_t>(t * 257), 257), mel);
    for (size_t m = 0; m < 80; ++m) {
      double value = std::log(mel[m] + std::ldexp(1, -24));
      double difference = value - want[static_cast<size_t>(t) * 80 + m];
      error += difference * difference;
      size += value * value;
    }
  }
  EXPECT_LT(10 * std::log10(error / size), -100);
  // Frames are independent of how they are asked for.
  std::vector<double> one(257);
  for (int64_t t : {int64_t{0}, int64_t{17}, frames - 1}) {
    stft.power(x, -256, t, one);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), power.begin() + t * 257));
  }
}

// The steps of Whisper's front end: reflection, periodic window of 400 (no power of two).
TEST(Stft, GivesWhispersFeatures) {
  Stft stft(400, 160, hann_window(400, true), Padding::reflect);
  FilterBank bank(mel_filters(MelScale::slaney, true, 128, 400, 16000, 0, 8000), 128, 201);
  for (std::string name : {"sine_1000", "burst_at_end", "step"}) {
    std::vector<float> x = tensor("whisper." + name + ".samples");
    std::vector<float> want = tensor("whisper." + name + ".features");
    size_t frames = x.size() / 160;
    ASSERT_EQ(want.size(), 128 * frames);
    std::vector<double> power(frames * 201), mel(frames * 128);
    stft.power(x, -200, 0, power);
    double largest = -10;
    for (size_t t = 0; t < frames; ++t) {
      auto row = std::span(mel).subspan(t * 128, 128);
      bank.apply(std::span(power).subspan(t * 201, 201), row);
      for (double& v : row) largest = std::max(largest, v = std::log10(std::max(v, 1e-10)));
    }
    double error = 0, size = 0;
    for (size_t t = 0; t < frames; ++t) {
      for (size_t m = 0; m < 128; ++m) {
        double value = (std::max(mel[t * 128 + m], largest - 8) + 4) / 4;
        double difference = value - want[m * frames + t];
        error += difference * difference;
        size += value * value;
      }
    }
    EXPECT_LT(10 * std::log10(error / size), -90) << name;
  }
}

}  // namespace
}  // namespace speech
