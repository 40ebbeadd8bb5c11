#include "compute/cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace speech::cpu {
namespace {

constexpr Isa kAll[] = {Isa::scalar, Isa::avx2,    Isa::avx512, Isa::amx,
                        Isa::neon,   Isa::dotprod, Isa::i8mm};

#if defined(__x86_64__)
struct Features {
  bool avx2 = false, avx512 = false, amx = false;
};

// Linux saves the tile registers of a process only once it has asked for that.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Features detect() {
  Features f;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  bool fma = c & (1u << 12), osxsave = c & (1u << 27), avx = c & (1u << 28), f16c = c & (1u << 29);
  if (!osxsave || !avx) return f;
  unsigned low, high;  // XCR0: the registers that the system saves
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x6) != 0x6) return f;  // xmm, ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  auto ebx = [&](int bit) { return (b >> bit & 1) != 0; };
  f.avx2 = fma && f16c && ebx(5) && ebx(8);                                         // AVX2, BMI2
  bool vector512 = ebx(16) && ebx(17) && ebx(30) && ebx(31);                        // F, DQ, BW, VL
  f.avx512 = f.avx2 && vector512 && (c & (1u << 11)) != 0 && (low & 0xe0) == 0xe0;  // VNNI, zmm
  bool tiles = (d & (1u << 24)) && (d & (1u << 25)) && (low & 0x60000) == 0x60000;  // TILE, INT8
  f.amx = f.avx512 && tiles && may_use_tiles();
  return f;
}

const Features& features() {
  static const Features f = detect();
  return f;
}
#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::amx:
      return "amx";
    case Isa::neon:
      return "neon";
    case Isa::dotprod:
      return "dotprod";
    case Isa::i8mm:
      return "i8mm";
  }
  return "scalar";
}

bool machine_runs(Isa isa) {
  if (isa == Isa::scalar) return true;
#if defined(__x86_64__)
  return isa == Isa::avx2     ? features().avx2
         : isa == Isa::avx512 ? features().avx512
         : isa == Isa::amx    ? features().amx
                              : false;
#elif defined(__aarch64__)
  bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  bool i8mm = dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return isa == Isa::neon || (isa == Isa::dotprod && dotprod) || (isa == Isa::i8mm && i8mm);
#else
  return false;
#endif
}

std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (Isa isa : kAll) {
    if (machine_runs(isa)) isas.push_back(isa);
  }
  return isas;
}

IsaChoice choose_isa() {
  std::vector<Isa> runnable = runnable_isas();
  const char* forced = std::getenv("SPEECH_CPU");
  if (!forced || !*forced) {
    return {runnable.back(), runnable.back() == Isa::scalar
                                 ? "this processor (or system) runs none of the faster sets"
                                 : "the best that this processor and system run"};
  }
  for (Isa isa : kAll) {
    if (std::string_view(forced) != isa_name(isa)) continue;
    if (!machine_runs(isa)) {
      fail_option(Status::device, "SPEECH_CPU",
                  "SPEECH_CPU={}: this processor (or system) does not run it; the best it runs is "
                  "{}",
                  forced, isa_name(runnable.back()));
    }
    return {isa, fmt::format("SPEECH_CPU={}", forced)};
  }
  std::string known;
  for (Isa isa : kAll) known += fmt::format("{}, ", isa_name(isa));
  fail_option(Status::device, "SPEECH_CPU",
              "SPEECH_CPU={} is unknown; expected one of {}or no value for the best", forced,
              known);
}

std::string processor_name() {
#if defined(__x86_64__)
  unsigned regs[12];
  unsigned a, b, c, d;
  if (__get_cpuid(0x80000000u, &a, &b, &c, &d) && a >= 0x80000004u) {
    for (unsigned i = 0; i < 3; ++i) {
      __get_cpuid(0x80000002u + i, &regs[4 * i], &regs[4 * i + 1], &regs[4 * i + 2],
                  &regs[4 * i + 3]);
    }
    char text[sizeof(regs) + 1] = {};
    std::memcpy(text, regs, sizeof(regs));
    std::string_view name(text);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (!name.empty()) return std::string(name);
  }
#elif defined(__aarch64__)
  std::ifstream info("/proc/cpuinfo");
  std::string line, maker, part;
  while (std::getline(info, line)) {
    std::string value = line.substr(line.find(':') + 1);
    if (line.starts_with("CPU implementer")) maker = value;
    if (line.starts_with("CPU part")) part = value;
  }
  if (!part.empty()) return fmt::format("aarch64 processor, maker{}, part{}", maker, part);
#endif
  return "unknown processor";
}

}  // namespace speech::cpu
