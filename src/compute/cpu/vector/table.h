// The table of vector kernels. Included last by one file per instruction set.
#pragma once

#include "compute/cpu/kernels.h"

namespace speech::cpu {
namespace {

constexpr Kernels kTable = {
    .isa = kIsa,
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
    .conv_channels = kConvChannels,
    .packed_bytes = packed_bytes,
    .pack_filters = pack_filters,
    .conv2d = conv2d,
    .depthwise = depthwise,
};

}  // namespace
}  // namespace speech::cpu
