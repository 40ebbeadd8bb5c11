// Elementary functions on vectors, within 2 units in the last place of the exact value over the
// whole range, denormals included; NaN and infinities as the C library has them. Included by one
// file per instruction set, after its simd.h.
#pragma once

#include "compute/activation.h"

namespace speech::cpu {
namespace {

// exp(x + low) = p 2^n for |low| below half a unit of x: x = n ln 2 + r, p = exp(r) by a polynomial
// (relative error 1e-8). Clamped where even 100 exp(x) is 0 or infinity; a NaN passes (see max).
struct Power {
  F p, n;
};
inline Power exp_parts(F x, F low) {
  x = min(set(89.0f), max(set(-120.0f), x));
  F n = round(x * set(1.44269504f));
  F r = fnma(n, set(0.693359375f), x);  // exact: few bits in the constant
  r = fnma(n, set(-2.12194440e-4f), r) + low;
  F p = set(0.0013933733f);
  p = fma(p, r, set(0.0083632357f));
  p = fma(p, r, set(0.041666463f));
  p = fma(p, r, set(0.16666576f));
  p = fma(p, r, set(0.5f));
  return {fma(p, r * r, r) + set(1.0f), n};
}
inline F exp(F x, F low) {
  Power e = exp_parts(x, low);
  return scale2(e.p, e.n);
}
inline F exp(F x) {
  return exp(x, set(0.0f));
}

// exp in doubles, relative error 1e-12, for x in [-700, 700].
inline D exp(D x) {
  D n = round(x * set_d(1.4426950408889634));
  D r = fnma(n, set_d(0.6931471805599453), x);
  D p = set_d(2.762585532267736e-06);
  p = fma(p, r, set_d(2.4868007461913282e-05));
  p = fma(p, r, set_d(0.00019841207078269473));
  p = fma(p, r, set_d(0.0013888838901781324));
  p = fma(p, r, set_d(0.008333333354850534));
  p = fma(p, r, set_d(0.04166666678704148));
  p = fma(p, r, set_d(0.16666666666646093));
  p = fma(p, r, set_d(0.49999999999954675));
  p = fma(p, r * r, r) + set_d(1.0);
  return scale2(p, n);
}

// (numerator + low) / (1 + e) for e in [0, 1], rounded about once: the errors of 1 + e and of the
// quotient are put back.
inline F over_one_plus(F numerator, F low, F e) {
  F one = set(1.0f);
  F d = one + e;
  F d_low = e - (d - one);
  F inverse = one / d;
  F q = numerator * inverse;
  F rest = fnma(q, d_low, fnma(q, d, numerator)) + low;
  return fma(rest, inverse, q);
}

// Below 0 the numerator is exp(x) = p 2^n: divided first, scaled last, so that denormals too are
// rounded once.
inline F sigmoid(F x) {
  F zero = set(0.0f), one = set(1.0f);
  Power power = exp_parts(zero - abs(x), zero);
  M below = less(x, zero);
  F q = over_one_plus(select(below, power.p, one), zero, scale2(power.p, power.n));
  return scale2(q, select(below, power.n, zero));
}

// x sigmoid(x); -inf gives NaN as x / (1 + exp(-x)) does.
inline F silu(F x) {
  F zero = set(0.0f), one = set(1.0f), infinity = set(__builtin_inff());
  Power power = exp_parts(zero - abs(x), zero);
  M below = less(x, zero);
  F factor = select(below, power.p, one);
  F clamped = max(set(-120.0f), x);
  F product = clamped * factor;
  F low = fma(clamped, factor, zero - product);
  F q = over_one_plus(product, low, scale2(power.p, power.n));
  return select(equal(abs(x), infinity), x + infinity, scale2(q, select(below, power.n, zero)));
}

inline F tanh(F x) {
  F a = abs(x);
  F s = x * x;
  F p = set(0.0023735149f);
  p = fma(p, s, set(-0.008412554f));
  p = fma(p, s, set(0.021789107f));
  p = fma(p, s, set(-0.053961653f));
  p = fma(p, s, set(0.13333313f));
  p = fma(p, s, set(-0.33333334f));
  F small = fma(p * s, a, a);
  F large = set(1.0f) - set(2.0f) / (exp(a + a) + set(1.0f));
  return with_sign(select(less(a, set(0.6f)), small, large), x);
}

// x Phi(x) in doubles. With t = |x|: Phi(-t) = exp(-t^2 / 2) h(u) / (t + 3), u = (t - 3) / (t + 3),
// h by a polynomial (error 1e-11).
inline D gelu(D x) {
  D t = min(set_d(40.0), abs(x));  // Phi(-40) is far below the floats; a NaN passes through x
  D inverse = set_d(1.0) / (t + set_d(3.0));
  D u = (t - set_d(3.0)) * inverse;
  D h = set_d(-3.655023500263366e-06);
  h = fma(h, u, set_d(-1.6255512626367183e-05));
  h = fma(h, u, set_d(-1.0605444777729154e-05));
  h = fma(h, u, set_d(7.693081489829016e-05));
  h = fma(h, u, set_d(0.00015249088310593774));
  h = fma(h, u, set_d(-0.0002563085305088611));
  h = fma(h, u, set_d(-0.0010452540990931929));
  h = fma(h, u, set_d(0.0010276102525021151));
  h = fma(h, u, set_d(0.006972539299241976));
  h = fma(h, u, set_d(-0.0104628740314446));
  h = fma(h, u, set_d(-0.04726302010909354));
  h = fma(h, u, set_d(0.23001772037380935));
  h = fma(h, u, set_d(-0.5093319820079255));
  h = fma(h, u, set_d(0.7290836901303723));
  D tail = exp(max(set_d(-700.0), t * t * set_d(-0.5))) * (h * inverse);
  return x * select_less(x, set_d(0.0), tail, set_d(1.0) - tail);
}

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), in doubles.
inline D gelu_tanh(D x) {
  D c = min(set_d(40.0), max(set_d(-40.0), x));
  D u = c * fma(c * c, set_d(2 * 0.7978845608028654 * 0.044715), set_d(2 * 0.7978845608028654));
  D e = exp(min(set_d(700.0), max(set_d(-700.0), set_d(0.0) - u)));
  return x / (set_d(1.0) + e);
}

inline F activated(F x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return max(set(0.0f), x);  // NaN stays
    case Activation::silu:
      return silu(x);
    case Activation::gelu: {
      // Phi(-inf) is 0, and 0 inf is NaN, as in the C library's terms.
      F minus_infinity = set(-__builtin_inff());
      F y = to_float(gelu(low_double(x)), gelu(high_double(x)));
      return select(equal(x, minus_infinity), set(__builtin_nanf("")), y);
    }
    case Activation::gelu_tanh: {
      F minus_infinity = set(-__builtin_inff());
      F y = to_float(gelu_tanh(low_double(x)), gelu_tanh(high_double(x)));
      return select(equal(x, minus_infinity), set(__builtin_nanf("")), y);
    }
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::tanh:
      return tanh(x);
  }
  return x;
}

}  // namespace
}  // namespace speech::cpu
