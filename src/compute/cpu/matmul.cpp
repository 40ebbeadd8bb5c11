#include "compute/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "compute/cpu/decode.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/matmul_kernels.h"

namespace speech::cpu {
namespace {

// Rows of x that share one unpacking of a panel and whose f32 sums wait in the second-level cache.
constexpr int64_t kChunkRows = 384;
// From so many rows on, multiplying a unit takes longer than reading the next one from memory.
constexpr int kManyRows = 64;
// Rows of x multiplied between two requests for parts of the next unit: whole tiles of every
// kernel.
constexpr int kRowsPerRequest = 48;
// Rows of the result that are asked for before they are written: they lie far apart, and a
// processor does not see that they will be needed.
constexpr int64_t kOutputAhead = 8;

// Sums of one group must stay inside int32 whatever the codes and activations are:
constexpr bool sums_fit(int64_t group, int64_t largest_code, int64_t x_max) {
  return group * largest_code * x_max <= INT32_MAX;
}
// 127 * 257: the largest that is also two signed bytes, 256 * high + low.
constexpr int kMax = 32639;
IntFormat words(int group, int bias_group, int x_max) {
  return {group, bias_group, x_max, false, 0, 0, 0};
}
IntFormat bytes(int group, int bias_group, int order = 0) {
  return {group, bias_group, kMax, true, 0, 0, order};
}

// Words: q8_0 int8; q6_k (q - 32) * scale; q5_k and q4_k q * scale; affine uint8.
static_assert(sums_fit(32, 128, kMax) && sums_fit(32, 32 * 128, 16383) &&
              sums_fit(32, 31 * 63, kMax) && sums_fit(64, 15 * 63, kMax) &&
              sums_fit(128, 255, kMax));
// Bytes: uint8 (or less: int8) by int8 planes, and the sum of both.
static_assert(sums_fit(128, 255, 128) && sums_fit(128, 255, kMax));

bool is_float(WeightType type) {
  return type == WeightType::f32 || type == WeightType::f16 || type == WeightType::bf16;
}

IntFormat int_format(const Weight& w, const MatmulKernels& table, bool direct) {
  bool prefer_bytes = table.bytes;
  switch (w.type) {
    case WeightType::q8_0: {
      IntFormat format = prefer_bytes ? bytes(32, 0) : words(32, 0, kMax);
      if (prefer_bytes && !table.signed_codes) format.offset = 128, format.offset_group = 32;
      return format;
    }
    case WeightType::q6_k:  // groups of 16: too short for a float scale each
      // Integer scales multiply codes when a panel is made, without one the sums of 16 columns.
      if (prefer_bytes && direct) return {32, 0, 16383, true, 32, 16, 0};
      return words(32, 0, 16383);
    case WeightType::q5_k:
      return prefer_bytes ? bytes(32, 32) : words(32, 32, kMax);
    case WeightType::q4_k:
      return prefer_bytes ? bytes(32, 32) : words(64, 32, kMax);
    default: {
      int group = w.affine.group, bits = w.affine.bits;
      return prefer_bytes ? bytes(group, group, bits == 4 || bits == 2 ? bits : 0)
                          : words(group, group, kMax);
    }
  }
}

const uint8_t* stored(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

// Whether one packing of x serves both.
bool same_type(const Weight& a, const Weight& b) {
  return a.type == b.type && (a.type != WeightType::affine ||
                              (a.affine.bits == b.affine.bits && a.affine.group == b.affine.group &&
                               a.affine.scale_type == b.affine.scale_type));
}

PackedRows packed_rows(const Weight& w) {
  PackedRows p = {};
  p.type = w.type;
  p.data = stored(w.data);
  p.row_bytes = w.row_bytes;
  p.rows = w.rows;
  p.cols = w.cols;
  if (w.type == WeightType::affine) {
    p.scales = stored(w.scales);
    p.biases = stored(w.biases);
    p.bits = w.affine.bits;
    p.group = w.affine.group;
    p.scale_type = w.affine.scale_type;
    p.scale_row_bytes = w.cols / p.group * (p.scale_type == WeightType::f32 ? 4 : 2);
  }
  return p;
}

// Hands out 64-byte aligned pieces of a buffer; without one it only counts.
class Pieces {
 public:
  explicit Pieces(std::byte* data) : data_(data) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* at = data_ ? data_ + used_ : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

// The bytes of a unit in rows of the matrix: asked for line by line, some at a time.
class UnitLines {
 public:
  // Columns [col, col + columns) of `rows` rows from `row` on.
  UnitLines(const PackedRows& w, int64_t row, int64_t rows, int64_t col, int64_t columns)
      : row_bytes_(w.row_bytes) {
    const int64_t begin = col * w.row_bytes / w.cols;
    const int64_t end = (col + columns) * w.row_bytes / w.cols;
    at_ = w.data + row * w.row_bytes + begin;
    lines_ = (end - begin + 63) / 64 + 1;  // rows begin anywhere in a line
    left_ = rows * lines_;
    last_ = end - begin - 1;
  }

  int64_t left() const { return left_; }

  void ask(int64_t count) {
    for (count = std::min(count, left_); count > 0; --count, --left_) {
      __builtin_prefetch(at_ + std::min(line_ * 64, last_));
      if (++line_ == lines_) {
        line_ = 0;
        at_ += row_bytes_;
      }
    }
  }

 private:
  const uint8_t* at_;
  int64_t row_bytes_, lines_, last_, left_ = 0, line_ = 0;
};

// Most matrices that one run multiplies with the same x.
constexpr size_t kMostMatrices = 4;

// One matrix of a run and where its product goes.
struct Matrix {
  const MatmulArgs* args;
  PackedRows w;
  PackedRows last;  // the last panel, if it lacks rows
  uint8_t *last_data, *last_scales, *last_biases;
};

// Products of the same x with matrices of one type: rows of x in chunks, each chunk packed once
// and then multiplied panel by panel.
class Products {
 public:
  Products(std::span<const MatmulArgs> all, const MatmulKernels& table, ThreadPool& pool,
           Scratch& scratch)
      : args_(all.front()),
        table_(table),
        pool_(pool),
        scratch_(scratch),
        float_(is_float(args_.w.type)),
        format_(float_ ? words(1, 0, 0) : int_format(args_.w, table, args_.n <= kDirectRows)),
        unit_(float_ ? kFloatColumns : kUnitColumns),
        units_((args_.w.cols + unit_ - 1) / unit_),
        sums_(format_.sums()),
        most_(std::min(args_.n, kChunkRows)),
        direct_(args_.n <= kDirectRows) {
    for (const MatmulArgs& args : all) {
      matrices_[count_of_matrices_++] = {&args, packed_rows(args.w), {}, nullptr, nullptr, nullptr};
    }
  }

  void run() {
    scratch_.reserve_shared(shared(nullptr));
    shared(scratch_.shared());
    for (Matrix& m : matrices()) fill_last(m);
    for (int64_t first = 0; first < args_.n; first += most_) {
      first_ = first;
      count_ = std::min(most_, args_.n - first);
      pack();
      // Few rows: one run of the pool for all matrices, panel beside panel. Many: one matrix after
      // the other, whose results lie together.
      const std::span<Matrix> all = matrices();
      const size_t step = count_ < kManyRows ? all.size() : 1;
      for (size_t i = 0; i < all.size(); i += step) multiply(all.subspan(i, step));
    }
  }

 private:
  size_t shared(std::byte* data) {
    Pieces pieces(data);
    if (float_) {
      x_float_ = pieces.take<float>(units_ * most_ * unit_);
    } else {
      x_ = pieces.take<int16_t>(units_ * most_ * unit_);
      x_scales_ = pieces.take<float>(units_ * most_ * kScales);
      x_sums_ = pieces.take<float>(units_ * most_ * sums_);
    }
    odd_ = pieces.take<uint8_t>(most_);
    for (Matrix& m : matrices()) {
      if (m.w.rows % table_.panel_rows == 0) continue;
      m.last_data = pieces.take<uint8_t>(table_.panel_rows * m.w.row_bytes);
      m.last_scales = pieces.take<uint8_t>(table_.panel_rows * m.w.scale_row_bytes);
      m.last_biases = pieces.take<uint8_t>(table_.panel_rows * m.w.scale_row_bytes);
    }
    return pieces.used();
  }

  // Kernels take whole panels: the rows that a last one has, with zeros behind them.
  void fill_last(Matrix& m) {
    int64_t panel = table_.panel_rows, rows = m.w.rows % panel, first = m.w.rows - rows;
    if (rows == 0) return;
    m.last = m.w;
    m.last.rows = panel;
    auto copy = [&](const uint8_t* from, uint8_t* to, int64_t bytes) -> const uint8_t* {
      if (!from) return nullptr;
      std::memcpy(to, from + first * bytes, static_cast<size_t>(rows * bytes));
      std::memset(to + rows * bytes, 0, static_cast<size_t>((panel - rows) * bytes));
      return to;
    };
    m.last.data = copy(m.w.data, m.last_data, m.w.row_bytes);
    m.last.scales = copy(m.w.scales, m.last_scales, m.w.scale_row_bytes);
    m.last.biases = copy(m.w.biases, m.last_biases, m.w.scale_row_bytes);
  }

  struct PerThread {
    IntPanel panel = {};
    float* float_panel = nullptr;
    float* acc = nullptr;
    float* row = nullptr;
  };
  size_t per_thread(std::byte* data, PerThread& out) const {
    Pieces pieces(data);
    int64_t rows = table_.panel_rows;
    if (float_) {
      out.float_panel = pieces.take<float>(unit_ * rows);
    } else {
      out.panel.values = pieces.take<int16_t>(unit_ * rows);
      out.panel.scales = pieces.take<float>(unit_ / format_.group * rows);
      out.panel.biases = pieces.take<float>(sums_ * rows);
    }
    out.acc = pieces.take<float>(most_ * rows);
    if (any_odd_) out.row = pieces.take<float>(args_.w.cols);
    return pieces.used();
  }

  // Packs rows [first_, first_ + count_) of x: unit after unit, all rows of a unit together.
  void pack() {
    int64_t per_tile = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, args_.w.cols));
    pool_.run((count_ + per_tile - 1) / per_tile, [&](int64_t tile, int) {
      int64_t end = std::min(count_, (tile + 1) * per_tile);
      for (int64_t r = tile * per_tile; r < end; ++r) pack_row(r);
    });
    any_odd_ = std::any_of(odd_, odd_ + count_, [](uint8_t odd) { return odd != 0; });
  }

  void pack_row(int64_t r) {
    const float* x = args_.x + (first_ + r) * args_.x_stride;
    bool finite = true;
    for (int64_t u = 0; u < units_; ++u) {
      int64_t at = u * most_ + r;
      int columns = columns_of(u);
      if (float_) {
        std::memcpy(x_float_ + at * unit_, x + u * unit_, sizeof(float) * columns);
      } else {
        finite &= table_.quantize(x + u * unit_, columns, format_, x_ + at * unit_,
                                  x_scales_ + at * kScales, x_sums_ + at * sums_);
      }
    }
    odd_[r] = !finite;
  }

  int columns_of(int64_t unit) const {
    return static_cast<int>(std::min<int64_t>(unit_, args_.w.cols - unit * unit_));
  }

  void multiply(std::span<const Matrix> all) {
    PerThread sizes;
    scratch_.reserve_threads(per_thread(nullptr, sizes));
    // Few panels and many rows: rows are shared out too, at the price of unpacking once more. Many
    // panels and few rows: several neighbouring panels make a tile.
    int64_t panels = 0;
    for (const Matrix& m : all) panels = std::max(panels, panels_of(m));
    int64_t parts = 1, wanted = 8 * pool_.threads();
    while (panels * parts < wanted / 2 && count_ / parts >= 96) parts *= 2;
    int64_t rows = (count_ + parts - 1) / parts;
    int64_t group = std::max<int64_t>(1, count_ < 64 ? panels / wanted : 1);
    int64_t groups = (panels + group - 1) / group;
    pool_.run(groups * parts, [&](int64_t tile, int thread) {
      int64_t begin = tile % parts * rows;
      int64_t end = std::min((tile / parts + 1) * group, panels);
      for (int64_t panel = tile / parts * group; panel < end; ++panel) {
        // The panel after this one; after a tile's last most likely the first of the tile that this
        // thread takes next.
        int64_t next = panel + 1 < end ? panel + 1 : (tile / parts + pool_.threads()) * group;
        for (size_t i = 0; i < all.size(); ++i) {
          if (panel >= panels_of(all[i])) continue;
          size_t j = i + 1;
          while (j < all.size() && panel >= panels_of(all[j])) ++j;
          Panel following = j < all.size() ? Panel{&all[j], panel} : Panel{&all[0], next};
          multiply_panel({&all[i], panel}, following, begin, std::min(count_, begin + rows),
                         thread);
        }
      }
    });
  }

  struct Panel {
    const Matrix* matrix;
    int64_t index;
  };

  // Rows [begin, end) of the chunk with one panel; panel `following` is read ahead meanwhile.
  void multiply_panel(Panel panel, Panel following, int64_t begin, int64_t end, int thread) {
    if (begin >= end) return;
    const Matrix& m = *panel.matrix;
    PerThread mine;
    per_thread(scratch_.thread(thread), mine);
    int64_t panel_rows = table_.panel_rows, row = panel.index * panel_rows;
    int count = static_cast<int>(end - begin);
    Next next = {};
    const PackedRows& ahead = following.matrix->w;
    if ((following.index + 1) * panel_rows <= ahead.rows) {
      int64_t at = following.index * panel_rows;
      next.data = ahead.data + at * ahead.row_bytes;
      if (ahead.scales) next.scales = ahead.scales + at * ahead.scale_row_bytes;
      if (ahead.biases) next.biases = ahead.biases + at * ahead.scale_row_bytes;
    }
    // The panel's rows: of the matrix, or all of the last one.
    bool last = row + panel_rows > m.w.rows;
    const PackedRows& w = last ? m.last : m.w;
    int64_t first_row = last ? 0 : row;
    if (direct_) {
      if (float_) {
        table_.direct_float(w, first_row, next, {nullptr, unit_, x_float_, mine.acc, count});
      } else {
        table_.direct(w, first_row, next,
                      {mine.panel, format_, unit_, x_, x_scales_, x_sums_, mine.acc, count});
      }
    } else {
      multiply_units(w, first_row, next, following, begin, count, mine);
    }
    int64_t columns = std::min(panel_rows, m.w.rows - row);
    if (any_odd_) multiply_odd(*m.args, row, columns, begin, end, mine);
    finish(*m.args, row, columns, begin, end, mine.acc);
  }

  void multiply_units(const PackedRows& w, int64_t row, Next next, Panel following, int64_t begin,
                      int count, const PerThread& mine) {
    next.scales = next.biases = nullptr;                              // small
    int64_t step = w.row_bytes * table_.panel_rows * unit_ / w.cols;  // bytes of a unit
    std::memset(mine.acc, 0, sizeof(float) * count * table_.panel_rows);
    // Few rows: what is asked for while a unit is unpacked, in the order of the addresses, is there
    // when it is needed. Many: it would be gone by then, so the unit that comes next is asked for
    // while this one is multiplied.
    bool many = count >= kManyRows;
    for (int64_t u = 0; u < units_; ++u) {
      int64_t at = u * most_ + begin;
      int columns = columns_of(u);
      if (float_) {
        table_.unpack_float(w, row, u * unit_, columns, many ? Next{} : next, mine.float_panel);
      } else {
        table_.unpack(w, format_, row, u * unit_, columns, many ? Next{} : next, mine.panel);
      }
      if (!many) {
        multiply_unit(at, columns, mine.acc, count, mine);
        if (next.data) next.data += step;
        continue;
      }
      UnitLines ahead = next_unit(w, row, u, following);
      int64_t requests = (count + kRowsPerRequest - 1) / kRowsPerRequest;
      int64_t lines = (ahead.left() + requests - 1) / requests;
      for (int r = 0; r < count; r += kRowsPerRequest) {
        ahead.ask(lines);
        multiply_unit(at + r, columns, mine.acc + r * table_.panel_rows,
                      std::min(kRowsPerRequest, count - r), mine);
      }
    }
  }

  // The unit after unit `u` of the panel at `row`: the first of panel `following` at the end.
  UnitLines next_unit(const PackedRows& w, int64_t row, int64_t u, Panel following) const {
    if (u + 1 < units_) {
      return UnitLines(w, row, table_.panel_rows, (u + 1) * unit_, columns_of(u + 1));
    }
    const PackedRows& ahead = following.matrix->w;
    int64_t first = std::min(following.index * table_.panel_rows, ahead.rows);
    return UnitLines(ahead, first, std::min<int64_t>(table_.panel_rows, ahead.rows - first), 0,
                     columns_of(0));
  }

  // Rows of x from `at` (in units' rows) on with the unit in the panel.
  void multiply_unit(int64_t at, int columns, float* acc, int count, const PerThread& mine) {
    if (float_) {
      table_.multiply_float({mine.float_panel, columns, x_float_ + at * unit_, acc, count});
    } else {
      table_.multiply({mine.panel, format_, columns, x_ + at * unit_, x_scales_ + at * kScales,
                       x_sums_ + at * sums_, acc, count});
    }
  }

  // Rows with NaN or infinity, from the decoded weights, so that they spread as in floating point.
  void multiply_odd(const MatmulArgs& args, int64_t row, int64_t columns, int64_t begin,
                    int64_t end, PerThread& mine) {
    for (int64_t c = 0; c < columns; ++c) {
      decode_weight_row(args.w, row + c, mine.row);
      for (int64_t r = begin; r < end; ++r) {
        if (!odd_[r]) continue;
        const float* x = args_.x + (first_ + r) * args_.x_stride;
        double sum = 0;
        for (int64_t k = 0; k < args_.w.cols; ++k) sum += static_cast<double>(mine.row[k]) * x[k];
        mine.acc[(r - begin) * table_.panel_rows + c] = static_cast<float>(sum);
      }
    }
  }

  void finish(const MatmulArgs& args, int64_t row, int64_t columns, int64_t begin, int64_t end,
              const float* acc) {
    const Kernels& elementwise = kernels(args.isa);
    bool plain = !args.bias && !args.multiply && !args.add && args.scale == 1.0f &&
                 args.activation == Activation::none;
    for (int64_t r = begin; r < end; ++r, acc += table_.panel_rows) {
      int64_t i = first_ + r;
      float* out = args.out + i * args.out_stride + row;
      if (r + kOutputAhead < end) ask_for_row(args, i + kOutputAhead, row, columns);
      if (plain) {
        std::memcpy(out, acc, sizeof(float) * columns);
        continue;
      }
      EpilogueRow e = {args.bias ? args.bias + row : nullptr,
                       args.multiply ? args.multiply + i * args.multiply_stride + row : nullptr,
                       args.add ? args.add + i * args.add_stride + row : nullptr, args.activation,
                       args.scale};
      elementwise.epilogue(out, acc, e, columns);
    }
  }

  // What finish() reads and writes of a row.
  void ask_for_row(const MatmulArgs& args, int64_t i, int64_t row, int64_t columns) const {
    for (int64_t c = 0; c < columns; c += 16) {
      __builtin_prefetch(args.out + i * args.out_stride + row + c, 1);
      if (args.multiply) __builtin_prefetch(args.multiply + i * args.multiply_stride + row + c);
      if (args.add && args.add != args.out) {
        __builtin_prefetch(args.add + i * args.add_stride + row + c);
      }
    }
  }

  static constexpr int64_t kScales = kUnitColumns / kScaleColumns;

  std::span<Matrix> matrices() { return {matrices_.data(), count_of_matrices_}; }
  int64_t panels_of(const Matrix& m) const {
    return (m.w.rows + table_.panel_rows - 1) / table_.panel_rows;
  }

  const MatmulArgs& args_;  // of the first matrix: what it says of x holds for all
  const MatmulKernels& table_;
  ThreadPool& pool_;
  Scratch& scratch_;
  std::array<Matrix, kMostMatrices> matrices_;
  size_t count_of_matrices_ = 0;
  bool float_;
  IntFormat format_;
  int unit_;       // columns of a unit
  int64_t units_;  // units of a row
  int64_t sums_;   // sums of activations per row and unit
  int64_t most_;   // rows of a chunk
  bool direct_;    // few rows: no panels

  int64_t first_ = 0, count_ = 0;  // the chunk at hand
  float* x_float_ = nullptr;       // [units_, most_, unit_]
  int16_t* x_ = nullptr;           // [units_, most_, unit_]
  float* x_scales_ = nullptr;      // [units_, most_, kScales]
  float* x_sums_ = nullptr;        // [units_, most_, sums_]
  uint8_t* odd_ = nullptr;         // [most_]: rows with NaN or infinity
  bool any_odd_ = false;
};

// The reference: decoded weights, sixteen running sums, added in a fixed order.
float dot(const float* a, const float* b, int64_t n) {
  float sum[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sum[i % 16] += a[i] * b[i];
  for (int step = 8; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) sum[lane] += sum[lane + step];
  }
  return sum[0];
}

void matmul_scalar(const MatmulArgs& args, ThreadPool& pool, Scratch& scratch) {
  constexpr int64_t kRows = 16;  // of w per tile
  const Weight& w = args.w;
  scratch.reserve_threads(sizeof(float) * kRows * w.cols);
  const Kernels& table = kernels(args.isa);
  pool.run((w.rows + kRows - 1) / kRows, [&](int64_t tile, int thread) {
    float* panel = scratch.thread_as<float>(thread);
    int64_t first = tile * kRows, count = std::min(kRows, w.rows - first);
    for (int64_t r = 0; r < count; ++r) decode_weight_row(w, first + r, panel + r * w.cols);
    for (int64_t i = 0; i < args.n; ++i) {
      float y[kRows];
      for (int64_t r = 0; r < count; ++r) {
        y[r] = dot(args.x + i * args.x_stride, panel + r * w.cols, w.cols);
      }
      EpilogueRow row = {args.bias ? args.bias + first : nullptr,
                         args.multiply ? args.multiply + i * args.multiply_stride + first : nullptr,
                         args.add ? args.add + i * args.add_stride + first : nullptr,
                         args.activation, args.scale};
      table.epilogue(args.out + i * args.out_stride + first, y, row, count);
    }
  });
}

#if defined(__x86_64__)
MatmulKernels table_of(Isa isa) {
  if (isa == Isa::amx) return amx_matmul();
  return isa == Isa::avx512 ? kAvx512Matmul : kAvx2Matmul;
}
#elif defined(__aarch64__)
MatmulKernels table_of(Isa isa) {
  if (isa == Isa::i8mm) return kI8mmMatmul;
  return isa == Isa::dotprod ? kDotprodMatmul : kNeonMatmul;
}
#endif

}  // namespace

void matmul(std::span<const MatmulArgs> products, ThreadPool& pool, Scratch& scratch) {
  while (!products.empty()) {
    const MatmulArgs& first = products.front();
    size_t count = 1;
    if (first.n == 0 || first.w.rows == 0) {
      // nothing to do
#if defined(__x86_64__) || defined(__aarch64__)
    } else if (first.isa != Isa::scalar && !(first.exact && !is_float(first.w.type))) {
      while (count < products.size() && count < kMostMatrices &&
             same_type(first.w, products[count].w) && products[count].w.rows > 0) {
        ++count;
      }
      const MatmulKernels table = table_of(first.isa);
      Products(products.first(count), table, pool, scratch).run();
#endif
    } else {
      matmul_scalar(first, pool, scratch);
    }
    products = products.subspan(count);
  }
}

}  // namespace speech::cpu
