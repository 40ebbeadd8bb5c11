#include "tasks/profile.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <string_view>

#include "base/error.h"
#include "base/memory.h"
#include "compute/timed_backend.h"
#include "models/language_model.h"
#include "models/registry.h"

namespace speech {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Something like a voice: harmonics of a pitch that wanders, in syllables, and some noise.
std::vector<float> made_up_voice(double seconds, int rate) {
  std::minstd_rand random(1);
  std::vector<float> samples(static_cast<size_t>(std::ceil(seconds * rate)));
  double phase = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    const double pitch = 130 + 40 * std::sin(2 * std::numbers::pi * 0.7 * t);
    phase += 2 * std::numbers::pi * pitch / rate;
    double voice = 0;
    for (int k = 1; k <= 12; ++k) {
      voice += std::sin(k * phase) / k * (1 + std::sin(2 * std::numbers::pi * (1.1 + 0.3 * k) * t));
    }
    const double syllable = std::pow(std::sin(2 * std::numbers::pi * 2 * t), 2);
    const double noise = static_cast<double>(random()) / std::minstd_rand::max() - 0.5;
    samples[i] = static_cast<float>(syllable * (0.1 * voice + 0.02 * noise));
  }
  return samples;
}

std::vector<int32_t> random_ids(int count, int64_t vocabulary) {
  std::minstd_rand random(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return ids;
}

// The time of one run and what it went to.
struct Timing {
  double seconds = 0;
  OpTimes operations;
  std::vector<std::pair<std::string, double>> stages;
};

// Adds up the stages of a run, which come in any order and more than once. What passes before the
// first one begins belongs to it.
class StageClock {
 public:
  explicit StageClock(Timing& timing) : timing_(timing), since_(now()) {}
  void begin(const char* name) {
    const double time = now();
    if (current_ == kNone) current_ = find(name);
    timing_.stages[current_].second += time - since_;
    since_ = time;
    current_ = find(name);
  }
  void end() {
    if (current_ != kNone) timing_.stages[current_].second += now() - since_;
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  size_t find(std::string_view name) {
    auto& stages = timing_.stages;
    auto it = std::find_if(stages.begin(), stages.end(),
                           [&](const auto& stage) { return stage.first == name; });
    if (it == stages.end()) it = stages.insert(stages.end(), {std::string(name), 0.0});
    return static_cast<size_t>(it - stages.begin());
  }

  Timing& timing_;
  double since_;
  size_t current_ = kNone;
};

// The products of a run on inputs of the same sizes, without what lies between them.
double time_products(const OpTimes& times, Backend& backend) {
  double seconds = 0;
  Workspace workspace;
  for (const OpTimes::Product& p : times.products) {
    Workspace::Scope scope(workspace);
    Tensor x = workspace.tensor({p.rows, p.weight.cols});
    Tensor out = workspace.tensor({p.rows, p.weight.rows});
    std::vector<float> values(static_cast<size_t>(x.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    }
    backend.write(x, values);
    backend.fill(out, 0);  // its pages
    const double begin = now();
    backend.matmul(out, x, p.weight);
    seconds += now() - begin;
  }
  return seconds;
}

bool multiplies(const std::string& operation) {
  return operation.starts_with("matmul") || operation.ends_with("attention");
}

// The runs of one work, the fastest of them in full.
class Measured {
 public:
  Measured(std::string name, std::string unit, double amount, int sequences = 1) {
    work_.name = std::move(name);
    work_.unit = std::move(unit);
    work_.amount = amount;
    work_.sequences = sequences;
  }

  // `memory`: the most resident so far.
  void add(Timing timing, uint64_t memory, size_t cache_bytes = 0) {
    work_.runs.push_back(timing.seconds);
    if (work_.runs.size() == 1 || timing.seconds < best_.seconds) best_ = std::move(timing);
    work_.peak_memory = memory;
    work_.cache_bytes = cache_bytes;
  }

  Profile::Work finish(Backend& backend) {
    std::vector<double> sorted = work_.runs;
    std::sort(sorted.begin(), sorted.end());
    work_.median = sorted[sorted.size() / 2];
    const double seconds = work_.seconds = best_.seconds;
    double multiplied = 0;
    for (const auto& [name, entry] : best_.operations.entries) {
      work_.operations.push_back({name, entry.calls, entry.seconds, entry.seconds / seconds,
                                  entry.operations / entry.seconds, entry.bytes / entry.seconds});
      if (multiplies(name)) multiplied += entry.seconds;
    }
    std::sort(work_.operations.begin(), work_.operations.end(),
              [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    const double other = std::max(0.0, seconds - best_.operations.total());
    work_.operations.push_back({"other", 0, other, other / seconds, 0, 0});
    for (const auto& [name, time] : best_.stages) {
      work_.stages.push_back({name, 0, time, time / seconds, 0, 0});
    }
    work_.outside_products = 1 - multiplied / seconds;
    work_.weight_bytes = best_.operations.product_bytes() / seconds;
    work_.products_alone = time_products(best_.operations, backend);
    return std::move(work_);
  }

 private:
  Profile::Work work_;
  Timing best_;
};

class Profiler {
 public:
  Profiler(const std::string& path, LoadParams params, const ProfileSettings& settings)
      : settings_(settings), precision_(params.precision) {
    params.wrap_backend = [this](std::unique_ptr<Backend> backend) {
      return make_timed_backend(std::move(backend), times_);
    };
    const double begin = now();
    model_ = load_model(path, params);
    load_seconds_ = now() - begin;
  }

  Profile run() {
    std::vector<Measured> measured;
    if (auto* language = dynamic_cast<LanguageModel*>(model_.get())) {
      measured = generate(*language);
    } else {
      measured.push_back(listen());
    }
    Profile profile;
    profile.peak_memory = peak();
    profile.info = model_->info();
    profile.device = model_->device();
    profile.threads = model_->threads();
    profile.load_seconds = load_seconds_;
    const CpuReport cpu = cpu_report();
    profile.processor = cpu.processor;
    profile.instructions = cpu.chosen;
    const auto plain = make_cpu_backend(profile.threads, precision_);
    for (Measured& m : measured) profile.works.push_back(m.finish(*plain));
    profile.limits = measure_limits(profile.threads);
    return profile;
  }

 private:
  // Times body(control), which says when stages begin.
  template <typename Body>
  Timing time(Body&& body) {
    Timing timing;
    times_ = {};
    const double begin = now();
    StageClock clock(timing);
    Control control;
    control.stage = [&clock](const char* name) { clock.begin(name); };
    body(control);
    clock.end();
    timing.seconds = now() - begin;
    timing.operations = std::move(times_);
    return timing;
  }

  // Never falls.
  uint64_t peak() { return peak_ = std::max(peak_, peak_resident_bytes()); }

  Measured listen() {
    int rate = settings_.rate;
    std::vector<float> samples = settings_.audio;
    if (samples.empty()) {
      rate = model_->info().sample_rate;
      samples = made_up_voice(settings_.seconds, rate);
    }
    const AudioView audio{samples, rate};
    auto* recognizer = dynamic_cast<Recognizer*>(model_.get());
    auto* detector = dynamic_cast<Detector*>(model_.get());
    if (!recognizer && !detector) {
      fail(Status::unsupported, "models for {} cannot be measured yet",
           task_name(model_->info().task));
    }
    Measured measured(recognizer ? "transcription" : "detection", "seconds",
                      static_cast<double>(samples.size()) / rate);
    for (int run = 0; run <= settings_.runs; ++run) {
      Timing timing = time([&](const Control& control) {
        if (recognizer) {
          recognizer->transcribe({&audio, 1}, {}, control);
        } else {
          detector->detect(audio, {}, control);
        }
      });
      if (run > 0) measured.add(std::move(timing), peak());
    }
    return measured;
  }

  std::vector<Measured> generate(LanguageModel& model) {
    const int64_t positions = int64_t{settings_.prompt_tokens} + settings_.tokens;
    if (positions > model.max_positions()) {
      fail_option(Status::out_of_range, "prompt_tokens",
                  "{} tokens are more than the {} positions of this model", positions,
                  model.max_positions());
    }
    const auto ids = random_ids(static_cast<int>(positions), model.vocabulary());
    const auto prompt = std::span(ids).first(static_cast<size_t>(settings_.prompt_tokens));
    const auto next = std::span(ids).subspan(prompt.size());
    std::vector<Measured> measured;
    measured.emplace_back("prompt", "tokens", settings_.prompt_tokens);
    measured.emplace_back("decode", "tokens", settings_.tokens);
    if (settings_.sequences > 1) {
      measured.emplace_back("batch", "tokens",
                            static_cast<double>(settings_.tokens) * settings_.sequences,
                            settings_.sequences);
    }
    KvCache seen = model.new_cache();
    for (int run = 0; run <= settings_.runs; ++run) {
      seen = model.new_cache();
      Timing timing = time([&](const Control&) {
        LanguageModel::Input input{&seen, prompt};
        model.step({&input, 1});
      });
      if (run > 0) measured[0].add(std::move(timing), peak(), seen.bytes());
      timing = decode(model, {&seen, 1}, next);
      if (run > 0) measured[1].add(std::move(timing), peak(), seen.bytes());
    }
    // Only now, so that the memory until here is that of one sequence.
    for (int run = 0; settings_.sequences > 1 && run <= settings_.runs; ++run) {
      std::vector<KvCache> caches;
      for (int i = 0; i < settings_.sequences; ++i) {
        // Prefixes of one cache would share its memory, which clients do not.
        caches.push_back(model.new_cache());
        LanguageModel::Input input{&caches.back(), prompt};
        model.step({&input, 1});
      }
      Timing timing = decode(model, caches, next);
      size_t cache_bytes = 0;
      for (const KvCache& cache : caches) cache_bytes += cache.bytes();
      if (run > 0) measured[2].add(std::move(timing), peak(), cache_bytes);
    }
    return measured;
  }

  // Steps of all sequences at once, each with the same ids.
  Timing decode(LanguageModel& model, std::span<KvCache> caches, std::span<const int32_t> ids) {
    std::vector<LanguageModel::Input> inputs;
    for (KvCache& cache : caches) inputs.push_back({&cache, {}});
    return time([&](const Control&) {
      for (const int32_t& id : ids) {
        for (auto& input : inputs) input.ids = {&id, 1};
        model.step(inputs);
      }
    });
  }

  const ProfileSettings& settings_;
  OpTimes times_;  // outlives the model's backend
  std::unique_ptr<Model> model_;
  Precision precision_;
  double load_seconds_ = 0;
  uint64_t peak_ = 0;  // bytes
};

void check(const ProfileSettings& s) {
  const auto at_least_one = [](int value, const char* name) {
    if (value < 1) fail_option(Status::out_of_range, name, "{}; it must be at least 1", value);
  };
  at_least_one(s.prompt_tokens, "prompt_tokens");
  at_least_one(s.tokens, "tokens");
  at_least_one(s.sequences, "sequences");
  at_least_one(s.runs, "runs");
  constexpr int kMostSequences = 1024;
  if (s.sequences > kMostSequences) {
    fail_option(Status::out_of_range, "sequences", "{}; it must be at most {}", s.sequences,
                kMostSequences);
  }
  if (!(s.seconds > 0 && s.seconds <= 86400)) {
    fail_option(Status::out_of_range, "seconds", "{}; it must be above 0 and at most 86400",
                s.seconds);
  }
}

using Json = nlohmann::ordered_json;

Json parts_json(const std::vector<Profile::Part>& parts, const MachineLimits& limits) {
  Json list = Json::array();
  for (const Profile::Part& part : parts) {
    Json json{{"name", part.name}};
    if (part.calls > 0) json["calls"] = part.calls;
    json["seconds"] = part.seconds;
    json["share"] = part.share;
    if (part.flops > 0) {
      json["flops"] = part.flops;
      json["of_peak"] = part.flops / limits.flops;
    }
    if (part.bytes > 0) {
      json["weight_bytes_per_second"] = part.bytes;
      json["of_read_bandwidth"] = part.bytes / limits.read_bytes;
    }
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

Profile profile_model(const std::string& path, const LoadParams& params,
                      const ProfileSettings& settings) {
  check(settings);
  return Profiler(path, params, settings).run();
}

std::string profile_json(const Profile& p) {
  Json json{{"model", p.info.name},
            {"architecture", p.info.architecture},
            {"weight_type", p.info.weight_type},
            {"file_bytes", p.info.file_bytes},
            {"weight_bytes", p.info.weight_bytes},
            {"processor", p.processor},
            {"instructions", p.instructions},
            {"device", p.device},
            {"threads", p.threads},
            {"load_seconds", p.load_seconds},
            {"peak_memory_bytes", p.peak_memory},
            {"peak_flops", p.limits.flops},
            {"read_bandwidth", p.limits.read_bytes},
            {"works", Json::array()}};
  for (const Profile::Work& w : p.works) {
    Json work{{"name", w.name}, {"unit", w.unit}, {"amount", w.amount}, {"seconds", w.seconds}};
    work["median_seconds"] = w.median;
    work["runs"] = w.runs;
    if (w.unit == "seconds") {
      work["real_time_factor"] = w.seconds / w.amount;
    } else {
      work["sequences"] = w.sequences;
      work["tokens_per_second"] = w.amount / w.seconds;
    }
    work["products_alone_seconds"] = w.products_alone;
    work["share_outside_products"] = w.outside_products;
    work["weight_bytes_per_second"] = w.weight_bytes;
    work["of_read_bandwidth"] = w.weight_bytes / p.limits.read_bytes;
    work["peak_memory_bytes"] = w.peak_memory;
    if (w.cache_bytes > 0) work["cache_bytes"] = w.cache_bytes;
    if (!w.stages.empty()) work["stages"] = parts_json(w.stages, p.limits);
    work["operations"] = parts_json(w.operations, p.limits);
    json["works"].push_back(std::move(work));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace speech
