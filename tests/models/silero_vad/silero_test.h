// What the tests of this family share.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "audio/read.h"
#include "formats/tensor_file.h"
#include "models/silero_vad/family.h"
#include "models/silero_vad/regions.h"
#include "test_data.h"

namespace speech::silero_vad {

inline std::string data(const std::string& name) {
  return testing::data_path("silero_vad/" + name);
}

inline std::string model_file() {
  return testing::data_path("../../models/silero-vad/silero-vad-309K-v6.2-F32.gguf");
}

inline nlohmann::json expected(const std::string& folder) {
  std::ifstream file(data(folder + "/expect.json"));
  return nlohmann::json::parse(file);
}

inline std::vector<float> tensor(const std::string& file, const std::string& name) {
  return to_f32(open_tensor_file(data(file))->require(name));
}

// A recording by its name in the references: "jfk.wav"; all but that one are kept as FLAC.
inline std::vector<float> recording(const std::string& name) {
  std::string path = testing::data_path("audio/" + name);
  if (name != "jfk.wav") path.replace(path.size() - 3, 3, "flac");
  return read_audio(path).samples;
}

// The settings of get_speech_timestamps() as a rule; nothing for the legacy way of cutting, which
// is not offered.
inline std::optional<RegionRule> rule(const nlohmann::json& options, int rate) {
  if (!options.value("use_max_poss_sil_at_max_speech", true)) return std::nullopt;
  auto samples = [&](const char* name, double ms) { return rate * options.value(name, ms) / 1000; };
  RegionRule r;
  r.chunk = rate == 16000 ? 512 : 256;
  r.threshold = options.value("threshold", 0.5);
  r.neg_threshold = options.value("neg_threshold", std::max(r.threshold - 0.15, 0.01));
  r.min_speech = samples("min_speech_duration_ms", 250);
  r.min_silence = samples("min_silence_duration_ms", 100);
  r.pad = samples("speech_pad_ms", 30);
  r.min_cut_silence = samples("min_silence_at_max_speech", 98);
  if (options.contains("max_speech_duration_s")) {
    r.max_speech = rate * options["max_speech_duration_s"].get<double>();
  }
  return r;
}

inline std::vector<SampleRegion> regions_of(const nlohmann::json& list) {
  std::vector<SampleRegion> regions;
  for (const auto& r : list) regions.push_back({r[0], r[1]});
  return regions;
}

inline std::vector<SampleRegion> apply(const RegionRule& rule, std::span<const float> probabilities,
                                       int64_t samples) {
  RegionFinder finder(rule);
  for (float p : probabilities) finder.add(p);
  finder.end(samples);
  return finder.regions();
}

inline void PrintTo(const SampleRegion& r, std::ostream* out) {
  *out << "(" << r.start << ", " << r.end << ")";
}

}  // namespace speech::silero_vad
