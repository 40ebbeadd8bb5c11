#include <algorithm>

#include "models/fastconformer/decode.h"

namespace speech::fastconformer {
namespace {

constexpr int64_t kRows = 512;  // frames whose logits exist at a time

}  // namespace

std::vector<Emissions> decode_ctc(Run& run, const Linear& ctc, const Tensor& encoded,
                                  std::span<const Utterance> utterances) {
  const auto blank = static_cast<int32_t>(ctc.weight.rows - 1);
  std::vector<Emissions> out;
  for (const Utterance& u : utterances) {
    Emissions tokens;
    int32_t last = blank;
    const int64_t piece = run.trace ? u.frames : kRows;
    for (int64_t begin = 0; begin < u.frames; begin += piece) {
      Workspace::Scope scope(run.workspace);
      const int64_t rows = std::min(piece, u.frames - begin);
      Tensor logits = run.tensor({rows, blank + 1});
      run.backend.matmul(logits, encoded.slice(0, u.first + begin, u.first + begin + rows),
                         ctc.weight, {.bias = ctc.bias});
      trace(run, "65_ctc_logits", logits);
      std::vector<int32_t> labels(static_cast<size_t>(rows));
      run.backend.argmax(labels, logits);
      for (int64_t i = 0; i < rows; ++i) {
        const int32_t label = labels[static_cast<size_t>(i)];
        if (label != blank && label != last) {
          std::vector<float> values(static_cast<size_t>(blank + 1));
          run.backend.read(logits[i], values);
          const int64_t frame = begin + i;
          const int64_t start =
              tokens.empty() ? std::max<int64_t>(0, frame - 1) : tokens.back().end;
          tokens.push_back({label, start, frame, log_probability(values, label)});
        }
        last = label;
      }
    }
    out.push_back(std::move(tokens));
  }
  return out;
}

}  // namespace speech::fastconformer
