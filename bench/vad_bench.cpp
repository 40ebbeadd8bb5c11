// Voice activity detection with the model of the repository: one thread, seconds of audio per
// second (the inverse of the real-time factor).
#include <benchmark/benchmark.h>

#include "audio/read.h"
#include "audio/resample.h"
#include "formats/gguf.h"
#include "models/silero_vad/family.h"

namespace speech {
namespace {

const std::vector<float>& recording() {
  static const std::vector<float> samples =
      read_audio(SPEECH_SOURCE_DIR "/tests/data/audio/silero_test.flac").samples;
  return samples;
}

void count_seconds(benchmark::State& state, int rate) {
  state.counters["times_real_time"] = benchmark::Counter(
      static_cast<double>(recording().size()) / rate * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

void vad(benchmark::State& state) {
  auto model = silero_vad_family.load(
      GgufFile::open(SPEECH_SOURCE_DIR "/models/silero-vad/silero-vad-309K-v6.2-F32.gguf"),
      {.threads = 1});
  auto& detector = dynamic_cast<Detector&>(*model);
  for (auto _ : state) {
    benchmark::DoNotOptimize(detector.detect({recording(), 16000}, {}, {}));
  }
  count_seconds(state, 16000);
}

// Live: pieces of 32 ms, one chunk at a time.
void vad_stream(benchmark::State& state) {
  auto model = silero_vad_family.load(
      GgufFile::open(SPEECH_SOURCE_DIR "/models/silero-vad/silero-vad-309K-v6.2-F32.gguf"),
      {.threads = 1});
  auto& detector = dynamic_cast<Detector&>(*model);
  for (auto _ : state) {
    auto stream = detector.stream(16000, {});
    for (size_t at = 0; at + 512 <= recording().size(); at += 512) {
      stream->push(std::span(recording()).subspan(at, 512));
    }
    stream->end();
  }
  count_seconds(state, 16000);
}

void resampling(benchmark::State& state) {
  auto rate = static_cast<int>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(resample(recording(), rate, 16000));
  count_seconds(state, rate);
}

BENCHMARK(vad)->Unit(benchmark::kMillisecond);
BENCHMARK(vad_stream)->Unit(benchmark::kMillisecond);
BENCHMARK(resampling)->Arg(8000)->Arg(44100)->Arg(44101)->Arg(48000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace speech
