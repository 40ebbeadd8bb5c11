// The limits of the machine, measured in the process whose figures are compared with them.
#pragma once

namespace speech {

struct MachineLimits {
  double flops = 0;       // f32, 2 per multiply-add, per second, all threads
  double read_bytes = 0;  // per second, all threads, far out of cache
};

// Multiply-adds from registers with the instruction set in use (SPEECH_CPU as for the backend), and
// reads from memory. Takes one to two seconds and 1 GiB of memory; Error(out_of_memory).
MachineLimits measure_limits(int threads);

}  // namespace speech
