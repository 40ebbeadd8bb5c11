#include "models/silero_vad/detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numbers>
#include <random>

#include "base/error.h"
#include "base/sha256.h"
#include "formats/gguf.h"
#include "models/silero_vad/checkpoint.h"
#include "models/silero_vad/silero_test.h"

namespace speech::silero_vad {
namespace {

using nlohmann::json;

std::unique_ptr<Detector> detector(Weights weights, int threads = 1) {
  return make_detector(std::move(weights), {}, {.threads = threads});
}

Weights weights_for(int rate) {
  if (rate == 16000) return read_weights(*GgufFile::open(model_file()));
  return read_checkpoint(*open_tensor_file(data("checkpoint/silero_vad.jit")), rate).weights;
}

Options options_of(const json& settings) {
  Options options;
  for (const auto& [name, value] : settings.items()) {
    const OptionWord* word = find_option(name);
    if (word->type == OptionType::integer) options.set(word->id, value.get<int64_t>());
    if (word->type == OptionType::number) options.set(word->id, value.get<double>());
  }
  return options;
}

std::vector<SampleRegion> in_samples(const std::vector<Region>& regions, int rate) {
  std::vector<SampleRegion> out;
  for (const Region& r : regions) {
    double start = r.start * rate, end = r.end * rate;
    EXPECT_NEAR(start, std::round(start), 1e-6);
    out.push_back({std::lround(start), std::lround(end)});
  }
  return out;
}

std::vector<SampleRegion> detect(Detector& model, std::span<const float> samples, int rate,
                                 const Options& options, int model_rate) {
  return in_samples(model.detect({samples, rate}, options, {}), model_rate);
}

std::vector<float> values(const Trace& trace, std::string_view name) {
  for (const auto& entry : trace.entries()) {
    if (entry.name == name) return entry.floats;
  }
  ADD_FAILURE() << name << " is not in the trace";
  return {};
}

Trace run(Detector& model, std::span<const float> samples, int rate) {
  Trace trace;
  Control control;
  control.trace = &trace;
  model.detect({samples, rate}, {}, control);
  return trace;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double d = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= largest)) largest = d;
  }
  return largest;
}

std::vector<float> every_second(const std::vector<float>& samples) {
  std::vector<float> out;
  for (size_t i = 0; i < samples.size(); i += 2) out.push_back(samples[i]);
  return out;
}

// Every stage, from the audio: f32 round-off as the official code itself has it against double
// precision (125 dB or more of each stage alone).
TEST(SileroStages, EqualTheOfficialCode) {
  std::vector<float> samples = recording("librispeech_test_clean_6930-75918-0000.wav");
  for (int rate : {16000, 8000}) {
    std::string folder = rate == 16000 ? "stages_16k" : "stages_8k";
    auto model = detector(weights_for(rate));
    Trace trace = run(*model, rate == 16000 ? samples : every_second(samples), rate);
    auto official = open_tensor_file(data(folder + "/stages.safetensors"));
    for (const TensorEntry& want : official->tensors()) {
      if (want.type == DType::i32) continue;
      std::vector<float> got = values(trace, want.name), expected_values = to_f32(want);
      ASSERT_EQ(got.size(), expected_values.size()) << want.name;
      double error = 0, size = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(static_cast<double>(got[i]) - expected_values[i], 2);
        size += std::pow(static_cast<double>(expected_values[i]), 2);
      }
      EXPECT_LE(std::sqrt(error / size), 1e-5) << folder << " " << want.name;
      if (want.name < "02") {
        EXPECT_EQ(got, expected_values) << want.name;  // only moved
      }
    }
    EXPECT_EQ(trace.entries().size(), official->tensors().size());
    EXPECT_EQ(trace.entries().back().ints, (std::vector<int32_t>{0, 1, 2, 40, 41, 42, 109}));
  }
}

