#include "quant/k_fit.h"

#include <algorithm>

namespace speech::quant {
namespace {

constexpr int kGroup = 32, kGroups = 8;

// Scale and minimum of one group before they are rounded to 6 bits.
struct GroupFit {
  float s = 0, m = 0;
};

struct GroupSums {
  float w, x, xx;
};

// Least squares for fixed codes, with m >= 0 (sign +1) or m <= 0 (sign -1).
// Returns the squared error less the constant sum of w * x^2.
double solve(const GroupSums& g, const CodeSums& c, int sign, GroupFit& fit) {
  double det = static_cast<double>(g.w) * c.qq - static_cast<double>(c.q) * c.q;
  double s = 0, m = 0;
  if (det > 0) {
    s = (static_cast<double>(g.w) * c.xq - static_cast<double>(g.x) * c.q) / det;
    m = (s * c.q - g.x) / g.w;
  }
  if (det <= 0 || m * sign < 0) {
    m = 0;
    s = c.qq > 0 ? c.xq / static_cast<double>(c.qq) : 0;
  }
  if (s <= 0) {
    s = 0;
    m = -g.x / static_cast<double>(g.w);
    if (m * sign < 0) m = 0;
  }
  fit = {static_cast<float>(s), static_cast<float>(m)};
  return s * s * c.qq - 2 * s * m * c.q + m * m * g.w - 2 * s * c.xq + 2 * m * g.x;
}

GroupFit fit_group(const float* x, const float* w, float top, int sign) {
  GroupSums g = {};
  float low = x[0], high = x[0];
  for (int i = 0; i < kGroup; ++i) {
    g.w += w[i];
    g.x += w[i] * x[i];
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (sign > 0) low = std::min(low, 0.0f);
  if (sign < 0) low = std::max(low, 0.0f);
  GroupFit best = {0, -low};
  if (!(high > low)) return best;
  double best_error = 1e300;
  for (float widen = -3; widen <= 1.01f; widen += 0.25f) {
    GroupFit fit;
    float inverse = (top + widen) / (high - low);
    double error = solve(g, code_sums<kGroup>(x, w, inverse, -low, 0, top), sign, fit);
    if (error < best_error) best_error = error, best = fit;
  }
  for (int round = 0; round < 3 && best.s > 0; ++round) {
    GroupFit fit;
    double error = solve(g, code_sums<kGroup>(x, w, 1 / best.s, best.m, 0, top), sign, fit);
    if (!(error < best_error)) break;
    best_error = error;
    best = fit;
  }
  return best;
}

// Chooses the 6-bit pair of every group among those near to the wanted ones.
void choose_pairs(const SuperBlock& block, float top, const GroupFit* wanted, ScaleMinFit& fit) {
  float d = f16_to_f32(fit.d), dmin = f16_to_f32(fit.dmin);
  fit.error = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float* x = block.x + g * kGroup;
    const float* w = block.w + g * kGroup;
    auto near = [](float value, float step) {
      float r = step != 0 ? value / step : 0;
      return static_cast<int>(std::rint(r > 0 ? std::min(r, 63.0f) : 0));
    };
    int scale = near(wanted[g].s, d), minimum = near(wanted[g].m, dmin);
    float best = INFINITY;
    for (int a = std::max(scale - 1, 0); a <= std::min(scale + 1, 63); ++a) {
      for (int b = std::max(minimum - 1, 0); b <= std::min(minimum + 1, 63); ++b) {
        float error = group_error<kGroup>(x, w, d * static_cast<float>(a),
                                          dmin * static_cast<float>(b), 0, top);
        if (error < best) {
          best = error;
          fit.scales[g] = static_cast<uint8_t>(a);
          fit.minima[g] = static_cast<uint8_t>(b);
        }
      }
    }
    fit.error += best;
  }
}

// Least squares for d and dmin with everything else fixed.
void solve_steps(const SuperBlock& block, float top, ScaleMinFit& fit) {
  float d = f16_to_f32(fit.d), dmin = f16_to_f32(fit.dmin);
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float* x = block.x + g * kGroup;
    const float* w = block.w + g * kGroup;
    double scale = fit.scales[g], minimum = fit.minima[g], ww = 0, wx = 0;
    for (int i = 0; i < kGroup; ++i) {
      ww += w[i];
      wx += w[i] * x[i];
    }
    float s = d * fit.scales[g];
    CodeSums c = code_sums<kGroup>(x, w, s != 0 ? 1 / s : 0, dmin * fit.minima[g], 0, top);
    aa += scale * scale * c.qq;
    ab += scale * minimum * c.q;
    bb += minimum * minimum * ww;
    ax += scale * c.xq;
    bx += minimum * wx;
  }
  double det = aa * bb - ab * ab;
  if (bb > 0 && det > 1e-9 * aa * bb) {
    fit.d = scale_bits((ax * bb - bx * ab) / det);
    fit.dmin = scale_bits((ax * ab - bx * aa) / det);
  } else if (aa > 0) {
    fit.d = scale_bits((ax + f16_to_f32(fit.dmin) * ab) / aa);
  }
}

}  // namespace

ScaleMinFit fit_scale_min(const SuperBlock& block, int top_code) {
  const auto top = static_cast<float>(top_code);
  // A negative dmin moves a block of positive values up.
  int sign = *std::min_element(block.x, block.x + kSuperBlock) > 0 ? -1 : 1;
  GroupFit wanted[kGroups];
  float largest_s = 0, largest_m = 0;
  for (int g = 0; g < kGroups; ++g) {
    wanted[g] = fit_group(block.x + g * kGroup, block.w + g * kGroup, top, sign);
    largest_s = std::max(largest_s, wanted[g].s);
    largest_m = std::max(largest_m, wanted[g].m * sign);
  }
  // From the best of a few first steps, descend in turns.
  ScaleMinFit best;
  best.error = INFINITY;
  for (float reach : {63.0f, 62.0f, 60.5f, 58.0f}) {
    ScaleMinFit fit;
    fit.d = scale_bits(largest_s / reach);
    fit.dmin = scale_bits(sign * largest_m / reach);
    choose_pairs(block, top, wanted, fit);
    if (fit.error < best.error) best = fit;
  }
  ScaleMinFit fit = best;
  for (int round = 0; round < 4; ++round) {
    solve_steps(block, top, fit);
    GroupFit now[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      now[g] = {f16_to_f32(fit.d) * fit.scales[g], f16_to_f32(fit.dmin) * fit.minima[g]};
    }
    choose_pairs(block, top, now, fit);
    if (!(fit.error < best.error)) break;
    best = fit;
  }
  return best;
}

void ScaleMinFit::codes(const SuperBlock& block, int top, int8_t* out) const {
  for (int g = 0; g < kGroups; ++g) {
    group_codes<kGroup>(block.x + g * kGroup, f16_to_f32(d) * scales[g],
                        f16_to_f32(dmin) * minima[g], 0, static_cast<float>(top), out + g * kGroup);
  }
}

}  // namespace speech::quant
