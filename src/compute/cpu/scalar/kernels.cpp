// The reference kernels: plain loops through the C library, sums in double. The other sets are
// tested against these; they also run where nothing faster does.
#include "compute/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compute/kv_cache.h"
#include "quant/half.h"

namespace speech::cpu {
namespace {

float activated(float x, Activation activation) {
  double d = x;
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0.0f : x;  // NaN stays
    case Activation::silu:
      return static_cast<float>(d / (1 + std::exp(-d)));
    case Activation::gelu:
      return static_cast<float>(0.5 * d * std::erfc(-d * M_SQRT1_2));
    case Activation::gelu_tanh: {
      // 0.5 (1 + tanh(u)) = sigmoid(2 u), without the cancellation of 1 + tanh.
      double u = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
      return static_cast<float>(d / (1 + std::exp(-2 * u)));
    }
    case Activation::sigmoid:
      return static_cast<float>(1 / (1 + std::exp(-d)));
    case Activation::tanh:
      return static_cast<float>(std::tanh(d));
  }
  return x;
}

void activate(float* out, const float* x, int64_t n, Activation activation) {
  for (int64_t i = 0; i < n; ++i) out[i] = activated(x[i], activation);
}

void add(float* out, const float* a, const float* b, float b_scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b_scale * b[i];
}

void multiply(float* out, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

void scale(float* out, const float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void magnitude(float* out, const float* re, const float* im, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double a = re[i], b = im[i];
    out[i] = static_cast<float>(std::sqrt(a * a + b * b));
  }
}

void epilogue(float* out, const float* x, const EpilogueRow& row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float y = x[i];
    if (row.bias) y += row.bias[i];
    y = activated(y, row.activation);
    if (row.multiply) y *= row.multiply[i];
    y *= row.scale;
    if (row.add) y += row.add[i];
    out[i] = y;
  }
}

void exp_row(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(std::exp(static_cast<double>(x[i])));
}

void rms_norm(float* out, const float* x, const float* weight, float eps, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  float factor = static_cast<float>(1 / std::sqrt(sum / n + eps));
  for (int64_t i = 0; i < n; ++i) {
    float y = x[i] * factor;
    out[i] = weight ? y * weight[i] : y;
  }
}

void layer_norm(float* out, const float* x, const float* weight, const float* bias, float eps,
                int64_t n) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  double mean = sum / n;
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  double factor = 1 / std::sqrt(squares / n + eps);
  for (int64_t i = 0; i < n; ++i) {
    float y = static_cast<float>((x[i] - mean) * factor);
    if (weight) y *= weight[i];
    if (bias) y += bias[i];
    out[i] = y;
  }
}

// The largest, or NaN if there is one.
float row_max(const float* x, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return x[i];
    max = std::max(max, x[i]);
  }
  return max;
}

void softmax(float* out, const float* x, int64_t n) {
  double max = row_max(x, n), sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(std::exp(x[i] - max) / sum);
}

void log_softmax(float* out, const float* x, int64_t n) {
  double max = row_max(x, n), sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
  double log_sum = std::log(sum);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] - max - log_sum);
}

int64_t argmax(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return -1;
    if (x[i] > x[best]) best = i;
  }
  return best;
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

void lstm_step(float* h, float* c, const float* gates, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float in = activated(gates[i], Activation::sigmoid);
    float forget = activated(gates[n + i], Activation::sigmoid);
    float candidate = activated(gates[2 * n + i], Activation::tanh);
    float out = activated(gates[3 * n + i], Activation::sigmoid);
    c[i] = forget * c[i] + in * candidate;
    h[i] = out * activated(c[i], Activation::tanh);
  }
}

int64_t attention_tile(const AttentionArgs&) {
  return 16;
}

size_t attention_scratch(const AttentionArgs& args) {
  return sizeof(double) * static_cast<size_t>(args.keys + args.global + args.d) +
         sizeof(float) * static_cast<size_t>(args.d);
}

void to_half(uint16_t* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_f16(std::clamp(x[i], -65504.0f, 65504.0f));
}

// Row j of keys or values: where it lies, or gathered from its block into `to`.
const float* key_row(float* to, const AttentionArgs& args, int64_t kv_head, int64_t j) {
  if (!args.k_blocks) return args.k + kv_head * args.k_head + j * args.k_row;
  const std::byte* block = args.k_blocks[j / kKvBlock] + args.k_offset;
  for (int64_t c = 0; c < args.d; ++c) {
    int64_t at = (kv_head * args.d + c) * kKvBlock + j % kKvBlock;
    to[c] = args.half ? f16_to_f32(reinterpret_cast<const uint16_t*>(block)[at])
                      : reinterpret_cast<const float*>(block)[at];
  }
  return to;
}
const float* value_row(float* to, const AttentionArgs& args, int64_t kv_head, int64_t j) {
  if (!args.v_blocks) return args.v + kv_head * args.v_head + j * args.v_row;
  const std::byte* block = args.v_blocks[j / kKvBlock] + args.v_offset;
  int64_t at = (kv_head * kKvBlock + j % kKvBlock) * args.d;
  if (!args.half) return reinterpret_cast<const float*>(block) + at;
  for (int64_t c = 0; c < args.d; ++c) {
    to[c] = f16_to_f32(reinterpret_cast<const uint16_t*>(block)[at + c]);
  }
  return to;
}

