// The instruction sets that kernels exist for, and which one this process uses.
#pragma once

#include <string>
#include <vector>

#include "compute/cpu/isa_enum.h"

namespace speech::cpu {

const char* isa_name(Isa isa);  // "avx2": as SPEECH_CPU takes it

// Whether processor and operating system run it (on x86-64: XCR0).
bool machine_runs(Isa isa);

struct IsaChoice {
  Isa isa;
  std::string reason;  // "the best this processor runs", "SPEECH_CPU=avx2"
};

// The best set the machine runs, or what SPEECH_CPU names. An unknown name, or one that the machine
// does not run: Error(device).
IsaChoice choose_isa();

// Sets that the machine runs, lowest first: what tests loop over.
std::vector<Isa> runnable_isas();

// The processor's own name; on ARM, where it has none, the numbers of its maker and part; or
// "unknown processor".
std::string processor_name();

}  // namespace speech::cpu
