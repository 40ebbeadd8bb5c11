// A fixture and an answer to it, separated by a NUL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tasks/fixtures.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t cut = std::min(text.find('\0'), size);
  try {
    speech::Fixture fixture = speech::parse_fixture(text.substr(0, cut), "fuzz.txt");
    speech::fixture_message(fixture);
    // Each may take its time, which is bounded; their number is not.
    if (fixture.spoken_patterns.size() > 2)
      fixture.spoken_patterns.resize(2, {"", speech::Regex("")});
    speech::check_answer(
        fixture, speech::parse_answer(fixture, std::string(text.substr(std::min(cut + 1, size)))));
  } catch (const speech::Error&) {
  }
  return 0;
}
