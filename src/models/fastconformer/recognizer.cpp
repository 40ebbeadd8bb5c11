#include "models/fastconformer/recognizer.h"

#include <algorithm>

#include "audio/check_samples.h"
#include "audio/resample.h"
#include "base/error.h"
#include "compute/not_a_number.h"
#include "formats/gguf.h"
#include "models/fastconformer/frontend.h"
#include "models/fastconformer/windows.h"
#include "models/general_info.h"

namespace speech::fastconformer {
namespace {

enum class Decoding { greedy, beam, ctc };

Decoding decoding_of(const std::string& name) {
  return name == "beam" ? Decoding::beam : name == "ctc" ? Decoding::ctc : Decoding::greedy;
}

// Frames of all utterances that are encoded together: what bounds the memory of a call.
constexpr int64_t kBatchFrames = WindowRule().whole;

// One stretch of one audio, recognized by itself.
struct Piece {
  size_t audio;
  std::span<const float> samples;
  int64_t frames;  // encoder frames
};

class FastConformer : public Recognizer {
 public:
  FastConformer(std::shared_ptr<const GgufFile> file, const LoadParams& params)
      : config_(read_config(*file)) {
    info_ = read_info(*file);
    backend_ = make_cpu_backend(params.threads, params.precision);
    if (params.wrap_backend) backend_ = params.wrap_backend(std::move(backend_));
    weights_ = load_weights(std::move(file), config_);
    frontend_.emplace(config_.frontend, floats(weights_.window), floats(weights_.filterbank));
  }

  std::string device() const override { return backend_->name(); }
  int threads() const override { return backend_->threads(); }

  std::vector<Transcript> transcribe(std::span<const AudioView> audio, const Options& options,
                                     const Control& control) override;

 private:
  std::vector<float> floats(const Tensor& t) const {
    std::vector<float> values(static_cast<size_t>(t.size()));
    backend_->read(t, values);
    return values;
  }
  std::vector<Emissions> recognize(std::span<const Piece> pieces, Decoding decoding,
                                   const Control& control, Trace* trace, double done,
                                   double share) const;
  Transcript transcript(const Emissions& tokens, SpanRule rule, bool timestamps) const;

