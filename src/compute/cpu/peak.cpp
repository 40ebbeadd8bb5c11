#include "compute/cpu/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
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
#endif

}  // namespace

double multiply_adds(Isa isa, int64_t count) {
  auto chains = scalar_chains;
#if defined(__x86_64__)
  if (isa == Isa::avx2) chains = avx2_chains;
  if (isa >= Isa::avx512) chains = avx512_chains;
#endif
  (void)isa;
  return chains(count) * static_cast<double>(count);
}

}  // namespace speech::cpu
