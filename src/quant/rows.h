// What codec.cpp dispatches to: one pair of functions per weight type, each in a file of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace speech::quant {

void decode_f32(const std::byte* src, float* dst, int64_t cols);
void decode_f16(const std::byte* src, float* dst, int64_t cols);
void decode_bf16(const std::byte* src, float* dst, int64_t cols);
void decode_q8_0(const std::byte* src, float* dst, int64_t cols);
void decode_q6_k(const std::byte* src, float* dst, int64_t cols);
void decode_q5_k(const std::byte* src, float* dst, int64_t cols);
void decode_q4_k(const std::byte* src, float* dst, int64_t cols);

// The values that a block can take beside its scales: value i is
// scales[g] * code - minima[g] of its group g = i / group, with an integer code in [low, top].
struct Grid {
  int group;
  float low, top;
  float scales[16], minima[16];
};
Grid grid_q8_0(const std::byte* block);
Grid grid_q6_k(const std::byte* block);
Grid grid_q5_k(const std::byte* block);
Grid grid_q4_k(const std::byte* block);

// Puts other codes in a block, one byte each, in the order of the values.
void put_codes_q8_0(const int8_t* codes, std::byte* block);
void put_codes_q6_k(const int8_t* codes, std::byte* block);
void put_codes_q5_k(const int8_t* codes, std::byte* block);
void put_codes_q4_k(const int8_t* codes, std::byte* block);

void encode_f32(const float* src, std::byte* dst, int64_t cols);
void encode_f16(const float* src, std::byte* dst, int64_t cols);
void encode_bf16(const float* src, std::byte* dst, int64_t cols);
void encode_q8_0(const float* src, std::byte* dst, int64_t cols);
void encode_q6_k(const float* src, std::byte* dst, int64_t cols, const float* importance);
void encode_q5_k(const float* src, std::byte* dst, int64_t cols, const float* importance);
void encode_q4_k(const float* src, std::byte* dst, int64_t cols, const float* importance);

}  // namespace speech::quant