TEST(SileroDetector, ProbabilitiesAndRegionsOfEveryRecording) {
  json e = expected("files");
  for (int rate : {16000, 8000}) {
    auto model = detector(weights_for(rate));
    std::string suffix = rate == 16000 ? ".16k." : ".8k.";
    for (const auto& [name, file] : e["files"].items()) {
      std::vector<float> samples = recording(name);
      if (rate == 16000) {
        EXPECT_EQ(sha256_hex(std::as_bytes(std::span(samples))), file["samples_sha256"]);
      } else {
        samples = every_second(samples);
      }
      Trace trace = run(*model, samples, rate);
      std::vector<float> p = values(trace, "22_all_probs");
      EXPECT_LE(largest_difference(p, tensor("files/probs.safetensors", name + suffix + "jit")),
                1e-5)
          << name;
      EXPECT_LE(largest_difference(p, tensor("files/probs.safetensors", name + suffix + "f64")),
                5e-6)
          << name;
      // The state after hundreds of chunks. Cells that forget nothing reach 52 and collect the
      // rounding of every chunk: the official one is up to 1.0e-4 from double precision.
      for (auto [state, bound] :
           {std::pair<std::string, double>{"20_all_h", 1e-5}, {"21_all_c", 4e-4}}) {
        std::vector<float> all = values(trace, state);
        std::vector<float> want =
            tensor("files/probs.safetensors", name + suffix + "final_" + state.back());
        EXPECT_LE(largest_difference(std::span(all).last(want.size()), want), bound)
            << name << " " << state;
      }
      if (rate == 8000) {
        for (const auto& [setting, regions] : file["regions_8k"].items()) {
          EXPECT_EQ(detect(*model, samples, rate, options_of(e["settings"][setting]), rate),
                    regions_of(regions))
              << name << setting;
        }
        continue;
      }
      for (const auto& [setting, want] : file["speech"].items()) {
        EXPECT_EQ(detect(*model, samples, rate, options_of(e["speech_settings"][setting]), rate),
                  regions_of(want["regions"]))
            << name << setting;
      }
      // The other settings, from our own probabilities, where none lies at a threshold.
      for (const auto& [setting, options] : e["settings"].items()) {
        auto r = rule(options, rate);
        if (!r || options.contains("return_seconds")) continue;
        if (file["margin"][setting].get<double>() < e["fair_margin"].get<double>()) continue;
        EXPECT_EQ(apply(*r, p, static_cast<int64_t>(samples.size())),
                  regions_of(file["regions"][setting]))
            << name << setting;
      }
    }
  }
}

// The signal of a formula, all in double and then quantized.
std::vector<float> made_signal(int rate, int64_t samples, std::string* hash) {
  std::vector<float> out;
  std::vector<std::byte> pcm;
  uint32_t random = 1;
  auto bell = [](double f, double at, double width) {
    return std::exp(-std::pow((f - at) / width, 2));
  };
  const double pi = std::numbers::pi;
  for (int64_t i = 0; i < samples; ++i) {
    random = (1103515245u * random + 12345u) & 0x7FFFFFFFu;
    double noise = random / 2147483648.0 - 0.5, t = static_cast<double>(i) / rate, v = 0;
    bool gate = (t >= 0.5 && t < 1.3) || (t >= 1.42 && t < 2.1) || (t >= 2.16 && t < 2.9) ||
                (t >= 3.4 && t < 3.55) || t >= 4.1;
    for (int h = 1; h <= 24; ++h) {
      double f = 120.0 * h;
      v += (0.05 + bell(f, 700, 200) + bell(f, 1200, 250) + bell(f, 2600, 350)) *
           std::sin(2 * pi * 120 * h * t + 0.3 * h * std::sin(2 * pi * 5 * t));
    }
    double y = (gate ? 0.06 * (0.6 + 0.4 * std::sin(2 * pi * 4 * t)) * v : 0.0) + 0.004 * noise;
    double q = std::clamp(std::floor(32768 * y + 0.5), -32768.0, 32767.0);
    out.push_back(static_cast<float>(q / 32768));
    auto bits = static_cast<uint16_t>(static_cast<int16_t>(q));
    pcm.push_back(std::byte(bits));
    pcm.push_back(std::byte(bits >> 8));
  }
  *hash = sha256_hex(pcm);
  return out;
}

TEST(SileroDetector, TheSignalAnyoneCanMake) {
  json e = expected("signal");
  for (int rate : {16000, 8000}) {
    const json& want = e[std::to_string(rate)];
    std::string hash, suffix = "." + std::to_string(rate);
    std::vector<float> samples = made_signal(rate, want["samples"], &hash);
    EXPECT_EQ(hash, want["pcm_sha256"]);
    auto model = detector(weights_for(rate));
    Trace trace = run(*model, samples, rate);
    auto official = open_tensor_file(data("signal/signal.safetensors"));
    std::string name;
    for (const TensorEntry& entry : official->tensors()) {
      if (entry.name.find("probs_jit") != std::string::npos &&
          entry.name.find(std::to_string(rate)) != std::string::npos) {
        name = entry.name;
      }
    }
    ASSERT_FALSE(name.empty());
    EXPECT_LE(largest_difference(values(trace, "22_all_probs"), to_f32(official->require(name))),
              1e-5);
    for (const auto& [label, c] : want["regions"].items()) {
      if (c["options"].contains("use_max_poss_sil_at_max_speech")) continue;
      EXPECT_EQ(detect(*model, samples, rate, options_of(c["options"]), rate),
                regions_of(c["regions"]))
          << label;
    }
  }
}

