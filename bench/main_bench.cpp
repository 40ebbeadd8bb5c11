// The benchmarks' entry: prints the machine's limits before the table.
#include <benchmark/benchmark.h>

#include <cstdio>

#include "bench/limits.h"
#include "compute/backend.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  speech::CpuReport report = speech::cpu_report();
  std::fprintf(stderr, "%s; %s (%s)\n", report.processor.c_str(), report.chosen.c_str(),
               report.reason.c_str());
  for (int threads = 1; threads <= report.default_threads; threads *= 2) {
    const speech::MachineLimits& limits = speech::bench::limits(threads);
    std::fprintf(stderr, "%d thread(s): f32 multiply-add peak %.1f GFLOPS, memory read %.1f GB/s\n",
                 threads, limits.flops * 1e-9, limits.read_bytes * 1e-9);
  }
  double one = speech::bench::limits(1).flops;
  if (report.default_threads >= 2 && speech::bench::limits(2).flops < 1.5 * one) {
    std::fprintf(stderr,
                 "WARNING: two threads reach no more than one: other processes hold the cores, and "
                 "ratios at two threads are not to be trusted\n");
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
