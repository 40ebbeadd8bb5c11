// Where the tests' data lies.
#pragma once

#include <string>

namespace speech::testing {

inline std::string data_path(const std::string& name) {
  return std::string(SPEECH_TEST_DATA) + "/" + name;
}

}  // namespace speech::testing
