// The model in the repository writes what is said in recordings of voices it never heard: its texts
// are held against what was said, not against texts of this program.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "audio/read.h"
#include "catalog/catalog.h"
#include "models/registry.h"
#include "tasks/quality.h"
#include "test_data.h"

namespace speech {
namespace {

// The most word errors over words of the recordings below, by way of decoding: the upper end of the
// interval that `speech bench --quality` gave for these. To be lowered with a better model.
struct Bound {
  const char* decoding;
  double most;
};
constexpr Bound kBounds[] = {{"greedy", 0.17}, {"ctc", 0.20}};

constexpr size_t kEvery = 10;  // of the spoken domain: 40 recordings

TEST(TinyEn, WritesWhatIsSaid) {
  std::vector<Utterance> said;
  std::vector<AudioFile> recordings;
  size_t spoken = 0;
  for (Utterance& u :
       read_manifest(testing::data_path("../../models/tiny-en/test/manifest.jsonl"))) {
    if (u.groups.at("kind") != "spoken" || spoken++ % kEvery != 0) continue;
    recordings.push_back(read_audio(u.audio));
    said.push_back(std::move(u));
  }
  ASSERT_EQ(said.size(), 40u);
  const auto model = load_model(resolve_model("tiny-en"), {});
  auto* recognizer = dynamic_cast<Recognizer*>(model.get());
  ASSERT_TRUE(recognizer);
  for (const Bound& bound : kBounds) {
    Options options;
    options.set(option::decoding, std::string(bound.decoding));
    std::vector<ErrorCount> counts;
    for (size_t i = 0; i < said.size(); ++i) {
      const AudioView audio{recordings[i].samples, recordings[i].rate};
      const auto transcripts = recognizer->transcribe({&audio, 1}, options, {});
      counts.push_back(count_errors(said[i].text, transcripts[0].text, TextUnit::word));
    }
    EXPECT_LT(error_rate(counts), bound.most) << bound.decoding;
  }
}

}  // namespace
}  // namespace speech
