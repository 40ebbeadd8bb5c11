// A backend that shows somebody every product: what weights are multiplied with.
#pragma once

#include <functional>
#include <memory>

#include "compute/backend.h"

namespace speech {

// Called before each product x[n, k] * w[m, k]^T, with the backend that will compute it.
using ProductObserver = std::function<void(Backend& backend, const Tensor& x, const Weight& w)>;

// Runs everything on `inner`.
std::unique_ptr<Backend> make_observed_backend(std::unique_ptr<Backend> inner,
                                               ProductObserver observer);

}  // namespace speech
