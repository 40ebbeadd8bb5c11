// The matrix product with instructions that multiply 2 x 8 by 8 x 2 bytes: whole tiles of many
// rows, from the panels of dotprod.
#if defined(__aarch64__)

#include "compute/cpu/neon/matmul_vector.h"
// Needs V.
#include "compute/cpu/vector/matmul_tiles.h"

namespace speech::cpu {
namespace {

I load_pair(const int8_t* a, const int8_t* b) {
  return V::from(vreinterpretq_u8_s8(vcombine_s8(vld1_s8(a), vld1_s8(b))));
}
I multiply_pairs(I sum, I a, I b) {
  return vmmlaq_s32(sum, V::s8(a), V::s8(b));
}

// As byte_tile, for codes without an offset: signed ones have none in a panel. Sums lie in squares,
// two rows of x by two rows of the panel.
template <int kRows>
void square_tile(const IntUnit& u, int row) {
  constexpr int kPairs = (kRows + 1) / 2, kSquares = kPanelRows / 2;
  const int8_t* x = reinterpret_cast<const int8_t*>(u.x) + row * 2 * kUnitColumns;
  const uint8_t* w = reinterpret_cast<const uint8_t*>(u.panel.values);
  int fours = u.format.group / 4;
  scaled_tile<kRows>(u, row, [&](int column, I(&sum)[kRows][2]) SPEECH_INLINE_LAMBDA {
    I square[kPairs][kSquares];
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
      for (int s = 0; s < kSquares; ++s) square[p][s] = V::zero();
    }
    auto take_plane = [&](const int8_t* plane) SPEECH_INLINE_LAMBDA {
      for (int f = 0; f < fours; f += 2) {
        const uint8_t* at = w + f * kFourStep;
        I a0 = V::load(at), a1 = V::load(at + 4 * kLanes);  // four columns
        at += kFourStep;
        I b0 = V::load(at), b1 = V::load(at + 4 * kLanes);  // the four after them
        I rows[kSquares] = {V::low32(a0, b0), V::high32(a0, b0), V::low32(a1, b1),
                            V::high32(a1, b1)};
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          const int8_t* first = plane + 2 * p * 2 * kUnitColumns + 4 * f;
          // An odd last row stands in for the one after it.
          const int8_t* second = 2 * p + 1 < kRows ? first + 2 * kUnitColumns : first;
          I v = load_pair(first, second);
#pragma GCC unroll 4
          for (int s = 0; s < kSquares; ++s) {
            square[p][s] = multiply_pairs(square[p][s], v, rows[s]);
          }
        }
      }
    };
    take_plane(x + column);
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
      for (int s = 0; s < kSquares; ++s) square[p][s] = V::sll32<8>(square[p][s]);
    }
    take_plane(x + kUnitColumns + column);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const I(&from)[kSquares] = square[r / 2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        I a = from[2 * half], b = from[2 * half + 1];
        sum[r][half] = r % 2 == 0 ? V::low64(a, b) : V::high64(a, b);
      }
    }
    w += fours * kFourStep;
  });
}

template <int... kRows>
void multiply_squares(const IntUnit& u, Indices<kRows...>) {
  static constexpr void (*kTiles[])(const IntUnit&, int) = {square_tile<kRows + 1>...};
  for_tiles(u, kTiles);
}

void multiply_in_squares(const IntUnit& u) {
  if (u.format.bytes) {
    multiply_squares(u, V::IntRows{});
  } else {
    multiply_words(u);
  }
}

constexpr MatmulKernels with_squares() {
  MatmulKernels table = kTable;
  table.multiply = multiply_in_squares;
  return table;
}

}  // namespace

const MatmulKernels kI8mmMatmul = with_squares();

}  // namespace speech::cpu

#endif
