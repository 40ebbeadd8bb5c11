#include "models/fastconformer/subsampling.h"

#include <algorithm>
#include <vector>

namespace speech::fastconformer {
namespace {

// Output frames of a piece of the convolutions, and of the product behind them (which is worth the
// unpacking of its weights only for many rows).
constexpr int64_t kPieceFrames = 16, kProductFrames = 256;

struct Range {
  int64_t begin, end;
};

// [time, mel, channels] under a trace's layout [channels, time, mel], if it wants images at all.
void trace_image(Run& run, const char* name, const Tensor& x) {
  if (!run.trace || run.trace->channel_step() == 0) return;
  const int64_t positions = x.dim(0) * x.dim(1), channels = x.dim(2);
  std::vector<float> values(static_cast<size_t>(x.size())), image;
  run.backend.read(x, values);
  int64_t kept = 0;
  for (int64_t c = 0; c < channels; c += run.trace->channel_step(), ++kept) {
    for (int64_t i = 0; i < positions; ++i) {
      image.push_back(values[static_cast<size_t>(i * channels + c)]);
    }
  }
  run.trace->add(name, {kept, x.dim(0), x.dim(1)}, image);
}

// Output frames [begin, end) of a level come from frames 2 begin - 1 .. 2 end - 1 of the level
// below. A piece that does not start at the utterance's start takes one frame more, so that its
// rows keep their parity; the output row that this adds has read a zero in place of a frame and is
// dropped.
Range below(Range r, int64_t frames) {
  return {std::max<int64_t>(0, 2 * r.begin - 2), std::min(frames, 2 * r.end)};
}

// Output frames `piece` of the convolutions -> flat [frames, channels, mels].
void convolutions(Run& run, const Subsampling& w, int64_t mels, std::span<const float> features,
                  const std::vector<int64_t>& frames, Range piece, const Tensor& flat) {
  Workspace::Scope scope(run.workspace);
  const size_t levels = frames.size() - 1;
  std::vector<Range> range(levels + 1);
  range[levels] = piece;
  for (size_t i = levels; i-- > 0;) range[i] = below(range[i + 1], frames[i]);
  const auto half = [](int64_t n) { return (n + 1) / 2; };
  const auto drop = [&](const Tensor& y, size_t level) {
    return y.slice(0, range[level].begin > 0 ? 1 : 0, y.dim(0));
  };

  // [time, mel, channels]
  Tensor x = run.tensor({range[0].end - range[0].begin, mels, 1});
  run.backend.write(x, features.subspan(static_cast<size_t>(range[0].begin * mels),
                                        static_cast<size_t>(x.size())));
  Tensor y = run.tensor({half(x.dim(0)), half(mels), w.conv.dim(0)});
  run.backend.conv2d(y, x, w.conv, w.conv_bias, 3, 2, 1, Activation::relu);
  x = drop(y, 1);
  trace_image(run, "10_conv0_relu", x);

  for (size_t i = 0; i < w.stages.size(); ++i) {
    const Subsampling::Stage& stage = w.stages[i];
    const int64_t channels = x.dim(2);
    const std::string first = std::to_string(11 + 2 * i) + "_conv" + std::to_string(2 + 3 * i);
    const std::string second = std::to_string(12 + 2 * i) + "_conv" + std::to_string(3 + 3 * i);
    Tensor dw = run.tensor({half(x.dim(0)), half(x.dim(1)), channels});
    run.backend.depthwise_conv2d(dw, x, stage.depthwise, stage.bias, 3, 2, 1, Activation::none);
    dw = drop(dw, i + 2);
    trace_image(run, (first + "_dw").c_str(), dw);
    x = run.tensor({dw.dim(0), dw.dim(1), channels});
    const int64_t rows = dw.dim(0) * dw.dim(1);
    run.backend.matmul(x.reshape({rows, channels}), dw.reshape({rows, channels}),
                       stage.pointwise.weight,
                       {.bias = stage.pointwise.bias, .activation = Activation::relu});
    trace_image(run, (second + "_pw_relu").c_str(), x);
  }
  run.backend.transpose(flat, x);
}

}  // namespace

void subsample(Run& run, const Subsampling& w, const Config& config,
               std::span<const float> features, const Tensor& out) {
  const int64_t mels = config.frontend.n_mels;
  std::vector<int64_t> frames{static_cast<int64_t>(features.size()) / mels};  // of each level
  for (size_t i = 0; i <= w.stages.size(); ++i) frames.push_back((frames.back() + 1) / 2);
  const int64_t total = frames.back();

  const int64_t piece = run.trace ? total : kPieceFrames;
  const int64_t product = run.trace ? total : kProductFrames;
  for (int64_t begin = 0; begin < total; begin += product) {
    Workspace::Scope scope(run.workspace);
    const int64_t end = std::min(total, begin + product);
    // The product reads column channel * mels + mel.
    Tensor flat = run.tensor({end - begin, w.conv.dim(0), config.subsampled_mels()});
    for (int64_t i = begin; i < end; i += piece) {
      const Range part{i, std::min(end, i + piece)};
      convolutions(run, w, mels, features, frames, part,
                   flat.slice(0, part.begin - begin, part.end - begin));
    }
    run.backend.matmul(out.slice(0, begin, end), flat.reshape({end - begin, w.out.weight.cols}),
                       w.out.weight, {.bias = w.out.bias});
  }
}

}  // namespace speech::fastconformer
