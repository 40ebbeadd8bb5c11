// A backend that counts the time of each kind of operation: for profiles of whole models.
//
// Products of fewer than 16 rows are a kind of their own: they are bound by reading the weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compute/backend.h"

namespace speech {

struct OpTimes {
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
    double operations = 0;  // 2 per multiply-add, of products and attention
    double bytes = 0;       // of weights, of products
  };
  struct Product {
    int64_t rows;
    Weight weight;
  };
  std::map<std::string, Entry> entries;  // by name of the operation
  std::vector<Product> products;         // every product in order

  double total() const;
  double product_bytes() const;  // of weights that all products read
};

// Runs everything on `inner` and adds up in `times`, which must outlive it.
std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend> inner, OpTimes& times);

}  // namespace speech
