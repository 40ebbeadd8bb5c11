#include "models/silero_vad/detector.h"

#include <algorithm>

#include "audio/check_samples.h"
#include "audio/resample.h"
#include "base/error.h"
#include "models/silero_vad/regions.h"

namespace speech::silero_vad {
namespace {

// Chunks computed together: enough for the products to run at full speed, few enough for the
// activations to stay in the cache. The values do not depend on it.
constexpr int64_t kBlock = 64;

RegionRule rule_of(const Config& c, const Options& options) {
  auto samples = [&](int id, int64_t default_ms) {
    return static_cast<double>(c.rate) * static_cast<double>(options.get(id, default_ms)) / 1000;
  };
  RegionRule rule;
  rule.chunk = c.chunk;
  rule.threshold = options.get(option::threshold, c.threshold);
  rule.neg_threshold = std::max(rule.threshold - c.neg_threshold_offset, c.neg_threshold_floor);
  rule.min_speech = samples(option::min_speech_duration_ms, c.min_speech_ms);
  rule.min_silence = samples(option::min_silence_duration_ms, c.min_silence_ms);
  rule.pad = samples(option::speech_pad_ms, c.speech_pad_ms);
  rule.min_cut_silence =
      static_cast<double>(c.rate) * static_cast<double>(c.min_cut_silence_ms) / 1000;
  if (options.has(option::max_speech_duration_s)) {
    rule.max_speech = static_cast<double>(c.rate) * options.get(option::max_speech_duration_s, 0.0);
  }
  return rule;
}

// What a trace needs of a whole run.
struct Recording {
  std::vector<float> samples;              // at the model's rate
  std::vector<float> h, c, probabilities;  // after each chunk
};

class Stream final : public DetectionStream {
 public:
  Stream(const Network& network, Backend& backend, int rate, const Options& options,
         Recording* recording = nullptr)
      : network_(network),
        backend_(backend),
        rate_(rate),
        resampler_(rate, static_cast<int>(network.config().rate)),
        finder_(rule_of(network.config(), options)),
        recording_(recording),
        samples_(static_cast<size_t>(network.config().context), 0.0f),
        h_(state_.tensor({1, network.hidden()})),
        c_(state_.tensor({1, network.hidden()})) {
    backend_.fill(h_, 0);
    backend_.fill(c_, 0);
  }

  void push(std::span<const float> samples) override {
    if (closed_) fail(Status::invalid_argument, "the detection has ended or failed before");
    closed_ = true;          // unless all goes well
    check_samples(samples);  // one NaN would stay in the state for the rest of the stream
    // In pieces of about a block of chunks, so that memory does not grow with the push.
    auto piece = static_cast<size_t>(
        std::max<int64_t>(1, kBlock * network_.config().chunk * rate_ / network_.config().rate));
    while (!samples.empty()) {
      size_t count = std::min(samples.size(), piece);
      size_t before = samples_.size();
      resampler_.push(samples.first(count), samples_);
      heard(before);
      samples = samples.subspan(count);
    }
    finder_.settle(heard_);
    publish();
    closed_ = false;
  }

  void end() override {
    if (closed_) fail(Status::invalid_argument, "the detection has ended or failed before");
    closed_ = true;
    size_t before = samples_.size();
    resampler_.end(samples_);
    heard(before);
    const Config& c = network_.config();
    if (static_cast<int64_t>(samples_.size()) > c.context) {
      samples_.resize(static_cast<size_t>(c.input()), 0.0f);
      run_chunks();
    }
    finder_.end(heard_);
    publish();
  }

  const std::vector<Region>& regions() const override { return regions_; }

  std::optional<double> speaking(bool* kept) const override {
    std::optional<int64_t> start;
    if (!closed_) start = finder_.open(heard_, kept);
    if (!start) {
      if (kept) *kept = false;
      return {};
    }
    return seconds(*start);
  }

 private:
  double seconds(int64_t sample) const {
    return static_cast<double>(sample) / static_cast<double>(network_.config().rate);
  }

  // Takes note of the samples from `before` on and runs the chunks that are whole.
  void heard(size_t before) {
    heard_ += static_cast<int64_t>(samples_.size() - before);
    if (recording_) {
      recording_->samples.insert(recording_->samples.end(),
                                 samples_.begin() + static_cast<std::ptrdiff_t>(before),
                                 samples_.end());
    }
    run_chunks();
  }

