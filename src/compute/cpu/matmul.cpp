#include "compute/cpu/matmul.h"

#include <algorithm>

#include "compute/cpu/decode.h"
#include "compute/cpu/kernels.h"

namespace speech::cpu {
namespace {

// Sixteen running sums, added in a fixed order.
float dot(const float* a, const float* b, int64_t n) {
  float sum[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sum[i % 16] += a[i] * b[i];
  for (int step = 8; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) sum[lane] += sum[lane + step];
  }
  return sum[0];
}

}  // namespace

void matmul(const MatmulArgs& args, ThreadPool& pool, Scratch& scratch) {
  constexpr int64_t kRows = 16;  // of w per tile
  const Weight& w = args.w;
  scratch.reserve_threads(sizeof(float) * kRows * w.cols);
  const Kernels& table = kernels(args.isa);
  pool.run((w.rows + kRows - 1) / kRows, [&](int64_t tile, int thread) {
    float* panel = scratch.thread_as<float>(thread);
    int64_t first = tile * kRows, count = std::min(kRows, w.rows - first);
    for (int64_t r = 0; r < count; ++r) decode_weight_row(w, first + r, panel + r * w.cols);
    for (int64_t i = 0; i < args.n; ++i) {
      float y[kRows];
      for (int64_t r = 0; r < count; ++r) {
        y[r] = dot(args.x + i * args.x_stride, panel + r * w.cols, w.cols);
      }
      EpilogueRow row = {args.bias ? args.bias + first : nullptr,
                         args.multiply ? args.multiply + i * args.multiply_stride + first : nullptr,
                         args.add ? args.add + i * args.add_stride + first : nullptr,
                         args.activation, args.scale};
      table.epilogue(args.out + i * args.out_stride + first, y, row, count);
    }
  });
}

}  // namespace speech::cpu
