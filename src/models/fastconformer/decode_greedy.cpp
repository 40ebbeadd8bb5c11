#include <algorithm>

#include "models/fastconformer/decode.h"

namespace speech::fastconformer {
namespace {

// Frames whose joint is evaluated at once with the same prediction: few rows cost hardly more than
// one, as reading the weights is what takes the time. RNN-T looks further ahead while it meets
// blanks. With several utterances there are enough rows without looking ahead.
constexpr int64_t kLook = 4, kLongestLook = 64;
constexpr size_t kTracedSteps = 16;

// One utterance under way.
struct Search {
  Utterance utterance;
  Prediction prediction;
  int64_t frame = 0;
  int64_t last_frame = -1;  // of the last token
  int on_frame = 0;         // tokens on it
  int64_t look = kLook;
  int64_t evaluated = 0, row = 0, rows = 0;  // frames evaluated, and where their logits are
  Emissions tokens;

  bool done() const { return frame >= utterance.frames; }
};

// The first calls of both networks, and every step of the search.
struct StepTrace {
  std::vector<float> predicted, h, c, side, logits;
  size_t predictions = 0, joints = 0;
  std::vector<int32_t> steps;

  void prediction(const Prediction& p, size_t layers) {
    if (predictions++ >= kTracedSteps) return;
    const auto width = static_cast<std::ptrdiff_t>(p.h.size() / layers);
    predicted.insert(predicted.end(), p.h.end() - width, p.h.end());
    h.insert(h.end(), p.h.begin(), p.h.end());
    c.insert(c.end(), p.c.begin(), p.c.end());
    side.insert(side.end(), p.joint.begin(), p.joint.end());
  }
  void joint(Run& run, const Tensor& row) {
    if (joints++ >= kTracedSteps) return;
    logits.resize(logits.size() + static_cast<size_t>(row.size()));
    run.backend.read(row, std::span(logits).last(static_cast<size_t>(row.size())));
  }
  void write(Trace& trace, int64_t layers) const {
    const auto count = [](size_t n) { return static_cast<int64_t>(std::min(n, kTracedSteps)); };
    const auto add = [&](const char* name, int64_t rows, const std::vector<float>& values) {
      trace.add(name, {rows, rows ? static_cast<int64_t>(values.size()) / rows : 0}, values);
    };
    const int64_t n = count(predictions), width = static_cast<int64_t>(h.size()) / n / layers;
    add("70_pred_out", n, predicted);
    trace.add("71_pred_h", {n, layers, width}, h);
    trace.add("72_pred_c", {n, layers, width}, c);
    add("73_joint_pred", n, side);
    add("80_joint_logits", count(joints), logits);
    trace.add_ints("81_trace", {static_cast<int64_t>(steps.size() / 5), 5}, steps);
  }
};

}  // namespace

std::vector<Emissions> decode_greedy(Run& run, const Transducer& model, const Tensor& encoder_side,
                                     std::span<const Utterance> utterances) {
  const DecoderConfig& c = model.config();
  const bool tdt = c.kind == DecoderKind::tdt;
  const auto layers = static_cast<size_t>(c.prediction_layers);
  StepTrace record;

  const Prediction zero = model.start();
  const int32_t blank = c.blank;
  const Prediction* before = &zero;
  const Prediction first = model.predict(run, {&blank, 1}, {&before, 1})[0];
  if (run.trace) record.prediction(first, layers);
  std::vector<Search> searches;
  for (const Utterance& u : utterances) {
    searches.push_back({});
    searches.back().utterance = u;
    searches.back().prediction = first;
  }

  for (;;) {
    Workspace::Scope scope(run.workspace);
    // The joint of the coming frames of every utterance that is not done.
    std::vector<Search*> active;
    std::vector<Transducer::Query> queries;
    int64_t rows = 0;
    const auto under_way =
        std::count_if(searches.begin(), searches.end(), [](const Search& s) { return !s.done(); });
    for (Search& s : searches) {
      if (s.done()) continue;
      active.push_back(&s);
      s.evaluated = s.frame;
      s.row = rows;
      s.rows = std::min(under_way < kLook ? s.look : 1, s.utterance.frames - s.frame);
      rows += s.rows;
      queries.push_back({s.utterance.first + s.frame, s.rows, &s.prediction});
    }
    if (active.empty()) break;
    const Tensor logits = model.joint(run, encoder_side, queries);
    std::vector<int32_t> labels(static_cast<size_t>(rows)), durations(static_cast<size_t>(rows));
    run.backend.argmax(labels, logits.slice(1, 0, c.blank + 1));
    if (tdt) run.backend.argmax(durations, logits.slice(1, c.blank + 1, c.outputs()));

    // Each walks over its frames to the first token.
    std::vector<Search*> emitting;
    std::vector<int32_t> emitted;
    for (Search* s : active) {
      int32_t label = c.blank;
      while (label == c.blank && s->frame < s->evaluated + s->rows) {
        const int64_t row = s->row + s->frame - s->evaluated, frame = s->frame;
        label = labels[static_cast<size_t>(row)];
        const int rnnt_step = label == c.blank ? 1 : 0;
        const int predicted =
            tdt ? c.durations[static_cast<size_t>(durations[static_cast<size_t>(row)])] : rnnt_step;
        const int step = label == c.blank && predicted == 0 ? 1 : predicted;
        s->frame += step;
        bool forced = false;
        if (label != c.blank) {
          std::vector<float> values(static_cast<size_t>(c.blank + 1));
          run.backend.read(logits[row].slice(0, 0, c.blank + 1), values);
          s->tokens.push_back(
              {label, frame, frame + (tdt ? predicted : 1), log_probability(values, label)});
          s->on_frame = frame == s->last_frame ? s->on_frame + 1 : 1;
          s->last_frame = frame;
          forced = !s->done() && s->frame == frame && s->on_frame >= c.max_symbols;
          if (forced) ++s->frame;
          emitting.push_back(s);
          emitted.push_back(label);
        }
        if (run.trace && s == &searches.front()) {
          record.joint(run, logits[row]);
          record.steps.insert(record.steps.end(),
                              {static_cast<int32_t>(frame), label, predicted, step, forced});
        }
      }
      s->look = label != c.blank || tdt ? kLook : std::min(2 * s->look, kLongestLook);
    }

    // The prediction network moves on for those that have one.
    std::vector<const Prediction*> states;
    for (const Search* s : emitting) states.push_back(&s->prediction);
    if (emitting.empty()) continue;
    std::vector<Prediction> after = model.predict(run, emitted, states);
    for (size_t i = 0; i < emitting.size(); ++i) {
      emitting[i]->prediction = std::move(after[i]);
      if (run.trace && emitting[i] == &searches.front()) {
        record.prediction(emitting[i]->prediction, layers);
      }
    }
  }
  if (run.trace) record.write(*run.trace, static_cast<int64_t>(layers));

  std::vector<Emissions> out;
  for (Search& s : searches) out.push_back(std::move(s.tokens));
  return out;
}

}  // namespace speech::fastconformer
