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

void encode_f32(const float* src, std::byte* dst, int64_t cols);
void encode_f16(const float* src, std::byte* dst, int64_t cols);
void encode_bf16(const float* src, std::byte* dst, int64_t cols);
void encode_q8_0(const float* src, std::byte* dst, int64_t cols);
void encode_q6_k(const float* src, std::byte* dst, int64_t cols, const float* importance);
void encode_q5_k(const float* src, std::byte* dst, int64_t cols, const float* importance);
void encode_q4_k(const float* src, std::byte* dst, int64_t cols, const float* importance);

}  // namespace speech::quant
