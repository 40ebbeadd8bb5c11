// What a recognizer does with odd input, and with the control of a request.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/fastconformer/golden_support.h"
#include "models/fastconformer/windows.h"
#include "test_data.h"

namespace speech::testing {
namespace {

namespace fc = fastconformer;

class FastConformerRecognizer : public ::testing::Test {
 protected:
  FastConformerRecognizer() : gguf_(".gguf") {
    convert_checkpoint(data_path("fastconformer/v3-small/model.nemo"), gguf_.path());
    model_ = load_recognizer(gguf_.path());
  }
  std::string text(const std::vector<float>& samples, int rate = 16000) {
    const AudioView view{samples, rate};
    return model_->transcribe({&view, 1}, {}, {})[0].text;
  }
  std::vector<float> main() {
    return golden_input(data_path("fastconformer/v3-small"), {{"file", "inputs/main.wav"}});
  }

  TempFile gguf_;
  std::unique_ptr<Recognizer> model_;
};

TEST_F(FastConformerRecognizer, RefusesAudioThatIsTooShort) {
  for (size_t n : {0u, 1u, 159u, 319u}) {
    try {
      text(std::vector<float>(n));
      ADD_FAILURE() << n << " samples were taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::out_of_range);
      EXPECT_EQ(e.option(), "audio");
    }
  }
  text(std::vector<float>(320));
}

TEST_F(FastConformerRecognizer, RefusesSamplesThatAreNoNumbers) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> samples = main();
    samples[1000] = bad;
    try {
      text(samples);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::invalid_argument);
      EXPECT_EQ(e.option(), "audio");
    }
  }
}

TEST_F(FastConformerRecognizer, TakesLoudSamplesAndOtherRates) {
  std::vector<float> samples = main();
  EXPECT_EQ(text(samples), "Who left the pi");
  for (float& x : samples) x *= 1e14f;
  text(samples);
  for (float& x : samples) x *= 1e14f;
  EXPECT_THROW(text(samples), Error);
  const std::vector<float> once = main();
  std::vector<float> slow(3 * once.size());  // at 48 kHz, by straight lines
  for (size_t i = 0; i < slow.size(); ++i) {
    const float a = once[i / 3], b = once[std::min(i / 3 + 1, once.size() - 1)];
    slow[i] = a + (b - a) * static_cast<float>(i % 3) / 3;
  }
  EXPECT_NE(text(slow, 48000), "");
}

TEST_F(FastConformerRecognizer, ReportsProgressAndStops) {
  const std::vector<float> samples = main();
  const AudioView views[2] = {{samples, 16000}, {samples, 16000}};
  std::vector<double> done;
  Control control;
  control.progress = [&](double d) {
    done.push_back(d);
    return false;
  };
  model_->transcribe(views, {}, control);
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 1.0);

  control.progress = [](double) { return true; };
  EXPECT_THROW(model_->transcribe(views, {}, control), Error);
  std::atomic<bool> cancel{true};
  control.progress = nullptr;
  control.cancel = &cancel;
  try {
    model_->transcribe(views, {}, control);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::cancelled);
  }
}

TEST_F(FastConformerRecognizer, WithoutTimestampsThereIsTextAlone) {
  const std::vector<float> samples = main();
  const AudioView view{samples, 16000};
  const Transcript t = model_->transcribe({&view, 1}, {}, {})[0];
  EXPECT_EQ(t.text, "Who left the pi");
  EXPECT_TRUE(t.tokens.empty() && t.words.empty() && t.segments.empty());
}

// Audio of more than five minutes gives the tokens of its windows, each recognized alone.
TEST_F(FastConformerRecognizer, LongAudioIsItsWindowsMerged) {
  std::vector<float> samples;
  while (samples.size() < 16000 * 310) {
    for (const char* name : {"jfk", "notld_20s_no_authentic_way_for_us_to_say"}) {
      const auto clip = golden_input(data_path("fastconformer/v3-small"),
                                     {{"file", "shared/audio/" + std::string(name) + ".wav"}});
      samples.insert(samples.end(), clip.begin(), clip.end());
    }
  }
  Options options;
  options.set(option::timestamps, true);
  const AudioView view{samples, 16000};
  const Transcript whole = model_->transcribe({&view, 1}, options, {})[0];

  const int64_t frames = (static_cast<int64_t>(samples.size()) / 160 + 7) / 8;
  const auto windows = fc::plan_windows(frames);
  ASSERT_GT(windows.size(), 5u);
  std::vector<fc::Emissions> tokens;
  for (const fc::Window& w : windows) {
    const auto begin = static_cast<size_t>(w.begin * 1280);
    const auto end = std::min(samples.size(), static_cast<size_t>(w.end * 1280));
    const AudioView part{std::span(samples).subspan(begin, end - begin), 16000};
    fc::Emissions found;
    const Transcript alone = model_->transcribe({&part, 1}, options, {})[0];
    for (const Token& t : alone.tokens) {
      found.push_back({t.id, std::lround(t.start / 0.08), std::lround(t.end / 0.08), 0});
    }
    tokens.push_back(found);
  }
  const fc::Emissions merged = fc::merge_windows(windows, tokens);
  ASSERT_EQ(whole.tokens.size(), merged.size());
  for (size_t i = 0; i < merged.size(); ++i) {
    EXPECT_EQ(whole.tokens[i].id, merged[i].id);
    if (i) EXPECT_GE(whole.tokens[i].start, whole.tokens[i - 1].start);
  }
  EXPECT_LE(whole.tokens.back().end, static_cast<double>(samples.size()) / 16000 + 0.4);
}

TEST(FastConformerWindows, CoverEverythingAndOverlap) {
  const fc::WindowRule rule{.whole = 100, .length = 60, .overlap = 20, .margin = 5};
  EXPECT_EQ(fc::plan_windows(100, rule).size(), 1u);
  for (int64_t frames : {101, 140, 141, 1000, 12345}) {
    const auto windows = fc::plan_windows(frames, rule);
    EXPECT_EQ(windows.front().begin, 0);
    EXPECT_EQ(windows.back().end, frames);
    for (size_t i = 0; i < windows.size(); ++i) {
      EXPECT_LE(windows[i].end - windows[i].begin, rule.length);
      if (i) EXPECT_EQ(windows[i - 1].end - windows[i].begin, rule.overlap);
    }
  }
}

TEST(FastConformerWindows, AreCutInTheLongestCommonPause) {
  const fc::WindowRule rule{.whole = 10, .length = 60, .overlap = 30, .margin = 5};
  const std::vector<fc::Window> windows{{0, 60}, {30, 90}};
  // Both hear tokens at 38 and 50 (b's count from its window's start), and a pause around 44. Near
  // its end a hears what is not there, b near its start.
  const fc::Emissions a{{1, 10, 12, 0}, {2, 38, 40, 0}, {3, 50, 51, 0}, {9, 59, 60, 0}};
  const fc::Emissions b{{8, 0, 1, 0}, {2, 8, 10, 0}, {3, 20, 21, 0}, {4, 45, 46, 0}};
  const fc::Emissions merged = fc::merge_windows(windows, {a, b}, rule);
  std::vector<int32_t> ids;
  std::vector<int64_t> starts;
  for (const auto& t : merged) {
    ids.push_back(t.id);
    starts.push_back(t.start);
  }
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(starts, (std::vector<int64_t>{10, 38, 50, 75}));
}

}  // namespace
}  // namespace speech::testing