TEST(SileroDetector, TinySilentAndSquareInputs) {
  auto model = detector(weights_for(16000));
  auto inputs = open_tensor_file(data("edges/inputs.safetensors"));
  json e = expected("edges")["inputs"];
  std::vector<float> speech = to_f32(inputs->require("speech"));
  int compared = 0;
  for (const TensorEntry& entry : inputs->tensors()) {
    auto dot = entry.name.find(".probs_jit");
    if (dot == std::string::npos) continue;
    std::string name = entry.name.substr(0, dot);
    std::vector<float> samples;
    if (inputs->find(name)) {
      samples = to_f32(inputs->require(name));
    } else {
      samples.resize(e[name]["samples"].get<size_t>());
      if (name != "zeros") std::copy_n(speech.begin(), samples.size(), samples.begin());
    }
    EXPECT_LE(
        largest_difference(values(run(*model, samples, 16000), "22_all_probs"), to_f32(entry)),
        1e-5)
        << name;
    EXPECT_EQ(detect(*model, samples, 16000, {}, 16000), regions_of(e[name]["jit"]["regions"]))
        << name;
    ++compared;
  }
  EXPECT_GE(compared, 8);
  EXPECT_TRUE(model->detect({{}, 16000}, {}, {}).empty());
  // Scaled: not clamped, and as good as silence.
  for (float& x : speech) x *= 100;
  EXPECT_EQ(detect(*model, speech, 16000, {}, 16000),
            regions_of(e["speech_times_100"]["jit"]["regions"]));
  for (float& x : speech) x *= 1e-32f;
  EXPECT_TRUE(model->detect({speech, 16000}, {}, {}).empty());
}

TEST(SileroDetector, RefusesAudioThatIsNotFinite) {
  auto model = detector(weights_for(16000));
  std::vector<float> samples = recording("jfk.wav");
  auto refused = [&] {
    try {
      model->detect({samples, 16000}, {}, {});
    } catch (const Error& e) {
      return e.status() == Status::invalid_argument && e.option() == "audio";
    }
    return false;
  };
  float kept = samples[90000];
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    samples[90000] = bad;
    EXPECT_TRUE(refused());
  }
  samples[90000] = kept;
  for (float& x : samples) x *= 1e30f;  // the squares of the spectrum overflow
  EXPECT_TRUE(refused());
  // A stream that has failed takes nothing more.
  auto stream = model->stream(16000, {});
  float nan = std::nanf("");
  EXPECT_THROW(stream->push({&nan, 1}), Error);
  EXPECT_THROW(stream->push({}), Error);
  EXPECT_THROW(stream->end(), Error);
  EXPECT_THROW(model->stream(1, {}), Error);
  EXPECT_THROW(model->stream(0, {}), Error);
}

TEST(SileroDetector, OtherRatesAreResampled) {
  auto model = detector(weights_for(16000));
  json e = expected("edges")["rates"], settings = expected("stream")["settings"];
  for (const auto& [name, want] : e.items()) {
    AudioFile audio = read_audio(data("edges/" + name));
    EXPECT_EQ(audio.channels, want["channels"]);
    std::string stem = name.substr(0, name.size() - 4);
    EXPECT_LE(largest_difference(values(run(*model, audio.samples, audio.rate), "22_all_probs"),
                                 tensor("edges/rates.safetensors", stem + ".probs_jit")),
              2e-5)
        << name;
    for (const auto& [setting, regions] : want["speech"].items()) {
      EXPECT_EQ(detect(*model, audio.samples, audio.rate, options_of(settings[setting]), 16000),
                regions_of(regions["regions"]))
          << name << setting;
    }
  }
}

TEST(SileroStream, RegionsDoNotDependOnHowTheAudioIsCut) {
  auto model = detector(weights_for(16000));
  json settings = expected("stream")["settings"];
  std::vector<float> jfk = recording("jfk.wav");
  for (int rate : {16000, 24000, 44100, 48000, 8000}) {
    // The same samples taken as if they had been recorded at another rate: any signal will do.
    auto samples = std::span<const float>(jfk).first(60000);
    for (const auto& [setting, options] : settings.items()) {
      std::vector<Region> whole = model->detect({samples, rate}, options_of(options), {});
      for (size_t piece :
           {size_t{1}, size_t{20}, size_t{160}, size_t{4800}, size_t{100000}, size_t{0}}) {
        if (piece == 1 && setting != "default") continue;
        auto stream = model->stream(rate, options_of(options));
        std::mt19937 random(3);
        size_t seen = 0;
        for (size_t at = 0; at < samples.size();) {
          size_t count = std::min(piece ? piece : random() % 2000, samples.size() - at);
          stream->push(samples.subspan(at, count));
          EXPECT_GE(stream->regions().size(), seen);
          seen = stream->regions().size();
          at += count;
        }
        stream->end();
        ASSERT_EQ(in_samples(stream->regions(), 16000), in_samples(whole, 16000))
            << rate << setting << piece;
      }
    }
  }
}

