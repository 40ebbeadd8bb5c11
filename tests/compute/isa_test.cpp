#include "compute/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace speech::cpu {
namespace {

// Sets SPEECH_CPU and puts back what it was.
class Forced {
 public:
  explicit Forced(const char* value) {
    if (const char* before = std::getenv("SPEECH_CPU")) saved_ = before;
    ::setenv("SPEECH_CPU", value, 1);
  }
  ~Forced() { ::setenv("SPEECH_CPU", saved_.c_str(), 1); }

 private:
  std::string saved_;
};

TEST(Isa, EveryProcessorHasItsOwnSetsAndTheScalarOne) {
  std::vector<Isa> isas = runnable_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
#if defined(__aarch64__)
  EXPECT_TRUE(machine_runs(Isa::neon));
  EXPECT_FALSE(machine_runs(Isa::avx2));
#else
  EXPECT_FALSE(machine_runs(Isa::neon));
#endif
  Forced none("");
  EXPECT_EQ(choose_isa().isa, isas.back());
}

TEST(Isa, ForcesWhatTheMachineRunsAndRefusesTheRest) {
  std::vector<Isa> runnable = runnable_isas();
  for (Isa isa :
       {Isa::scalar, Isa::avx2, Isa::avx512, Isa::amx, Isa::neon, Isa::dotprod, Isa::i8mm}) {
    Forced forced(isa_name(isa));
    if (std::find(runnable.begin(), runnable.end(), isa) != runnable.end()) {
      EXPECT_EQ(choose_isa().isa, isa);
      EXPECT_EQ(choose_isa().reason, std::string("SPEECH_CPU=") + isa_name(isa));
    } else {
      EXPECT_THROW(choose_isa(), Error) << isa_name(isa);
    }
  }
  Forced unknown("sse9");
  try {
    choose_isa();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("avx2"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("neon"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace speech::cpu
