#include "base/memory.h"

#include <unistd.h>

#include <fstream>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace speech {

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void trim_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace speech
