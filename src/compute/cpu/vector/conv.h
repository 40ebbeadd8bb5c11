// Convolutions over channels-last images. Included by one file per instruction set, after its
// simd.h, math.h and rows.h.
//
// Channels are lanes. An output is bias + its taps in order, whichever places are computed
// together, so tiles do not show in the result.
#pragma once

#include "compute/cpu/kernels.h"

namespace speech::cpu {
namespace {

constexpr int kConvVectors = 4 * 16 / kLanes;  // vectors of a tile's 64 channels
constexpr int kConvChannels = kConvVectors * kLanes;

size_t depthwise_scratch(const ConvArgs& args) {
  return sizeof(float) * static_cast<size_t>(args.kernel_h * args.kernel_w + 1) * kConvChannels;
}

size_t conv2d_scratch(const ConvArgs& args) {
  int64_t taps = args.kernel_h * args.kernel_w;
  return sizeof(float) *
         static_cast<size_t>((taps * args.in_channels + 1) * kConvChannels + args.in_channels);
}

// packed[tap][ci][channel] and after it the biases; zeros for channels beyond c1.
inline void pack_filters(const ConvArgs& args, int64_t in_channels, int64_t c0, int64_t c1,
                         float* packed) {
  int64_t taps = args.kernel_h * args.kernel_w;
  for (int64_t c = 0; c < kConvChannels; ++c) {
    bool there = c0 + c < c1;
    const float* w = args.w + (c0 + c) * in_channels * taps;
    for (int64_t ci = 0; ci < in_channels; ++ci) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        packed[(tap * in_channels + ci) * kConvChannels + c] = there ? w[ci * taps + tap] : 0.0f;
      }
    }
    packed[taps * in_channels * kConvChannels + c] = there && args.bias ? args.bias[c0 + c] : 0.0f;
  }
}

inline F relu_if(F v, Activation activation) {
  return activation == Activation::relu ? max(set(0.0f), v) : v;
}

// The other activations go over what has just been stored.
inline void finish_places(const ConvArgs& args, float* out, int64_t count, int64_t channels) {
  if (args.activation == Activation::none || args.activation == Activation::relu) return;
  for (int64_t i = 0; i < count; ++i) {
    activate(out + i * args.out_col, out + i * args.out_col, channels, args.activation);
  }
}

