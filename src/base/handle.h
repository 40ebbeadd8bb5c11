// Owning pointers to what a C library hands out.
#pragma once

#include <memory>

namespace speech {

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* handle) const {
    free(handle);
  }
};
// Handle<pa_simple, pa_simple_free>
template <typename T, auto free>
using Handle = std::unique_ptr<T, Free<free>>;

}  // namespace speech
