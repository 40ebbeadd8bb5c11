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

// Blocks of kConvChannels channels: [tap][ci][channel], then the biases, zeros for channels that
// are not there; behind the blocks a row of zeros.
inline int64_t block_floats(const ConvArgs& args) {
  return (args.kernel_h * args.kernel_w * args.filter_channels + 1) * kConvChannels;
}
inline int64_t blocks_of(const ConvArgs& args) {
  return (args.out_channels + kConvChannels - 1) / kConvChannels;
}

size_t packed_bytes(const ConvArgs& args) {
  return sizeof(float) *
         static_cast<size_t>(blocks_of(args) * block_floats(args) + args.filter_channels);
}

void pack_filters(const ConvArgs& args, int64_t c0, int64_t c1) {
  int64_t taps = args.kernel_h * args.kernel_w, channels = args.filter_channels;
  for (; c0 < c1; c0 += kConvChannels) {
    float* packed = args.packed + c0 / kConvChannels * block_floats(args);
    for (int64_t c = 0; c < kConvChannels; ++c) {
      bool there = c0 + c < args.out_channels;
      const float* w = args.w + (c0 + c) * channels * taps;
      for (int64_t ci = 0; ci < channels; ++ci) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          packed[(tap * channels + ci) * kConvChannels + c] = there ? w[ci * taps + tap] : 0.0f;
        }
      }
      packed[taps * channels * kConvChannels + c] = there && args.bias ? args.bias[c0 + c] : 0.0f;
    }
  }
  if (c1 >= args.out_channels) {
    float* zeros = args.packed + blocks_of(args) * block_floats(args);
    for (int64_t ci = 0; ci < channels; ++ci) zeros[ci] = 0;
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

// A vector of channels: n lanes of it are there, all with kWhole.
template <bool kWhole>
inline F load_lanes(const float* p, int64_t n) {
  return kWhole ? load(p) : load_n(p, n);
}
template <bool kWhole>
inline void store_lanes(float* p, F v, int64_t n) {
  if (kWhole) {
    store(p, v);
  } else {
    store_n(p, v, n);
  }
}

// kPlaces outputs along x whose taps all lie inside. kTaps: a single row of so many taps, one place
// apart, so that each input is loaded once; 0: any kernel.
template <int kPlaces, int kTaps, bool kWhole>
inline void depthwise_places(const ConvArgs& args, const float* in, const float* w, F bias,
                             float* out, int64_t n) {
  F sum[kPlaces];
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) sum[p] = bias;
  if constexpr (kTaps > 0) {
    F tap[kTaps];
#pragma GCC unroll 16
    for (int k = 0; k < kTaps; ++k) tap[k] = load(w + k * kConvChannels);
#pragma GCC unroll 32
    for (int r = 0; r < kPlaces + kTaps - 1; ++r) {
      F x = load_lanes<kWhole>(in + r * args.x_col, n);
#pragma GCC unroll 8
      for (int p = 0; p < kPlaces; ++p) {
        if (r - p >= 0 && r - p < kTaps) sum[p] = fma(x, tap[r - p], sum[p]);
      }
    }
  } else {
    int64_t step = args.stride_w * args.x_col;
    for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
      for (int64_t kx = 0; kx < args.kernel_w; ++kx, w += kConvChannels) {
        F tap = load(w);
        const float* x = in + ky * args.x_row + kx * args.x_col;
#pragma GCC unroll 8
        for (int p = 0; p < kPlaces; ++p) {
          sum[p] = fma(load_lanes<kWhole>(x + p * step, n), tap, sum[p]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) {
    store_lanes<kWhole>(out + p * args.out_col, relu_if(sum[p], args.activation), n);
  }
}

// One output of which some taps lie outside.
template <bool kWhole>
inline void depthwise_border(const ConvArgs& args, int64_t channel, const float* w, F bias,
                             int64_t y, int64_t x, int64_t n) {
  F sum = bias;
  for (int64_t ky = 0; ky < args.kernel_h; ++ky) {
    int64_t in_y = y * args.stride_h + ky - args.pad_top;
    if (in_y < 0 || in_y >= args.h) continue;
    for (int64_t kx = 0; kx < args.kernel_w; ++kx) {
      int64_t in_x = x * args.stride_w + kx - args.pad_left;
      if (in_x < 0 || in_x >= args.w_in) continue;
      sum = fma(load_lanes<kWhole>(args.x + in_y * args.x_row + in_x * args.x_col + channel, n),
                load(w + (ky * args.kernel_w + kx) * kConvChannels), sum);
    }
  }
  store_lanes<kWhole>(args.out + y * args.out_row + x * args.out_col + channel,
                      relu_if(sum, args.activation), n);
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

// Channels [c0, c1) of kPlaces outputs: the rows of the image are read and written in order.
template <int kPlaces, int kTaps>
void depthwise_group(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y, int64_t x,
                     bool border) {
  int64_t taps = args.kernel_h * args.kernel_w;
  const float* in = args.x + (y * args.stride_h - args.pad_top) * args.x_row +
                    (x * args.stride_w - args.pad_left) * args.x_col;
  float* out = args.out + y * args.out_row + x * args.out_col;
  for (int64_t c = c0; c < c1; c += kLanes) {
    const float* w = args.packed + c / kConvChannels * block_floats(args) + c % kConvChannels;
    F bias = load(w + taps * kConvChannels);
    int64_t n = c1 - c;
    if (border) {
      auto place = n >= kLanes ? depthwise_border<true> : depthwise_border<false>;
      place(args, c, w, bias, y, x, n);
    } else if (n >= kLanes) {
      depthwise_places<kPlaces, kTaps, true>(args, in + c, w, bias, out + c, n);
    } else {
      depthwise_places<kPlaces, kTaps, false>(args, in + c, w, bias, out + c, n);
    }
  }
  finish_places(args, out + c0, kPlaces, c1 - c0);
}

template <int kTaps>
void depthwise_rows(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1,
                    int64_t x0, int64_t x1) {
  constexpr int kPlaces = 8;
  for (int64_t y = y0; y < y1; ++y) {
    int64_t in_y = y * args.stride_h - args.pad_top;
    bool rows_inside = in_y >= 0 && in_y + args.kernel_h <= args.h;
    Inside middle = rows_inside ? inside(args, x0, x1) : Inside{x1, x1};
    int64_t x = x0;
    for (; x < middle.begin; ++x) depthwise_group<1, 0>(args, c0, c1, y, x, true);
    for (; x + kPlaces <= middle.end; x += kPlaces) {
      depthwise_group<kPlaces, kTaps>(args, c0, c1, y, x, false);
    }
    for (; x < middle.end; ++x) depthwise_group<1, 0>(args, c0, c1, y, x, false);
    for (; x < x1; ++x) depthwise_group<1, 0>(args, c0, c1, y, x, true);
  }
}

void depthwise(const ConvArgs& args, int64_t c0, int64_t c1, int64_t y0, int64_t y1, int64_t x0,
               int64_t x1) {
  bool row = args.kernel_h == 1 && args.stride_w == 1;
  auto rows = row && args.kernel_w == 9   ? depthwise_rows<9>  // FastConformer's
              : row && args.kernel_w == 5 ? depthwise_rows<5>
                                          : depthwise_rows<0>;
  rows(args, c0, c1, y0, y1, x0, x1);
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
            int64_t x1) {
  // 6 places x 4 vectors, or 6 x 2 with half the registers.
  constexpr int kPlaces = 6, kVectors = kRegisters == 32 ? 4 : 2;
  int64_t block = block_floats(args), taps = args.kernel_h * args.kernel_w;
  const float* zeros = args.packed + blocks_of(args) * block;
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
        const float* packed =
            args.packed + (c0 + c) / kConvChannels * block + (c0 + c) % kConvChannels;
        const float* biases = packed + taps * args.in_channels * kConvChannels;
        F sum[kPlaces][kVectors];
#pragma GCC unroll 8
        for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[p][v] = load(biases + v * kLanes);
        }
        full_places<kPlaces, kVectors>(args, ins, whole, zeros, ys, xs, packed, sum);
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