// kPlaces outputs along x whose taps all lie inside; one vector of channels, n of its lanes.
template <int kPlaces, bool kWhole>
inline void depthwise_places(const ConvArgs& args, const float* in, const float* w, F bias,
                             float* out, int64_t n) {
  F sum[kPlaces];
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) sum[p] = bias;
  int64_t step = args.stride_w * args.x_col;
  for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
    for (int64_t kx = 0; kx < args.kernel_w; ++kx, w += kConvChannels) {
      F tap = load(w);
      const float* x = in + ky * args.x_row + kx * args.x_col;
#pragma GCC unroll 8
      for (int p = 0; p < kPlaces; ++p) {
        sum[p] = fma(kWhole ? load(x + p * step) : load_n(x + p * step, n), tap, sum[p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) {
    F v = relu_if(sum[p], args.activation);
    if (kWhole) {
      store(out + p * args.out_col, v);
    } else {
      store_n(out + p * args.out_col, v, n);
    }
  }
}

// The outputs [x0, x1) of a row whose taps lie inside the image in x.
struct Inside {
  int64_t begin, end;
};
inline Inside inside(const ConvArgs& args, int64_t x0, int64_t x1) {
  int64_t begin = (args.pad_left + args.stride_w - 1) / args.stride_w;
  int64_t room = args.w_in + args.pad_left - args.kernel_w;
  int64_t end = room < 0 ? 0 : room / args.stride_w + 1;
  if (begin < x0) begin = x0;
  if (begin > x1) begin = x1;
  if (end > x1) end = x1;
  if (end < begin) end = begin;
  return {begin, end};
}

template <bool kWhole>
void depthwise_row(const ConvArgs& args, const float* packed, int64_t c, int64_t n, F bias,
                   int64_t channel, int64_t y, int64_t x0, int64_t x1) {
  const float* w = packed + c;
  float* row = args.out + y * args.out_row + channel;
  int64_t in_y = y * args.stride_h - args.pad_top;
  bool rows_inside = in_y >= 0 && in_y + args.kernel_h <= args.h;
  Inside middle = rows_inside ? inside(args, x0, x1) : Inside{x1, x1};
  const float* image = args.x + channel;
  auto at_border = [&](int64_t x) {
    F sum = bias;
    for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
      if (in_y + ky < 0 || in_y + ky >= args.h) continue;
      for (int64_t kx = 0; kx < args.kernel_w; ++kx) {
        int64_t in_x = x * args.stride_w + kx - args.pad_left;
        if (in_x < 0 || in_x >= args.w_in) continue;
        const float* p = image + (in_y + ky) * args.x_row + in_x * args.x_col;
        sum = fma(kWhole ? load(p) : load_n(p, n),
                  load(w + (ky * args.kernel_w + kx) * kConvChannels), sum);
      }
    }
    sum = relu_if(sum, args.activation);
    if (kWhole) {
      store(row + x * args.out_col, sum);
    } else {
      store_n(row + x * args.out_col, sum, n);
    }
  };
  int64_t x = x0;
  for (; x < middle.begin; ++x) at_border(x);
  auto start = [&](int64_t place) {
    return image + in_y * args.x_row + (place * args.stride_w - args.pad_left) * args.x_col;
  };
  for (; x + 8 <= middle.end; x += 8) {
    depthwise_places<8, kWhole>(args, start(x), w, bias, row + x * args.out_col, n);
  }
  for (; x < middle.end; ++x) {
    depthwise_places<1, kWhole>(args, start(x), w, bias, row + x * args.out_col, n);
  }
  for (; x < x1; ++x) at_border(x);
}

void depthwise(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1, int64_t x0,
               int64_t x1, void* scratch) {
  float* packed = static_cast<float*>(scratch);
  pack_filters(args, 1, c0, c1, packed);
  const float* biases = packed + args.kernel_h * args.kernel_w * kConvChannels;
  // Pieces of a row that stay in the first-level cache while the channels go by.
  constexpr int64_t kPiece = 64;
  for (int64_t y = y0; y < y1; ++y) {
    for (int64_t x = x0; x < x1; x += kPiece) {
      int64_t end = x + kPiece < x1 ? x + kPiece : x1;
      for (int64_t c = 0; c < c1 - c0; c += kLanes) {
        int64_t n = c1 - c0 - c;
        if (n >= kLanes) {
          depthwise_row<true>(args, packed, c, kLanes, load(biases + c), c0 + c, y, x, end);
        } else {
          depthwise_row<false>(args, packed, c, n, load(biases + c), c0 + c, y, x, end);
        }
      }
      finish_places(args, args.out + y * args.out_row + x * args.out_col + c0, end - x, c1 - c0);
    }
  }
}

// kTileRows places times kTileVectors... vectors of output channels; ins: the places' first taps.
template <int kPlaces, int kVectors>
inline void full_places(const ConvArgs& args, const float* const (&ins)[kPlaces], bool whole,
                        const float* zeros, const int64_t* ys, const int64_t* xs,
                        const float* packed, F (&sum)[kPlaces][kVectors]) {
  const float* w = packed;
  for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
    for (int64_t kx = 0; kx < args.kernel_w; ++kx) {
      const float* x[kPlaces];
      int64_t offset = ky * args.x_row + kx * args.x_col;
      for (int p = 0; p < kPlaces; ++p) {
        x[p] = ins[p] + offset;
        if (!whole) {
          bool there =
              ys[p] + ky >= 0 && ys[p] + ky < args.h && xs[p] + kx >= 0 && xs[p] + kx < args.w_in;
          if (!there) x[p] = zeros;
        }
      }
      for (int64_t ci = 0; ci < args.in_channels; ++ci, w += kConvChannels) {
        F f[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) f[v] = load(w + v * kLanes);
#pragma GCC unroll 8
        for (int p = 0; p < kPlaces; ++p) {
          F y = set(x[p][ci]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[p][v] = fma(y, f[v], sum[p][v]);
        }
      }
    }
  }
}

void conv2d(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1, int64_t x0,
            int64_t x1, void* scratch) {
  // 6 places x 4 vectors, or 6 x 2 with half the registers.
  constexpr int kPlaces = 6, kVectors = kLanes == 16 ? 4 : 2;
  float* packed = static_cast<float*>(scratch);
  pack_filters(args, args.in_channels, c0, c1, packed);
  const float* biases = packed + args.kernel_h * args.kernel_w * args.in_channels * kConvChannels;
  float* zeros = packed + (args.kernel_h * args.kernel_w * args.in_channels + 1) * kConvChannels;
  for (int64_t ci = 0; ci < args.in_channels; ++ci) zeros[ci] = 0;
  for (int64_t y = y0; y < y1; ++y) {
    int64_t in_y = y * args.stride_h - args.pad_top;
    bool rows_inside = in_y >= 0 && in_y + args.kernel_h <= args.h;
    float* row = args.out + y * args.out_row + c0;
    for (int64_t x = x0; x < x1; x += kPlaces) {
      int64_t count = x1 - x < kPlaces ? x1 - x : kPlaces;
      int64_t ys[kPlaces], xs[kPlaces];
      const float* ins[kPlaces];
      bool whole = rows_inside;
      for (int64_t p = 0; p < kPlaces; ++p) {
        // Places beyond the end repeat the last one.
        int64_t place = x + (p < count ? p : count - 1);
        ys[p] = in_y;
        xs[p] = place * args.stride_w - args.pad_left;
        whole = whole && xs[p] >= 0 && xs[p] + args.kernel_w <= args.w_in;
        ins[p] = args.x + ys[p] * args.x_row + xs[p] * args.x_col;
      }
      for (int64_t c = 0; c < c1 - c0; c += kVectors * kLanes) {
        F sum[kPlaces][kVectors];
#pragma GCC unroll 8
        for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[p][v] = load(biases + c + v * kLanes);
        }
        full_places<kPlaces, kVectors>(args, ins, whole, zeros, ys, xs, packed + c, sum);
        for (int64_t p = 0; p < count; ++p) {
          float* out = row + (x + p) * args.out_col + c;
          for (int v = 0; v < kVectors; ++v) {
            int64_t left = c1 - c0 - c - v * kLanes;
            F value = relu_if(sum[p][v], args.activation);
            if (left >= kLanes) {
              store(out + v * kLanes, value);
            } else if (left > 0) {
              store_n(out + v * kLanes, value, left);
            }
          }
        }
      }
      finish_places(args, row + x * args.out_col, count, c1 - c0);
    }
  }
}

}  // namespace
}  // namespace speech::cpu
