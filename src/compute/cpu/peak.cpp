#include "compute/cpu/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace speech::cpu {
namespace {

// The chains live in an array whose address must not escape, or it would be stored at every step:
// only the total is kept.
double scalar_chains(int64_t count) {
  float a[12], x = 1.0000001f, total = 0;
  for (float& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = a[j] * x + x;
#if defined(__x86_64__)
      asm volatile("" : "+x"(a[j]));
#elif defined(__aarch64__)
      asm volatile("" : "+w"(a[j]));
#endif
    }
  }
  for (float v : a) total += v;
  keep(total);
  return 24;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2_chains(int64_t count) {
  __m256 a[12], x = _mm256_set1_ps(1.0000001f);
  for (auto& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = _mm256_fmadd_ps(a[j], x, x);
      asm volatile("" : "+x"(a[j]));
    }
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) a[0] = _mm256_add_ps(a[0], a[j]);
  float total = _mm256_cvtss_f32(a[0]);
  keep(total);
  return 12 * 16;
}

__attribute__((target("avx512f"))) double avx512_chains(int64_t count) {
  __m512 a[12], x = _mm512_set1_ps(1.0000001f);
  for (auto& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      a[j] = _mm512_fmadd_ps(a[j], x, x);
      asm volatile("" : "+v"(a[j]));
    }
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) a[0] = _mm512_add_ps(a[0], a[j]);
  float total = _mm512_cvtss_f32(a[0]);
  keep(total);
  return 12 * 32;
}
#elif defined(__aarch64__)
double neon_chains(int64_t count) {
  constexpr int kChains = 24;  // there are cores with four units of four cycles
  float32x4_t a[kChains], x = vdupq_n_f32(1.0000001f);
  for (auto& v : a) v = x;
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kChains; ++j) {
      a[j] = vfmaq_f32(a[j], x, x);
      asm volatile("" : "+w"(a[j]));
    }
  }
#pragma GCC unroll 24
  for (int j = 1; j < kChains; ++j) a[0] = vaddq_f32(a[0], a[j]);
  float total = vgetq_lane_f32(a[0], 0);
  keep(total);
  return kChains * 8;
}
#endif

}  // namespace

double multiply_adds(Isa isa, int64_t count) {
  auto chains = scalar_chains;
#if defined(__x86_64__)
  if (isa == Isa::avx2) chains = avx2_chains;
  if (isa == Isa::avx512 || isa == Isa::amx) chains = avx512_chains;
#elif defined(__aarch64__)
  if (isa != Isa::scalar) chains = neon_chains;
#endif
  (void)isa;
  return chains(count) * static_cast<double>(count);
}

}  // namespace speech::cpu