  Config config_;
  std::unique_ptr<Backend> backend_;
  Weights weights_;
  std::optional<Frontend> frontend_;
};

// The samples of `audio` at `rate`; `resampled` holds them when the rate had to change.
std::span<const float> prepare(AudioView audio, int rate, std::vector<float>& resampled) {
  check_samples(audio.samples);
  if (audio.rate == rate) return audio.samples;
  resampled = resample(audio.samples, audio.rate, rate);
  return resampled;
}

// Tokens of each piece. A trace sees one piece at a time.
std::vector<Emissions> FastConformer::recognize(std::span<const Piece> pieces, Decoding decoding,
                                                const Control& control, Trace* trace, double done,
                                                double share) const {
  control.begin_stage("features");
  std::vector<std::vector<float>> features;
  for (const Piece& p : pieces) {
    features.push_back(frontend_->features(p.samples, trace));
    control.check();
  }
  Workspace workspace;
  Run run{*backend_, workspace, trace};
  control.begin_stage("encoder");
  std::vector<Utterance> utterances;
  const double layers = config_.encoder.num_layers;
  const Tensor encoded = encode(run, weights_, config_, features, utterances, [&](int layer) {
    control.check();
    control.report(done + share * 0.95 * (layer + 1) / layers);
  });

  control.begin_stage("decoding");
  if (!weights_.ctc.weight.empty() && (decoding == Decoding::ctc || trace)) {
    auto tokens = decode_ctc(run, weights_.ctc, encoded, utterances);
    if (decoding == Decoding::ctc) return tokens;
  }
  const Transducer transducer(weights_, config_);
  const Tensor encoder_side = transducer.encoder_side(run, encoded);
  speech::trace(run, "61_joint_enc", encoder_side);
  if (decoding == Decoding::greedy || trace) {
    auto tokens = decode_greedy(run, transducer, encoder_side, utterances);
    if (decoding == Decoding::greedy) return tokens;
  }
  std::vector<Emissions> tokens;
  for (const Utterance& u : utterances) {
    tokens.push_back(decode_alsd(run, transducer, encoder_side, u));
    control.check();
  }
  return tokens;
}

Transcript FastConformer::transcript(const Emissions& tokens, SpanRule rule,
                                     bool timestamps) const {
  const Detokenizer detokenizer(config_.text);
  std::vector<int32_t> ids;
  for (const Emission& t : tokens) ids.push_back(t.id);
  Transcript out;
  out.text = detokenizer.text(ids);
  if (!timestamps) return out;

  const double hop = static_cast<double>(config_.frontend.hop_length) /
                     static_cast<double>(config_.frontend.sample_rate);
  const auto seconds = [&](int64_t frame) {
    return static_cast<double>(frame) * hop * config_.encoder.subsampling_factor;
  };
  const auto segment = [&](const Span& s) {
    return Segment{seconds(s.start), seconds(s.end), s.text};
  };
  const Spans spans = detokenizer.spans(tokens, rule);
  for (const Span& s : spans.segments) out.segments.push_back(segment(s));
  for (const Span& s : spans.words) out.words.push_back(segment(s));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Span& s = spans.tokens[i];
    out.tokens.push_back(
        {tokens[i].id, s.text, seconds(s.start), seconds(s.end), tokens[i].log_probability});
  }
  return out;
}

std::vector<Transcript> FastConformer::transcribe(std::span<const AudioView> audio,
                                                  const Options& options, const Control& control) {
  const OptionSpec* spec = info_.find_option(option::decoding);
  const Decoding decoding = decoding_of(options.get<std::string>(
      option::decoding, spec ? std::get<std::string>(*spec->default_value) : "greedy"));
  const bool timestamps = options.get(option::timestamps, false);
  const SpanRule rule = decoding == Decoding::ctc                  ? SpanRule::ctc
                        : config_.decoder.kind == DecoderKind::tdt ? SpanRule::tdt
                                                                   : SpanRule::rnnt;

  // Every audio is checked before any is recognized.
  std::vector<std::vector<float>> resampled(audio.size());
  std::vector<std::vector<Window>> windows;
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (size_t i = 0; i < audio.size(); ++i) {
    const auto samples = prepare(audio[i], config_.frontend.sample_rate, resampled[i]);
    const int64_t mel_frames = frontend_->frames(static_cast<int64_t>(samples.size()));
    if (mel_frames < 2) {
      fail_option(Status::out_of_range, "audio",
                  "the audio has {} samples at {} Hz, at least {} are needed", samples.size(),
                  config_.frontend.sample_rate, 2 * config_.frontend.hop_length);
    }
    windows.push_back(plan_windows(config_.encoder_frames(mel_frames)));
    for (const Window& w : windows.back()) {
      const auto begin = static_cast<size_t>(w.begin * config_.samples_per_frame());
      const bool last = &w == &windows.back().back();
      const auto count = last
                             ? samples.size() - begin
                             : static_cast<size_t>((w.end - w.begin) * config_.samples_per_frame());
      pieces.push_back({i, samples.subspan(begin, count), w.end - w.begin});
      total += w.end - w.begin;
    }
  }

  // Pieces are encoded together as far as memory allows; the result is the same as one by one.
  std::vector<std::vector<Emissions>> tokens(audio.size());
  int64_t done = 0;
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin;
    int64_t frames = 0;
    do {
      frames += pieces[end++].frames;
    } while (end < pieces.size() && !control.trace && frames + pieces[end].frames <= kBatchFrames);
    const auto batch = std::span(pieces).subspan(begin, end - begin);
    const double share = static_cast<double>(frames) / static_cast<double>(total);
    std::vector<Emissions> results;
    try {
      results = recognize(batch, decoding, control, control.trace,
                          static_cast<double>(done) / static_cast<double>(total), share);
    } catch (const NotANumber& error) {
      // Not of the audio: it was checked.
      fail_option(Status::model_file, "model_path",
                  "{} holds weights that are NaN or infinite ({}); the file may be damaged",
                  weights_.file->path(), error.what());
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      tokens[batch[i].audio].push_back(std::move(results[i]));
    }
    done += frames;
    begin = end;
    control.report(static_cast<double>(done) / static_cast<double>(total));
  }

  control.begin_stage("text");
  std::vector<Transcript> out;
  for (size_t i = 0; i < audio.size(); ++i) {
    out.push_back(transcript(merge_windows(windows[i], std::move(tokens[i])), rule, timestamps));
  }
  return out;
}

}  // namespace

ModelInfo read_info(const GgufFile& file) {
  const Config config = read_config(file);
  ModelInfo info = read_general_info(file, Task::recognition);
  check_tensors(file, config);
  if (const std::string use = file.get_string("speech.language_use"); use != "checked") {
    fail(Status::model_file, "{}: speech.language_use is \"{}\", expected \"checked\"", file.path(),
         use);
  }
  info.options.push_back(
      {.id = option::language, .steers = false, .default_value = std::string("auto")});
  info.options.push_back({.id = option::timestamps, .default_value = false});

  std::vector<std::string> choices{"greedy"};
  std::string chosen = "greedy";
  if (config.decoder.kind == DecoderKind::rnnt) {
    choices.insert(choices.begin(), "beam");
    if (!config.decoder.greedy_by_default) chosen = "beam";
  }
  if (config.decoder.ctc) choices.push_back("ctc");
  if (choices.size() > 1) {
    OptionSpec decoding{.id = option::decoding, .default_value = chosen};
    decoding.choices = choices;
    info.options.push_back(decoding);
  }
  return info;
}

std::unique_ptr<Model> load(std::shared_ptr<const GgufFile> file, const LoadParams& params) {
  return std::make_unique<FastConformer>(std::move(file), params);
}

}  // namespace speech::fastconformer
