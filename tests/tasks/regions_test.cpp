#include "tasks/regions.h"

#include <gtest/gtest.h>

#include "tasks/fake_models.h"

namespace speech {
namespace {

using testing::FakeDetector;
using testing::FakeRecognizer;
using testing::steps;

TEST(Regions, CutsRoundHalfAwayFromZeroAndClamp) {
  Cut cut = cut_region({0.00003125, 1.5}, 16000, 20000);  // 0.5 and 24000 samples
  EXPECT_EQ(cut.first, 1);
  EXPECT_EQ(cut.last, 20000);
}

TEST(Regions, DefaultsFillWhatTheModelTakes) {
  FakeDetector detector;
  Options options = region_options(detector.info(), {});
  EXPECT_EQ(options.get(option::threshold, 0.0), 0.5);
  EXPECT_FALSE(options.has(option::speech_pad_ms));
  Options given;
  given.set(option::threshold, 0.7);
  EXPECT_EQ(region_options(detector.info(), given).get(option::threshold, 0.0), 0.7);
}

TEST(Regions, JoinsTextsTimesLanguagesAndStops) {
  TranscriptJoiner joiner;
  Transcript a;
  a.text = "One.";
  a.segments = {{0, 1, "One."}};
  a.tokens = {{.id = 3, .text = "One.", .start = 0, .end = 1}};
  a.languages = {"en"};
  Transcript empty;
  empty.stop = Stop::model_limit;
  empty.languages = {"en"};
  Transcript b = a;
  b.text = b.segments[0].text = b.tokens[0].text = "Two.";
  b.languages = {"fr", "en"};
  joiner.add(a, 0.5);
  joiner.add(empty, 2);
  joiner.add(b, 10);
  Transcript joined = joiner.take();
  EXPECT_EQ(joined.text, "One. Two.");
  EXPECT_EQ(joined.segments[1].text, " Two.");
  EXPECT_EQ(joined.tokens[1].text, " Two.");
  EXPECT_EQ(joined.segments[0].start, 0.5);
  EXPECT_EQ(joined.segments[1].end, 11);
  EXPECT_EQ(joined.languages, (std::vector<std::string>{"en", "fr", "en"}));
  EXPECT_EQ(joined.stop, Stop::model_limit);
}

TEST(Regions, TranscribesEachRegionAlone) {
  FakeDetector detector;
  FakeRecognizer recognizer;
  std::vector<float> audio = steps({0, 0, .3f, .4f, 0, 0, 0, .5f, 0, 0, 0});
  Options options;
  options.set(option::timestamps, true);
  double last = -1;
  Control control;
  control.progress = [&](double done) {
    EXPECT_GE(done, last);
    last = done;
    return false;
  };
  Transcript out = transcribe_regions(recognizer, options, detector, {}, {audio, 16000}, control);
  EXPECT_EQ(out.text, "w3 w4 w5");
  EXPECT_EQ(recognizer.calls, 2);
  ASSERT_EQ(out.segments.size(), 3u);
  EXPECT_DOUBLE_EQ(out.segments[0].start, 0.2);
  EXPECT_DOUBLE_EQ(out.segments[2].start, 0.7);
  std::string text;
  for (const auto& segment : out.segments) text += segment.text;
  EXPECT_EQ(text, out.text);
  EXPECT_EQ(last, 1);
}

TEST(Regions, SilenceIsNotRecognized) {
  FakeDetector detector;
  FakeRecognizer recognizer;
  std::vector<float> audio = steps({0, 0, 0});
  EXPECT_EQ(transcribe_regions(recognizer, {}, detector, {}, {audio, 16000}, {}).text, "");
  EXPECT_EQ(recognizer.calls, 0);
}

}  // namespace
}  // namespace speech
