// Naming the input at fault where an error arises below the layer that knows its name.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace speech {

// What `work` gives; an error of it that names no option gets this one.
template <typename Work>
decltype(auto) blaming(std::string_view option, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (!error.option().empty() || error.status() == Status::cancelled) throw;
    throw Error(error.status(), std::string(option), error.what());
  }
}

}  // namespace speech