TEST(SileroStream, GivesRegionsAndSpeakingInTime) {
  auto model = detector(weights_for(16000));
  json e = expected("stream");
  std::vector<float> samples = recording("jfk.wav");
  for (const auto& [setting, want] : e["files"]["jfk.wav"].items()) {
    auto stream = model->stream(16000, options_of(e["settings"][setting]));
    json given = json::array(), open = json::array(), last = {nullptr, nullptr};
    for (size_t at = 0; at < samples.size();) {
      size_t count = std::min<size_t>(512, samples.size() - at);
      stream->push(std::span(samples).subspan(at, count));
      at += count;
      while (given.size() < stream->regions().size()) given.push_back({at, given.size()});
      bool kept = false;
      auto start = stream->speaking(&kept);
      json now = {nullptr, nullptr};
      if (start) now = {std::lround(*start * 16000), kept};
      if (now != last) open.push_back({at, now[0], now[1]});
      last = now;
    }
    stream->end();
    while (given.size() < stream->regions().size()) given.push_back({-1, given.size()});
    EXPECT_EQ(given, want["given"]["512"]) << setting;
    EXPECT_EQ(open, want["open_512"]) << setting;
    EXPECT_FALSE(stream->speaking(nullptr));
  }
}

TEST(SileroDetector, TheSameBitsHoweverComputed) {
  std::vector<float> samples = recording("notld_5s_dont_worry_about_him.wav");
  auto one = detector(weights_for(16000));
  std::vector<float> whole = values(run(*one, samples, 16000), "22_all_probs");
  auto three = detector(weights_for(16000), 3);
  EXPECT_EQ(values(run(*three, samples, 16000), "22_all_probs"), whole);

  // Chunks in blocks of any number: of the network itself.
  Network network(weights_for(16000));
  auto backend = make_cpu_backend(1);
  for (int64_t block : {1, 2, 3, 5, 13, 100}) {
    const Config& c = network.config();
    std::vector<float> padded_samples(static_cast<size_t>(c.context), 0.0f);
    padded_samples.insert(padded_samples.end(), samples.begin(), samples.end());
    auto count = static_cast<int64_t>(samples.size()) / c.chunk;
    Workspace state;
    Tensor h = state.tensor({1, network.hidden()}), cell = state.tensor({1, network.hidden()});
    backend->fill(h, 0);
    backend->fill(cell, 0);
    std::vector<float> got;
    for (int64_t first = 0; first < count; first += block) {
      int64_t n = std::min(block, count - first);
      Workspace workspace;
      speech::Run run{*backend, workspace};
      std::vector<float> host(static_cast<size_t>(n * c.padded()));
      for (int64_t i = 0; i < n; ++i) {
        network.pad(std::span(padded_samples)
                        .subspan(static_cast<size_t>((first + i) * c.chunk),
                                 static_cast<size_t>(c.input())),
                    std::span(host).subspan(static_cast<size_t>(i * c.padded()),
                                            static_cast<size_t>(c.padded())));
      }
      Tensor x = run.tensor({n, c.padded()}), all_h = run.tensor({n, network.hidden()});
      backend->write(x, host);
      Tensor p = network.forward(run, x, h, cell, all_h, {});
      got.resize(got.size() + static_cast<size_t>(n));
      backend->read(p, std::span(got).last(static_cast<size_t>(n)));
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.begin())) << block;
  }
}

TEST(SileroDetector, ReportsAndStops) {
  auto model = detector(weights_for(16000));
  std::vector<float> samples = recording("silero_test.wav");
  Control control;
  std::vector<double> reports;
  control.progress = [&](double done) {
    reports.push_back(done);
    return false;
  };
  model->detect({samples, 16000}, {}, control);
  EXPECT_GE(reports.size(), 10u);
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
  EXPECT_EQ(reports.back(), 1);
  control.progress = [&](double done) { return done > 0.3; };
  EXPECT_THROW(model->detect({samples, 16000}, {}, control), Error);
  std::atomic<bool> cancel = true;
  control = {};
  control.cancel = &cancel;
  EXPECT_THROW(model->detect({samples, 16000}, {}, control), Error);
}

}  // namespace
}  // namespace speech::silero_vad
