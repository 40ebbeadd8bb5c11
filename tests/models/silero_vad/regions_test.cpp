#include "models/silero_vad/regions.h"

#include <gtest/gtest.h>

#include "models/silero_vad/silero_test.h"

namespace speech::silero_vad {
namespace {

using nlohmann::json;

// Probabilities arrive as the audio does, in pieces; `look` is called after each.
template <typename Look>
RegionFinder stream(const RegionRule& rule, std::span<const float> probabilities, int64_t samples,
                    int64_t piece, Look look) {
  RegionFinder finder(rule);
  size_t chunk = 0;
  for (int64_t heard = 0; heard < samples;) {
    heard = std::min(heard + piece, samples);
    while (static_cast<int64_t>(chunk + 1) * rule.chunk <= heard)
      finder.add(probabilities[chunk++]);
    finder.settle(heard);
    look(finder, heard);
  }
  while (chunk < probabilities.size()) finder.add(probabilities[chunk++]);
  finder.end(samples);
  look(finder, -1);
  return finder;
}

// [[samples heard when it was given, region], ...]
json given_times(const RegionRule& rule, std::span<const float> probabilities, int64_t samples,
                 int64_t piece) {
  json given = json::array();
  stream(rule, probabilities, samples, piece, [&](const RegionFinder& finder, int64_t heard) {
    while (given.size() < finder.regions().size()) given.push_back({heard, given.size()});
  });
  return given;
}

TEST(Regions, EqualTheOfficialRule) {
  std::vector<float> all = tensor("rules/probs.safetensors", "probs");
  int compared = 0, timed = 0;
  json e = expected("rules");
  for (const json& c : e["cases"]) {
    auto r = rule(c["options"], c["rate"]);
    if (!r) continue;
    auto probabilities =
        std::span<const float>(all).subspan(c["offset"].get<size_t>(), c["count"].get<size_t>());
    int64_t samples = c["samples"];
    EXPECT_EQ(apply(*r, probabilities, samples), regions_of(c["regions"])) << c;
    ++compared;
    if (!c.contains("given")) continue;
    for (const auto& [piece, given] : c["given"].items()) {
      EXPECT_EQ(given_times(*r, probabilities, samples, std::stoll(piece)), given) << c;
      ++timed;
    }
  }
  EXPECT_GE(compared, 150);
  EXPECT_GE(timed, 100);
}

TEST(Regions, EqualTheOfficialOnesOfRecordings) {
  json e = expected("files");
  int compared = 0;
  for (const auto& [name, file] : e["files"].items()) {
    std::vector<float> p = tensor("files/probs.safetensors", name + ".16k.jit");
    std::vector<float> p8 = tensor("files/probs.safetensors", name + ".8k.jit");
    int64_t samples = file["samples"];
    for (const auto& [setting, options] : e["settings"].items()) {
      auto r = rule(options, 16000);
      if (!r || options.contains("return_seconds")) continue;
      EXPECT_EQ(apply(*r, p, samples), regions_of(file["regions"][setting])) << name << setting;
      ++compared;
      if (!file["regions_8k"].contains(setting)) continue;
      EXPECT_EQ(apply(*rule(options, 8000), p8, (samples + 1) / 2),
                regions_of(file["regions_8k"][setting]))
          << name << setting;
    }
  }
  EXPECT_GE(compared, 9 * 15);
}

TEST(Regions, AreGivenAsSoonAsTheyAreCertain) {
  json e = expected("stream"), files = expected("files")["files"];
  for (const auto& [name, settings] : e["files"].items()) {
    std::vector<float> p = tensor("files/probs.safetensors", name + ".16k.jit");
    int64_t samples = files[name]["samples"];
    for (const auto& [setting, want] : settings.items()) {
      RegionRule r = *rule(e["settings"][setting], 16000);
      for (const auto& [piece, given] : want["given"].items()) {
        EXPECT_EQ(given_times(r, p, samples, std::stoll(piece)), given) << name << setting << piece;
      }
      json open = json::array();
      json last = {nullptr, nullptr};
      RegionFinder finder = stream(r, p, samples, 512, [&](const RegionFinder& f, int64_t heard) {
        if (heard < 0) return;
        bool kept = false;
        auto start = f.open(heard, &kept);
        json now = {nullptr, nullptr};
        if (start) now = {*start, kept};
        if (now != last) open.push_back({heard, now[0], now[1]});
        last = now;
      });
      EXPECT_EQ(open, want["open_512"]) << name << setting;
      EXPECT_EQ(finder.regions(), regions_of(want["regions"]));
    }
  }
}

TEST(Regions, NoAudioNoRegion) {
  RegionFinder finder({});
  finder.settle(0);
  EXPECT_FALSE(finder.open(0, nullptr));
  finder.end(0);
  EXPECT_TRUE(finder.regions().empty());
}

}  // namespace
}  // namespace speech::silero_vad
