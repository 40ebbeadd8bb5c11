#pragma once

#include "base/error.h"

namespace speech {

// NaN where values are compared. Callers that checked their inputs know that weights are at fault.
struct NotANumber : Error {
  explicit NotANumber(const std::string& message) : Error(Status::internal, {}, message) {}
};

}  // namespace speech