double dot(const float* a, const float* a_bias, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += (a_bias ? static_cast<double>(a[i]) + a_bias[i] : a[i]) * b[i];
  }
  return sum;
}

void attention(const AttentionArgs& args, int64_t kv_head, int64_t begin, int64_t end,
               void* scratch) {
  double* score = static_cast<double*>(scratch);
  double* sum = score + args.keys + args.global;
  float* converted = reinterpret_cast<float*>(sum + args.d);
  int64_t group = args.heads / args.kv_heads;
  auto key = [&](int64_t j) { return key_row(converted, args, kv_head, j); };
  auto value = [&](int64_t j) { return value_row(converted, args, kv_head, j); };
  for (int64_t i = begin; i < end; ++i) {
    int64_t position = i + args.query_offset;
    bool global_row = position < args.global && !args.p;
    int64_t first = global_row ? 0 : std::max<int64_t>(0, position - args.left);
    int64_t last = global_row ? args.keys : std::min(args.keys, position + args.right + 1);
    // Global keys come first; without positions those that the window holds too count once.
    int64_t global = std::min(args.global, args.keys);
    if (!args.p) global = std::min(global, first);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* q = args.q + i * args.q_row + head * args.q_head;
      int64_t count = 0;
      for (int64_t j = 0; j < global; ++j) {
        score[count++] = args.scale * dot(q, nullptr, key(j), args.d);
      }
      for (int64_t j = first; j < last; ++j) {
        double s;
        if (args.p) {
          const float* p =
              args.p + (args.p_first - (position - j)) * args.p_row + head * args.p_head;
          s = dot(q, args.u + head * args.u_head, key(j), args.d) +
              dot(q, args.v_bias + head * args.v_bias_head, p, args.d);
        } else {
          s = dot(q, nullptr, key(j), args.d);
        }
        score[count++] = args.scale * s;
      }
      double max = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = 0; j < count; ++j) {
        if (!(score[j] <= max)) max = score[j];  // a NaN becomes the maximum and stays
        if (std::isnan(max)) break;
      }
      for (int64_t c = 0; c < args.d; ++c) sum[c] = 0;
      for (int64_t j = 0; j < count; ++j) {
        double p = std::exp(score[j] - max);
        total += p;
        const float* v = value(j < global ? j : first + j - global);
        for (int64_t c = 0; c < args.d; ++c) sum[c] += p * v[c];
      }
      float* out = args.out + i * args.out_row + head * args.out_head;
      for (int64_t c = 0; c < args.d; ++c) out[c] = static_cast<float>(sum[c] / total);
    }
  }
}

size_t packed_bytes(const ConvArgs&) {
  return 0;
}
void pack_filters(const ConvArgs&, int64_t, int64_t) {}

template <bool kDepthwise>
void convolve(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1, int64_t x0,
              int64_t x1) {
  int64_t taps = args.kernel_h * args.kernel_w;
  int64_t channels = args.filter_channels;
  for (int64_t y = y0; y < y1; ++y) {
    for (int64_t x = x0; x < x1; ++x) {
      for (int64_t c = c0; c < c1; ++c) {
        double sum = 0;
        for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
          int64_t in_y = y * args.stride_h + ky - args.pad_top;
          if (in_y < 0 || in_y >= args.h) continue;
          for (int64_t kx = 0; kx < args.kernel_w; ++kx) {
            int64_t in_x = x * args.stride_w + kx - args.pad_left;
            if (in_x < 0 || in_x >= args.w_in) continue;
            const float* in = args.x + in_y * args.x_row + in_x * args.x_col;
            for (int64_t ci = 0; ci < channels; ++ci) {
              double w = args.w[(c * channels + ci) * taps + ky * args.kernel_w + kx];
              sum += w * (kDepthwise ? in[c] : in[ci]);
            }
          }
        }
        float value = static_cast<float>(args.bias ? sum + args.bias[c] : sum);
        args.out[y * args.out_row + x * args.out_col + c] = activated(value, args.activation);
      }
    }
  }
}

}  // namespace

const Kernels kScalarKernels = {
    .isa = Isa::scalar,
    .activate = activate,
    .add = add,
    .multiply = multiply,
    .scale = scale,
    .magnitude = magnitude,
    .epilogue = epilogue,
    .exp = exp_row,
    .to_half = to_half,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .softmax = softmax,
    .log_softmax = log_softmax,
    .argmax = argmax,
    .rope = rope,
    .lstm_step = lstm_step,
    .attention_tile = attention_tile,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .conv_channels = 64,
    .packed_bytes = packed_bytes,
    .pack_filters = pack_filters,
    .conv2d = convolve<false>,
    .depthwise = convolve<true>,
};

}  // namespace speech::cpu