  void run_chunks() {
    const Config& c = network_.config();
    int64_t whole = (static_cast<int64_t>(samples_.size()) - c.context) / c.chunk;
    for (int64_t done = 0; done < whole;) {
      int64_t n = std::min(kBlock, whole - done);
      run_block(std::span(samples_).subspan(static_cast<size_t>(done * c.chunk)), n);
      done += n;
    }
    samples_.erase(samples_.begin(), samples_.begin() + whole * c.chunk);
  }

  // `samples`: the context of the first of n chunks, and the chunks.
  void run_block(std::span<const float> samples, int64_t n) {
    const Config& c = network_.config();
    workspace_.reset();
    padded_.resize(static_cast<size_t>(n * c.padded()));
    for (int64_t i = 0; i < n; ++i) {
      network_.pad(
          samples.subspan(static_cast<size_t>(i * c.chunk), static_cast<size_t>(c.input())),
          std::span(padded_).subspan(static_cast<size_t>(i * c.padded()),
                                     static_cast<size_t>(c.padded())));
    }
    Run run{backend_, workspace_};
    Tensor padded = run.tensor({n, c.padded()});
    backend_.write(padded, padded_);
    Tensor all_h = run.tensor({n, network_.hidden()}), all_c;
    if (recording_) all_c = run.tensor({n, network_.hidden()});
    Tensor prob = network_.forward(run, padded, h_, c_, all_h, all_c);
    probabilities_.resize(static_cast<size_t>(n));
    backend_.read(prob, probabilities_);
    for (float p : probabilities_) finder_.add(p);
    if (recording_) {
      append(recording_->h, all_h);
      append(recording_->c, all_c);
      append(recording_->probabilities, prob);
    }
  }

  void append(std::vector<float>& to, const Tensor& x) {
    size_t before = to.size();
    to.resize(before + static_cast<size_t>(x.size()));
    backend_.read(x, std::span(to).subspan(before));
  }

  void publish() {
    for (size_t i = regions_.size(); i < finder_.regions().size(); ++i) {
      const SampleRegion& region = finder_.regions()[i];
      regions_.push_back({seconds(region.start), seconds(region.end)});
    }
  }

