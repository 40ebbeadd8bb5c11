#include "compute/trace.h"

#include "base/error.h"

namespace speech {
namespace {

void check_size(const std::string& name, const std::vector<int64_t>& shape, size_t size) {
  int64_t expected = 1;
  for (int64_t dim : shape) expected *= dim;
  if (expected != static_cast<int64_t>(size)) {
    fail(Status::internal, "trace {}: {} values for a shape of {}", name, size, expected);
  }
}

}  // namespace

void Trace::add(std::string name, const Tensor& x, Backend& backend) {
  Entry entry;
  entry.name = prefix_ + name;
  for (int i = 0; i < x.rank(); ++i) entry.shape.push_back(x.dim(i));
  entry.floats.resize(x.size());
  backend.read(x, entry.floats);
  entries_.push_back(std::move(entry));
}

void Trace::add(std::string name, std::vector<int64_t> shape, std::span<const float> values) {
  check_size(name, shape, values.size());
  entries_.push_back({prefix_ + name, std::move(shape), {values.begin(), values.end()}, {}});
}

void Trace::add_ints(std::string name, std::vector<int64_t> shape,
                     std::span<const int32_t> values) {
  check_size(name, shape, values.size());
  entries_.push_back({prefix_ + name, std::move(shape), {}, {values.begin(), values.end()}});
}

}  // namespace speech
