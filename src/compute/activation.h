// The activation functions that operations can apply.
#pragma once

#include <cstdint>

namespace speech {

// gelu: x * Phi(x) through erf; gelu_tanh: its tanh approximation.
enum class Activation : uint8_t { none, relu, silu, gelu, gelu_tanh, sigmoid, tanh };

}  // namespace speech
