#include "tasks/live.h"

#include <gtest/gtest.h>

#include <future>

#include "tasks/fake_models.h"

namespace speech {
namespace {

using namespace std::chrono_literals;
using testing::FakeDetector;
using testing::FakeRecognizer;
using testing::steps;

LiveTranscriber::Recognize fake() {
  return [](AudioView audio, const std::atomic<bool>&) { return FakeRecognizer::one(audio, {}); };
}

std::vector<LiveEvent> drain(LiveTranscriber& live) {
  std::vector<LiveEvent> events;
  for (bool finished = false; !finished;) {
    if (auto event = live.next(-1ms, &finished)) events.push_back(*event);
  }
  return events;
}

TEST(Live, EventsOfEachUtteranceInOrderHoweverTheAudioIsCut) {
  std::vector<float> audio = steps({0, 0, .3f, .4f, .5f, 0, 0, 0, .6f, .7f, 0});
  for (size_t piece : {1u, 333u, 1600u, 17600u}) {
    LiveTranscriber live(16000, FakeDetector().stream(16000, {}), 0.0, fake(), false);
    for (size_t i = 0; i < audio.size(); i += piece) {
      live.push(std::span(audio).subspan(i, std::min(piece, audio.size() - i)));
    }
    live.end();
    std::vector<std::string> texts;
    std::map<int64_t, std::vector<int>> kinds;
    for (const auto& event : drain(live)) {
      kinds[event.item].push_back(event.kind);
      if (event.kind == LiveEvent::completed) texts.push_back(event.text);
      if (event.kind == LiveEvent::started && event.item == 1) EXPECT_DOUBLE_EQ(event.seconds, 0.8);
      if (event.kind == LiveEvent::stopped && event.item == 0) EXPECT_DOUBLE_EQ(event.seconds, 0.5);
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"w3 w4 w5", "w6 w7"})) << piece;
    const std::vector<int> order{LiveEvent::started, LiveEvent::stopped, LiveEvent::completed};
    EXPECT_EQ(kinds, (std::map<int64_t, std::vector<int>>{{0, order}, {1, order}})) << piece;
  }
}

TEST(Live, DeltasGrowIntoTheFinalText) {
  std::atomic<int> readings{0};
  auto counting = [&](AudioView audio, const std::atomic<bool>&) {
    Transcript out = FakeRecognizer::one(audio, {});
    ++readings;
    return out;
  };
  LiveTranscriber live(16000, FakeDetector().stream(16000, {}), 0.0, counting, true);
  std::vector<float> audio = steps({0, .1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f, .9f, 0, 0, 0});
  // A piece at a time, each after a reading had the time to run: the readings see 2, 4, 6, 8 words.
  for (size_t i = 0; i < audio.size(); i += 3200) {
    live.push(std::span(audio).subspan(i, std::min<size_t>(3200, audio.size() - i)));
    for (int wait = 0; wait < 50; ++wait) std::this_thread::sleep_for(1ms);
  }
  live.end();
  std::string deltas, text;
  int early = 0;
  bool stopped = false;
  for (const auto& event : drain(live)) {
    stopped |= event.kind == LiveEvent::stopped;
    if (event.kind == LiveEvent::delta) {
      deltas += event.text;
      early += !stopped;
    }
    if (event.kind == LiveEvent::completed) text = event.text;
  }
  EXPECT_EQ(text, "w1 w2 w3 w4 w5 w6 w7 w8 w9");
  EXPECT_EQ(deltas, text);  // the readings agree with the whole, so one more delta completes them
  EXPECT_GT(early, 0);
  EXPECT_GT(readings, 1);
}

TEST(Live, AFailingRecognitionIsAnEventAndTheNextGoesOn) {
  auto failing = [](AudioView audio, const std::atomic<bool>&) -> Transcript {
    if (audio.samples[0] == .3f) fail(Status::internal, "broken");
    return FakeRecognizer::one(audio, {});
  };
  LiveTranscriber live(16000, FakeDetector().stream(16000, {}), 0.0, failing, false);
  live.push(steps({.3f, 0, 0, .4f}));
  live.end();
  EXPECT_THROW(live.push(steps({.3f})), Error);
  EXPECT_THROW(live.end(), Error);
  std::vector<LiveEvent> last;
  for (auto& event : drain(live)) {
    if (event.kind >= LiveEvent::completed) last.push_back(event);
  }
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].kind, LiveEvent::failed);
  EXPECT_EQ(last[0].status, Status::internal);
  EXPECT_EQ(last[0].text, "broken");
  EXPECT_EQ(last[1].text, "w4");
}

TEST(Live, SilenceIsNotKeptAndTooMuchSpeechIsRefused) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  auto waiting = [&](AudioView, const std::atomic<bool>&) {
    released.wait();
    return Transcript();
  };
  LiveTranscriber live(16000, FakeDetector().stream(16000, {}), 0.3, waiting, false);
  std::vector<float> silence(1600000, 0.0f), speech(6000000, 0.5f);
  for (int i = 0; i < 12; ++i) live.push(silence);
  EXPECT_LE(live.waiting(), 6400u);
  live.push(speech);
  live.push(steps({0, 0}));
  live.push(speech);
  try {
    live.push(speech);
    FAIL() << "more than the bound was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
  }
  EXPECT_LE(live.waiting(), LiveTranscriber::max_waiting);
  release.set_value();
}

TEST(Live, FreeingCancelsWhatRuns) {
  auto endless = [](AudioView, const std::atomic<bool>& cancel) -> Transcript {
    while (!cancel) std::this_thread::sleep_for(1ms);
    fail(Status::cancelled, "cancelled");
  };
  LiveTranscriber live(16000, FakeDetector().stream(16000, {}), 0.0, endless, false);
  live.push(steps({.3f, .3f, 0, 0, 0}));
}

}  // namespace
}  // namespace speech
