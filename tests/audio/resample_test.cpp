#include "audio/resample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <random>

#include "audio/read.h"
#include "base/error.h"
#include "formats/tensor_file.h"
#include "test_data.h"

namespace speech {
namespace {

std::vector<float> noise(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> samples(count);
  for (float& s : samples) s = static_cast<float>(random()) / 4294967296.0f - 0.5f;
  return samples;
}

// torchaudio's resampling in double of the same files.
TEST(Resample, EqualsTorchaudio) {
  std::string folder = testing::data_path("silero_vad/edges/");
  auto expected = open_tensor_file(folder + "rates.safetensors");
  for (std::string name : {"stereo_44100", "mono_8000"}) {
    AudioFile audio = read_audio(folder + name + ".wav");
    std::vector<float> want = to_f32(expected->require(name + ".resampled_16000"));
    std::vector<float> got = resample(audio.samples, audio.rate, 16000);
    ASSERT_EQ(got.size(), want.size());
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(got[i]) - want[i]));
    }
    EXPECT_LE(largest, 6e-8) << name;  // one rounding of values below 1
  }
}

// The formula of torchaudio's kernel (functional.py, _get_sinc_resample_kernel, with the values of
// "kaiser_best"), tap by tap: also for rates whose filter is too large to keep.
TEST(Resample, EqualsTheFormulaAtAnyRate) {
  for (int from : {8000, 11025, 11127, 22255, 44100, 44101, 96001}) {
    std::vector<float> x = noise(3000, 4), got = resample(x, from, 16000);
    const int64_t divisor = std::gcd(from, 16000), f = from / divisor, t = 16000 / divisor;
    const double base = static_cast<double>(std::min(f, t)) * 0.9475937167399596;
    const double beta = static_cast<float>(14.769656459379492);
    const double peak = static_cast<float>(std::cyl_bessel_i(0, beta));
    const auto width = static_cast<int64_t>(std::ceil(64 * static_cast<double>(f) / base));
    double largest = 0;
    for (size_t m = 0; m < got.size(); m += 7) {
      const int64_t phase = static_cast<int64_t>(m) % t, first = static_cast<int64_t>(m) / t * f;
      double sum = 0;
      for (int64_t k = 0; k < 2 * width + f; ++k) {
        const int64_t at = first + k - width;
        if (at < 0 || at >= static_cast<int64_t>(x.size())) continue;
        const double u = (-static_cast<double>(phase) / static_cast<double>(t) +
                          static_cast<double>(k - width) / static_cast<double>(f)) *
                         base;
        if (std::abs(u) >= 64) continue;
        const double angle = std::numbers::pi * u;
        const double sinc = u == 0 ? 1 : std::sin(angle) / angle;
        sum += sinc * std::cyl_bessel_i(0, beta * std::sqrt(1 - u * u / 4096)) / peak * base /
               static_cast<double>(f) * x[static_cast<size_t>(at)];
      }
      largest = std::max(largest, std::abs(sum - got[m]));
    }
    EXPECT_LE(largest, 3.1e-8) << from;  // half a unit in the last place of values below 1
  }
}

TEST(Resample, LengthsAreTorchaudios) {
  std::ifstream file(testing::data_path("silero_vad/edges/expect.json"));
  auto cases = nlohmann::json::parse(file)["resampled_lengths"];
  ASSERT_GE(cases.size(), 10u);
  for (const auto& c : cases) {
    int rate = c[0];
    int64_t samples = c[1], length = c[2];
    EXPECT_EQ(resampled_length(samples, rate, 16000), length) << c;
    std::vector<float> zeros(static_cast<size_t>(samples));
    EXPECT_EQ(resample(zeros, rate, 16000).size(), static_cast<size_t>(length)) << c;
  }
}

TEST(Resample, TheSameBytesHoweverTheAudioIsCut) {
  std::vector<float> samples = noise(9001, 1);
  for (int from : {8000, 11025, 11127, 16000, 22050, 24000, 44100, 44101, 48000, 96000}) {
    std::vector<float> whole = resample(samples, from, 16000);
    for (size_t piece : {size_t{1}, size_t{2}, size_t{441}, size_t{4000}, size_t{0}}) {
      Resampler resampler(from, 16000);
      std::mt19937 random(7);
      std::vector<float> joined;
      for (size_t at = 0; at < samples.size();) {
        size_t count = piece > 0 ? piece : random() % 300;
        count = std::min(count, samples.size() - at);
        resampler.push(std::span(samples).subspan(at, count), joined);
        at += count;
      }
      resampler.end(joined);
      ASSERT_EQ(joined, whole) << from << " in pieces of " << piece;
    }
  }
}

TEST(Resample, GivesEachSampleAsSoonAsItIsCertain) {
  // The delay is the filter's reach: 64 zero crossings of the lower rate's cut-off.
  for (auto [from, delay] : {std::pair{8000, 8.6}, {24000, 4.3}, {44100, 4.3}, {48000, 4.3}}) {
    Resampler resampler(from, 16000);
    std::vector<float> out;
    resampler.push(noise(static_cast<size_t>(from), 2), out);
    EXPECT_GE(out.size(), 16000 - 16 * delay) << from;
    EXPECT_LT(out.size(), 16000u);
  }
}

TEST(Resample, KeepsLowTonesAndRemovesHighOnes) {
  auto level = [](double hz) {
    std::vector<float> tone(48000);
    for (size_t i = 0; i < tone.size(); ++i) {
      tone[i] =
          static_cast<float>(std::sin(2 * std::numbers::pi * hz * static_cast<double>(i) / 48000));
    }
    std::vector<float> out = resample(tone, 48000, 16000);
    double sum = 0;
    for (size_t i = 2000; i < 14000; ++i) sum += double{out[i]} * out[i];
    return std::sqrt(2 * sum / 12000);
  };
  EXPECT_NEAR(level(1000), 1, 1e-4);
  EXPECT_NEAR(level(7000), 1, 1e-3);
  EXPECT_LT(level(8200), 1e-3);
  EXPECT_LT(level(15000), 1e-5);
}

TEST(Resample, RefusesWhatItCannotDo) {
  EXPECT_THROW(Resampler(16000 * 4096 + 1, 16000), Error);
  EXPECT_THROW(Resampler(3, 16000), Error);
  EXPECT_THROW(Resampler(0, 16000), Error);
  EXPECT_THROW(Resampler(-16000, 16000), Error);
  EXPECT_TRUE(resample({}, 44100, 16000).empty());
  std::vector<float> samples = noise(100, 3);
  EXPECT_EQ(resample(samples, 16000, 16000), samples);
}

}  // namespace
}  // namespace speech