  const Network& network_;
  Backend& backend_;
  int rate_;
  Resampler resampler_;
  RegionFinder finder_;
  Recording* recording_;
  std::vector<float> samples_;  // the context of the next chunk, and what came after it
  int64_t heard_ = 0;           // samples at the model's rate
  bool closed_ = false;
  std::vector<Region> regions_;
  Workspace state_, workspace_;
  Tensor h_, c_;
  std::vector<float> padded_, probabilities_;
};

// Chunks whose stages a trace keeps if it does not say: the first three, three further on, and the
// last, which is padded with zeros.
std::vector<int64_t> traced_chunks(const std::vector<int64_t>& wanted, int64_t count) {
  std::vector<int64_t> chunks;
  for (int64_t i : wanted) {
    if (i < 0 || i >= count) {
      fail_option(Status::out_of_range, "chunks", "there is no chunk {}: the audio has {}", i,
                  count);
    }
  }
  for (int64_t i : wanted.empty() ? std::vector<int64_t>{0, 1, 2, 40, 41, 42, count - 1} : wanted) {
    if (i >= 0 && i < count && (chunks.empty() || i > chunks.back())) chunks.push_back(i);
  }
  return chunks;
}

// The stages of some chunks, computed again from the recorded states, and the whole run's results.
void trace_run(const Network& network, Backend& backend, const Recording& rec, Trace& trace) {
  const Config& c = network.config();
  auto count = static_cast<int64_t>(rec.probabilities.size());
  int64_t hidden = network.hidden();
  std::vector<int64_t> chunks = traced_chunks(trace.rows(), count);
  if (chunks.empty()) return;
  auto n = static_cast<int64_t>(chunks.size());

  std::vector<float> samples(static_cast<size_t>(c.context), 0.0f), inputs, padded, h, state;
  samples.insert(samples.end(), rec.samples.begin(), rec.samples.end());
  samples.resize(static_cast<size_t>(c.context + count * c.chunk), 0.0f);
  for (int64_t i : chunks) {
    auto input = std::span(samples).subspan(static_cast<size_t>(i * c.chunk),
                                            static_cast<size_t>(c.input()));
    inputs.insert(inputs.end(), input.begin(), input.end());
    padded.resize(padded.size() + static_cast<size_t>(c.padded()));
    network.pad(input, std::span(padded).last(static_cast<size_t>(c.padded())));
  }
  auto before = [&](const std::vector<float>& states) {
    std::vector<float> rows(static_cast<size_t>(n * hidden), 0.0f);
    for (int64_t k = 0; k < n; ++k) {
      if (chunks[static_cast<size_t>(k)] == 0) continue;
      std::copy_n(states.begin() + (chunks[static_cast<size_t>(k)] - 1) * hidden, hidden,
                  rows.begin() + k * hidden);
    }
    return rows;
  };

  Workspace workspace;
  Run run{backend, workspace, &trace};
  Tensor x = run.tensor({n, c.padded()});
  Tensor h_in = run.tensor({n, hidden}), h_out = run.tensor({n, hidden});
  Tensor cell = run.tensor({n, hidden});
  backend.write(x, padded);
  backend.write(h_in, before(rec.h));
  backend.write(cell, before(rec.c));
  trace.add("00_input", {n, c.input()}, inputs);
  Tensor gates = network.encode(run, x);
  speech::trace(run, "12_state_h_in", h_in);
  speech::trace(run, "13_state_c_in", cell);
  network.add_state(run, gates, h_in);
  speech::trace(run, "14_lstm_gates", gates);
  backend.lstm_step(h_out, cell, gates);
  speech::trace(run, "15_lstm_h", h_out);
  speech::trace(run, "16_lstm_c", cell);
  network.decode(run, h_out);
  trace.add("20_all_h", {count, hidden}, rec.h);
  trace.add("21_all_c", {count, hidden}, rec.c);
  trace.add("22_all_probs", {count}, rec.probabilities);
  trace.add_ints("chunk_index", {n}, std::vector<int32_t>(chunks.begin(), chunks.end()));
}

class SileroDetector final : public Detector {
 public:
  SileroDetector(Weights weights, ModelInfo info, const LoadParams& params)
      : network_(std::move(weights)),
        backend_(make_cpu_backend(params.threads > 0 ? params.threads : 1, params.precision)) {
    if (params.wrap_backend) backend_ = params.wrap_backend(std::move(backend_));
    info_ = std::move(info);
  }

  std::string device() const override { return backend_->name(); }
  int threads() const override { return backend_->threads(); }

  std::vector<Region> detect(AudioView audio, const Options& options,
                             const Control& control) override {
    Recording recording;
    Stream stream(network_, *backend_, audio.rate, options, control.trace ? &recording : nullptr);
    // A few seconds at a time, to report and to be stopped.
    auto piece = static_cast<size_t>(audio.rate) * 4;
    for (size_t at = 0; at < audio.samples.size(); at += piece) {
      control.check();
      stream.push(audio.samples.subspan(at, std::min(piece, audio.samples.size() - at)));
      control.report(static_cast<double>(at) / static_cast<double>(audio.samples.size()));
    }
    stream.end();
    control.report(1);
    if (control.trace) trace_run(network_, *backend_, recording, *control.trace);
    return stream.regions();
  }

  std::unique_ptr<DetectionStream> stream(int rate, const Options& options) override {
    return std::make_unique<Stream>(network_, *backend_, rate, options);
  }

 private:
  Network network_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace

std::vector<OptionSpec> option_specs(const Config& c) {
  std::vector<OptionSpec> specs;
  auto add = [&specs](int id, std::optional<OptionValue> value, double minimum) -> OptionSpec& {
    OptionSpec spec;
    spec.id = id;
    spec.default_value = std::move(value);
    spec.minimum = minimum;
    specs.push_back(std::move(spec));
    return specs.back();
  };
  add(option::threshold, c.threshold, 0).maximum = 1;
  add(option::min_speech_duration_ms, c.min_speech_ms, 0);
  add(option::min_silence_duration_ms, c.min_silence_ms, 0);
  add(option::speech_pad_ms, c.speech_pad_ms, 0);
  add(option::max_speech_duration_s, {}, 0).minimum_exclusive = true;
  return specs;
}

std::unique_ptr<Detector> make_detector(Weights weights, ModelInfo info, const LoadParams& params) {
  return std::make_unique<SileroDetector>(std::move(weights), std::move(info), params);
}

}  // namespace speech::silero_vad
