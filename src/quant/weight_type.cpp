#include "quant/weight_type.h"

#include <array>

#include "base/error.h"

namespace speech {
namespace {

// Numbers of ggml's enum ggml_type and llama.cpp's general.file_type. The K types take the "_S"
// file types, which name no mix with wider types.
constexpr std::array<WeightTypeFacts, 7> kFacts = {{
    {WeightType::f32, "f32", "F32", 1, 4, 0, 0},
    {WeightType::f16, "f16", "F16", 1, 2, 1, 1},
    {WeightType::bf16, "bf16", "BF16", 1, 2, 30, 32},
    {WeightType::q8_0, "q8_0", "Q8_0", 32, 34, 8, 7},
    {WeightType::q6_k, "q6_k", "Q6_K", 256, 210, 14, 18},
    {WeightType::q5_k, "q5_k", "Q5_K", 256, 176, 13, 16},
    {WeightType::q4_k, "q4_k", "Q4_K", 256, 144, 12, 14},
}};

bool same_letters(std::string_view a, std::string_view lower) {
  if (a.size() != lower.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] - 'A' + 'a') : a[i];
    if (c != lower[i]) return false;
  }
  return true;
}

}  // namespace

const WeightTypeFacts& facts(WeightType type) {
  auto index = static_cast<size_t>(type);
  if (index >= kFacts.size()) fail(Status::internal, "affine weights have no fixed block");
  return kFacts[index];
}

std::optional<WeightType> weight_type_from_name(std::string_view name) {
  for (const auto& f : kFacts) {
    if (same_letters(name, f.name)) return f.type;
  }
  return std::nullopt;
}

std::optional<WeightType> weight_type_from_ggml(uint32_t ggml_type) {
  for (const auto& f : kFacts) {
    if (ggml_type == static_cast<uint32_t>(f.ggml_type)) return f.type;
  }
  return std::nullopt;
}

int64_t row_bytes(WeightType type, int64_t cols) {
  const auto& f = facts(type);
  if (cols < 0 || cols % f.block != 0) {
    fail(Status::internal, "a row of {} values is not in whole {} blocks of {}", cols, f.label,
         f.block);
  }
  int64_t blocks = cols / f.block;
  if (blocks > INT64_MAX / f.block_bytes) fail(Status::internal, "a row of {} values", cols);
  return blocks * f.block_bytes;
}

}  // namespace speech
