// Elementwise and row kernels on vectors. Included by one file per instruction set, after its
// simd.h and math.h.
#pragma once

#include "compute/cpu/kernels.h"

namespace speech::cpu {
namespace {

// body(offset, load, store) for each vector of n values; the last one may be partial and goes
// through the same arithmetic. load(p) and store(p, v) act at p + offset.
struct Whole {
  int64_t at;
  F operator()(const float* p) const { return load(p + at); }
  void put(float* p, F v) const { store(p + at, v); }
};
struct Part {
  int64_t at, n;
  F operator()(const float* p) const { return load_n(p + at, n); }
  void put(float* p, F v) const { store_n(p + at, v, n); }
};
template <typename Body>
inline void for_vectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(Whole{i});
  if (i < n) body(Part{i, n - i});
}

template <Activation kActivation>
void activate_all(float* out, const float* x, int64_t n) {
  for_vectors(n, [=](auto at) { at.put(out, activated(at(x), kActivation)); });
}

void activate(float* out, const float* x, int64_t n, Activation activation) {
  switch (activation) {
    case Activation::none:
      return activate_all<Activation::none>(out, x, n);
    case Activation::relu:
      return activate_all<Activation::relu>(out, x, n);
    case Activation::silu:
      return activate_all<Activation::silu>(out, x, n);
    case Activation::gelu:
      return activate_all<Activation::gelu>(out, x, n);
    case Activation::gelu_tanh:
      return activate_all<Activation::gelu_tanh>(out, x, n);
    case Activation::sigmoid:
      return activate_all<Activation::sigmoid>(out, x, n);
    case Activation::tanh:
      return activate_all<Activation::tanh>(out, x, n);
  }
}

void add(float* out, const float* a, const float* b, float b_scale, int64_t n) {
  F s = set(b_scale);
  for_vectors(n, [=](auto at) { at.put(out, fma(at(b), s, at(a))); });
}

void multiply(float* out, const float* a, const float* b, int64_t n) {
  for_vectors(n, [=](auto at) { at.put(out, at(a) * at(b)); });
}

void scale(float* out, const float* x, float factor, int64_t n) {
  F s = set(factor);
  for_vectors(n, [=](auto at) { at.put(out, at(x) * s); });
}

// In doubles: squares neither overflow nor lose small parts.
void magnitude(float* out, const float* re, const float* im, int64_t n) {
  for_vectors(n, [=](auto at) {
    F a = at(re), b = at(im);
    D a0 = low_double(a), a1 = high_double(a), b0 = low_double(b), b1 = high_double(b);
    at.put(out, to_float(sqrt(fma(a0, a0, b0 * b0)), sqrt(fma(a1, a1, b1 * b1))));
  });
}

void epilogue(float* out, const float* x, const EpilogueRow& row, int64_t n) {
  EpilogueRow r = row;
  for_vectors(n, [=](auto at) {
    F y = at(x);
    if (r.bias) y = y + at(r.bias);
    y = activated(y, r.activation);
    if (r.multiply) y = y * at(r.multiply);
    y = y * set(r.scale);
    if (r.add) y = y + at(r.add);
    at.put(out, y);
  });
}

void exp_row(float* out, const float* x, int64_t n) {
  for_vectors(n, [=](auto at) { at.put(out, exp(at(x))); });
}

// Sums in doubles, one per lane; the order depends on n alone.
void rms_norm(float* out, const float* x, const float* weight, float eps, int64_t n) {
  D s0 = set_d(0), s1 = set_d(0);
  for_vectors(n, [&](auto at) {
    F v = at(x);
    D a = low_double(v), b = high_double(v);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
  });
  double mean = sum(s0 + s1) / static_cast<double>(n);
  F factor = set(static_cast<float>(1 / __builtin_sqrt(mean + eps)));
  if (weight) {
    for_vectors(n, [=](auto at) { at.put(out, at(x) * factor * at(weight)); });
  } else {
    for_vectors(n, [=](auto at) { at.put(out, at(x) * factor); });
  }
}

// Mean first, then the squares of what is left, all in doubles.
void layer_norm(float* out, const float* x, const float* weight, const float* bias, float eps,
                int64_t n) {
  D s0 = set_d(0), s1 = set_d(0);
  for_vectors(n, [&](auto at) {
    F v = at(x);
    s0 = s0 + low_double(v);
    s1 = s1 + high_double(v);
  });
  double mean = sum(s0 + s1) / static_cast<double>(n);
  D m = set_d(mean);
  s0 = set_d(0), s1 = set_d(0);
  for_vectors(n, [&](auto at) {
    F v = at(x);
    D a = low_double(v) - m, b = high_double(v) - m;
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
  });
  double squares = sum(s0 + s1);
  // The zeros that fill the last vector counted as mean^2 each.
  int64_t fill = (kLanes - n % kLanes) % kLanes;
  if (fill) squares -= static_cast<double>(fill) * mean * mean;
  if (squares < 0) squares = 0;
  D f = set_d(1 / __builtin_sqrt(squares / static_cast<double>(n) + eps));
  for_vectors(n, [=](auto at) {
    F v = at(x);
    F y = to_float((low_double(v) - m) * f, (high_double(v) - m) * f);
    if (weight) y = y * at(weight);
    if (bias) y = y + at(bias);
    at.put(out, y);
  });
}

// The largest value; NaN if there is one.
float row_max(const float* x, int64_t n) {
  F m = set(-__builtin_inff());
  bool nan = false;
  int64_t i = 0;
  F unordered = set(0.0f);  // NaN in a lane that met one
  for (; i + kLanes <= n; i += kLanes) {
    F v = load(x + i);
    unordered = fma(v, set(0.0f), unordered);
    m = max(v, m);
  }
  float best = max_lane(m);
  // An infinity times 0 is NaN too: look again, one by one.
  if (any_nan(unordered)) {
    for (int64_t j = 0; j < i; ++j) nan = nan || x[j] != x[j];
  }
  for (; i < n; ++i) {
    nan = nan || x[i] != x[i];
    if (x[i] > best) best = x[i];
  }
  return nan ? __builtin_nanf("") : best;
}

// exp(x - max) with the rounding of the difference put back, and the sum of all in doubles.
inline F shifted_exp(F x, F max) {
  F d = x - max;
  F b = d - x;  // two-sum of x and -max
  F low = (x - (d - b)) + ((set(0.0f) - max) - b);
  // Infinite differences have no low part.
  return exp(d, select(less(abs(d), set(1e30f)), low, set(0.0f)));
}

void softmax(float* out, const float* x, int64_t n) {
  F max = set(row_max(x, n));
  D s0 = set_d(0), s1 = set_d(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F e = shifted_exp(load(x + i), max);
    store(out + i, e);
    s0 = s0 + low_double(e);
    s1 = s1 + high_double(e);
  }
  double total = sum(s0 + s1);
  if (i < n) {
    store_n(out + i, shifted_exp(load_n(x + i, n - i), max), n - i);
    for (int64_t j = i; j < n; ++j) total += out[j];
  }
  double inverse = 1 / total;
  F high = set(static_cast<float>(inverse));
  F low = set(static_cast<float>(inverse - static_cast<float>(inverse)));
  for_vectors(n, [=](auto at) {
    F e = at(out);
    at.put(out, fma(e, high, e * low));
  });
}

void log_softmax(float* out, const float* x, int64_t n) {
  float largest = row_max(x, n);
  F max = set(largest);
  D s0 = set_d(0), s1 = set_d(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F e = shifted_exp(load(x + i), max);
    s0 = s0 + low_double(e);
    s1 = s1 + high_double(e);
  }
  double total = sum(s0 + s1);
  if (i < n) {
    float tail[kLanes];
    store(tail, shifted_exp(load_n(x + i, n - i), max));
    for (int64_t j = 0; j < n - i; ++j) total += tail[j];
  }
  D log_total = set_d(static_cast<double>(largest) + __builtin_log(total));
  for_vectors(n, [=](auto at) {
    F v = at(x);
    at.put(out, to_float(low_double(v) - log_total, high_double(v) - log_total));
  });
}

int64_t argmax(const float* x, int64_t n) {
  float best = row_max(x, n);
  if (best != best) return -1;
  F b = set(best);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float hit[kLanes];
    // Cheap enough: one vector of the row at most is stored and searched.
    F found = select(equal(load(x + i), b), set(1.0f), set(0.0f));
    if (max_lane(found) == 0) continue;
    store(hit, found);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (hit[lane] != 0) return i + lane;
    }
  }
  for (; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return 0;
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for_vectors(half, [=](auto at) {
    F a = at(x), b = at(x + half), c = at(cos), s = at(sin);
    at.put(x, fnma(b, s, a * c));
    at.put(x + half, fma(a, s, b * c));
  });
}

void lstm_step(float* h, float* c, const float* gates, int64_t n) {
  for_vectors(n, [=](auto at) {
    F in = sigmoid(at(gates)), forget = sigmoid(at(gates + n));
    F candidate = tanh(at(gates + 2 * n)), out = sigmoid(at(gates + 3 * n));
    F cell = fma(forget, at(c), in * candidate);
    at.put(c, cell);
    at.put(h, out * tanh(cell));
  });
}

}  // namespace
}  // namespace speech::cpu
