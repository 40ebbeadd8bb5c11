// The CPU backend: checks shapes, cuts each operation into tiles and hands them to the kernels of
// the chosen instruction set.
#include "compute/backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <type_traits>

#include "base/error.h"
#include "base/threads.h"
#include "compute/cpu/decode.h"
#include "compute/cpu/isa.h"
#include "compute/cpu/kernels.h"
#include "compute/cpu/matmul.h"
#include "compute/cpu/scratch.h"
#include "compute/not_a_number.h"

namespace speech {

using namespace cpu;

namespace {

// Values that one tile of an elementwise operation handles: enough that taking a tile costs
// nothing, few enough that a row of a model is shared between threads.
constexpr int64_t kTileValues = 8192;

// A tensor as rows of `cols` values at any address: the outer axes in row-major order.
class Rows {
 public:
  explicit Rows(const Tensor& t) : data_(TensorAccess::data(t)), cols_(t.cols()) {
    for (int axis = 0; axis + 1 < t.rank(); ++axis) {
      if (t.dim(axis) == 1) continue;
      // Axes that lie one inside the other are one.
      if (outer_ > 0 && stride_[outer_ - 1] == t.dim(axis) * t.stride(axis)) {
        dim_[outer_ - 1] *= t.dim(axis);
        stride_[outer_ - 1] = t.stride(axis);
      } else {
        dim_[outer_] = t.dim(axis);
        stride_[outer_++] = t.stride(axis);
      }
    }
    for (int axis = 0; axis < outer_; ++axis) count_ *= dim_[axis];
    if (t.empty()) count_ = 0;
  }

  int64_t count() const { return count_; }
  int64_t cols() const { return cols_; }
  float* operator[](int64_t row) const {
    if (outer_ == 1) return data_ + row * stride_[0];
    float* p = data_;
    for (int axis = outer_ - 1; axis >= 0; --axis) {
      p += row % dim_[axis] * stride_[axis];
      row /= dim_[axis];
    }
    return p;
  }
  bool one_stride() const { return outer_ <= 1; }
  int64_t stride() const { return outer_ == 1 ? stride_[0] : cols_; }
  bool contiguous() const { return one_stride() && (count_ <= 1 || stride() == cols_); }

 private:
  float* data_;
  int64_t cols_, count_ = 1;
  int outer_ = 0;
  int64_t dim_[Tensor::kMaxRank] = {}, stride_[Tensor::kMaxRank] = {};
};

std::string describe(const Tensor& t) {
  return t.empty() ? "empty" : t.shape_text();
}

std::string describe(const Weight& w) {
  return w.empty() ? "empty" : fmt::format("[{}, {}]", w.rows, w.cols);
}

// expect(ok, "matmul", "rows differ", "out", out, "x", x, ...)
void list_shapes(std::string&) {}
template <typename T, typename... Rest>
void list_shapes(std::string& text, const char* name, const T& t, const Rest&... rest) {
  text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, describe(t));
  list_shapes(text, rest...);
}
template <typename... Args>
void expect(bool ok, const char* operation, const char* rule, const Args&... shapes) {
  if (ok) return;
  std::string text;
  list_shapes(text, shapes...);
  fail(Status::internal, "{}: expected {}; got {}", operation, rule, text);
}

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.empty() || b.empty() || a.rank() != b.rank()) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.dim(axis) != b.dim(axis)) return false;
  }
  return true;
}

bool row_of(const Tensor& t, int64_t cols) {
  return !t.empty() && t.size() == cols && t.contiguous();
}
bool none_or_row_of(const Tensor& t, int64_t cols) {
  return t.empty() || row_of(t, cols);
}

float* data(const Tensor& t) {
  return TensorAccess::data(t);
}
float* data_or_null(const Tensor& t) {
  return t.empty() ? nullptr : TensorAccess::data(t);
}

int64_t tiles_of(int64_t count, int64_t tile) {
  return (count + tile - 1) / tile;
}

Precision choose_precision(Precision wanted) {
  const char* forced = std::getenv("SPEECH_PRECISION");
  if (!forced || !*forced) return wanted;
  std::string_view name = forced;
  if (name == "exact") return Precision::exact;
  if (name == "fast") return Precision::fast;
  fail(Status::device, "SPEECH_PRECISION is \"{}\", expected exact or fast", name);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Precision precision)
      : choice_(choose_isa()),
        exact_(choose_precision(precision) == Precision::exact),
        kernels_(cpu::kernels(choice_.isa)),
        pool_(threads <= 0 ? default_threads() : std::min(threads, kMostThreads)),
        scratch_(pool_.threads()) {}

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    int n = pool_.threads();
    return fmt::format("{}, {} thread{}", isa_name(choice_.isa), n, n == 1 ? "" : "s");
  }
  int threads() const override { return pool_.threads(); }
  size_t scratch_bytes() const override {
    return scratch_.bytes() + sizeof(float) * (windows_.capacity() + rope_table_.capacity());
  }

  // ---- host memory ----

  void write(const Tensor& out, std::span<const float> values) override {
    if (out.size() != static_cast<int64_t>(values.size())) {
      fail(Status::internal, "write: {} values into {}", values.size(), describe(out));
    }
    Rows rows(out);
    for (int64_t r = 0; r < rows.count(); ++r) {
      copy_values(rows[r], values.data() + r * rows.cols(), rows.cols());
    }
  }

  void read(const Tensor& x, std::span<float> values) override {
    if (x.size() != static_cast<int64_t>(values.size())) {
      fail(Status::internal, "read: {} values from {}", values.size(), describe(x));
    }
    Rows rows(x);
    for (int64_t r = 0; r < rows.count(); ++r) {
      copy_values(values.data() + r * rows.cols(), rows[r], rows.cols());
    }
  }

  void fill(const Tensor& out, float value) override {
    each("fill", out, [value](float* o, int64_t n) { std::fill_n(o, n, value); });
  }

  void copy(const Tensor& out, const Tensor& x) override {
    each(
        "copy", out, [](float* o, const float* a, int64_t n) { copy_values(o, a, n); }, x);
  }

  void transpose(const Tensor& out, const Tensor& x) override {
    int rank = x.rank();
    expect(rank >= 2 && out.rank() == rank && out.dim(rank - 1) == x.dim(rank - 2) &&
               out.dim(rank - 2) == x.dim(rank - 1) && out.size() == x.size(),
           "transpose", "the last two axes exchanged", "out", out, "x", x);
    for (int axis = 0; axis < rank - 2; ++axis) {
      expect(out.dim(axis) == x.dim(axis), "transpose", "equal leading axes", "out", out, "x", x);
    }
    int64_t a = x.dim(rank - 2), b = x.dim(rank - 1);
    if (x.size() == 0) return;
    Rows from(x), to(out);
    // Squares that stay in the first-level cache: reads and writes both use whole lines.
    constexpr int64_t kSquare = 32;
    int64_t across = tiles_of(b, kSquare), down = tiles_of(a, kSquare);
    run(x.size() / (a * b) * across, [&](int64_t tile, int) {
      int64_t image = tile / across, column = tile % across * kSquare;
      int64_t width = std::min(kSquare, b - column);
      for (int64_t block = 0; block < down; ++block) {
        int64_t row = block * kSquare, height = std::min(kSquare, a - row);
        for (int64_t j = 0; j < width; ++j) {
          float* o = to[image * b + column + j] + row;
          for (int64_t i = 0; i < height; ++i) o[i] = from[image * a + row + i][column + j];
        }
      }
    });
  }

  // ---- products ----

  void matmul(const Tensor& x, std::span<const Product> products) override {
    std::vector<cpu::MatmulArgs>& all = products_;
    std::lock_guard lock(mutex_);
    all.clear();
    for (const auto& [out, w, epilogue] : products) {
      expect(!out.empty() && !x.empty() && !w.empty() && x.cols() == w.cols &&
                 out.cols() == w.rows && out.rows() == x.rows(),
             "matmul", "out [n, m], x [n, k], w [m, k]", "out", out, "x", x, "w", w);
      expect(none_or_row_of(epilogue.bias, w.rows), "matmul", "bias [m]", "bias", epilogue.bias,
             "w", w);
      expect(epilogue.multiply.empty() || same_shape(epilogue.multiply, out), "matmul",
             "multiply like out", "multiply", epilogue.multiply, "out", out);
      expect(epilogue.add.empty() || same_shape(epilogue.add, out), "matmul", "add like out", "add",
             epilogue.add, "out", out);
      cpu::MatmulArgs args;
      args.isa = choice_.isa;
      args.exact = exact_;
      args.n = x.rows();
      args.w = w;
      args.out = matrix("matmul", "out", out, args.out_stride);
      args.x = matrix("matmul", "x", x, args.x_stride);
      args.bias = data_or_null(epilogue.bias);
      args.activation = epilogue.activation;
      args.scale = epilogue.scale;
      if (!epilogue.multiply.empty()) {
        args.multiply = matrix("matmul", "multiply", epilogue.multiply, args.multiply_stride);
      }
      if (!epilogue.add.empty()) {
        args.add = matrix("matmul", "add", epilogue.add, args.add_stride);
      }
      all.push_back(args);
    }
    cpu::matmul(all, pool_, scratch_);
  }

  void gather(const Tensor& out, const Weight& w, std::span<const int32_t> ids) override {
    expect(!out.empty() && !w.empty() && out.cols() == w.cols &&
               out.rows() == static_cast<int64_t>(ids.size()),
           "gather", "out [ids, k], w [m, k]", "out", out, "w", w);
    for (int32_t id : ids) {
      if (id < 0 || id >= w.rows) {
        fail(Status::internal, "gather: row {} of a matrix with {} rows", id, w.rows);
      }
    }
    Rows to(out);
    for (size_t i = 0; i < ids.size(); ++i) decode_weight_row(w, ids[i], to[i]);
  }

  // ---- attention ----

  void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, float scale,
                 const AttentionMask& mask) override {
    if (q.size() > 0) run_attention({attention_args(out, q, k, v, scale, mask)});
  }

  void store(std::span<const KvWrite> writes) override {
    // A tile is some heads of the rows in one block. Keys of one position lie in lines of their
    // own, which have to be fetched first: few of them make a tile.
    struct Part {
      const KvWrite* write;
      int64_t first_block, heads, groups;
    };
    std::vector<Part> parts;
    std::vector<int64_t> counts;
    for (const KvWrite& write : writes) {
      const auto& [out, x] = write;
      expect(x.rank() == 3 && x.dim(0) == out.rows && x.dim(1) == out.heads && x.dim(2) == out.d,
             "store", "x [rows, heads, d] of the cache", "x", x);
      if (out.rows == 0) continue;
      int64_t first = out.first / kKvBlock, last = (out.first + out.rows - 1) / kKvBlock;
      int64_t values = std::min(out.rows, kKvBlock) * out.d;
      int64_t most = out.side == KvSide::keys ? kTileValues / 16 : kTileValues;
      int64_t heads = std::clamp<int64_t>(most / std::max<int64_t>(1, values), 1, out.heads);
      int64_t groups = tiles_of(out.heads, heads);
      parts.push_back({&write, first, heads, groups});
      counts.push_back((last - first + 1) * groups);
    }
    std::lock_guard lock(mutex_);
    run_parts(counts, [&](size_t i, int64_t tile, int) {
      const Part& part = parts[i];
      const KvRows& out = part.write->out;
      int64_t block = part.first_block + tile / part.groups;
      int64_t head = tile % part.groups * part.heads;
      int64_t end = std::min(out.heads, head + part.heads);
      if (out.type == KvType::f16) {
        store_block<uint16_t>(*part.write, block, head, end);
      } else {
        store_block<float>(*part.write, block, head, end);
      }
    });
  }

  void cached_attention(const Tensor& out, const Tensor& q,
                        std::span<const AttentionSequence> sequences, float scale,
                        const AttentionMask& mask) override {
    expect(q.rank() == 3 && same_shape(out, q), "attention", "out and q [n, heads, d]", "out", out,
           "q", q);
    std::vector<AttentionArgs> calls;
    int64_t row = 0;
    for (const AttentionSequence& s : sequences) {
      if (s.rows < 0 || s.rows > q.dim(0) - row) {
        fail(Status::internal, "attention: the sequences have more rows than q {}", describe(q));
      }
      if (s.rows == 0) continue;
      if (s.k.type != s.v.type || s.k.rows != s.v.rows || s.k.heads != s.v.heads ||
          s.k.d != s.v.d || s.k.side != KvSide::keys || s.v.side != KvSide::values ||
          s.k.first != 0 || s.v.first != 0) {
        fail(Status::internal, "attention: keys and values of a cache differ in shape or type");
      }
      AttentionMask own = mask;
      own.query_offset = s.query_offset;
      AttentionArgs args =
          attention_args(out.slice(0, row, row + s.rows), q.slice(0, row, row + s.rows), s.k.rows,
                         s.k.heads, s.k.d, scale, own);
      args.k_blocks = s.k.blocks;
      args.v_blocks = s.v.blocks;
      args.k_offset = s.k.offset;
      args.v_offset = s.v.offset;
      args.half = s.k.type == KvType::f16;
      calls.push_back(args);
      row += s.rows;
    }
    if (row != q.dim(0)) {
      fail(Status::internal, "attention: the sequences have {} rows, q is {}", row, describe(q));
    }
    run_attention(calls);
  }

  void relative_attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& p, const Tensor& u, const Tensor& v_bias, float scale,
                          const AttentionMask& mask) override {
    const char* op = "relative_attention";
    expect(q.rank() == 3 && same_shape(out, q), op, "out and q [n, heads, d]", "out", out, "q", q);
    if (q.size() == 0) return;
    AttentionArgs args = attention_args(out, q, k, v, scale, mask);
    expect(args.kv_heads == args.heads, op, "as many kv heads as heads", "q", q, "k", k);
    expect(p.rank() == 3 && p.dim(1) == args.heads && p.dim(2) == args.d, op, "p [r, heads, d]",
           "p", p, "q", q);
    expect(u.rank() == 2 && u.dim(0) == args.heads && u.dim(1) == args.d && same_shape(u, v_bias),
           op, "u and v_bias [heads, d]", "u", u, "v_bias", v_bias, "q", q);
    // The table is the full one, or just the window.
    bool windowed = args.left != kUnlimited && args.right != kUnlimited;
    if (p.dim(0) == 2 * args.keys - 1) {
      args.p_first = args.keys - 1;
    } else if (windowed && p.dim(0) == args.left + args.right + 1) {
      args.p_first = args.left;
    } else {
      expect(false, op, "p of 2 s - 1 rows, or of left + right + 1", "p", p, "k", k);
    }
    // Distances that a full table lacks would be read by queries beyond the keys.
    int64_t farthest = std::min(args.left, args.queries - 1 + args.query_offset);
    int64_t ahead = std::min(args.right, args.keys - 1 - args.query_offset);
    if (farthest > args.p_first || ahead > p.dim(0) - 1 - args.p_first) {
      fail(Status::internal, "{}: positions of {} queries from {} leave the table p {}", op,
           args.queries, args.query_offset, describe(p));
    }
    args.p = data(p);
    args.p_row = p.stride(0);
    args.p_head = p.stride(1);
    args.p_last = p.dim(0) - 1;
    args.u = data(u);
    args.u_head = u.stride(0);
    args.v_bias = data(v_bias);
    args.v_bias_head = v_bias.stride(0);

    std::vector<AttentionArgs> calls;
    int64_t global_rows = std::clamp<int64_t>(args.global - args.query_offset, 0, args.queries);
    if (global_rows > 0) {
      AttentionMask all;
      all.query_offset = mask.query_offset;
      calls.push_back(attention_args(out.slice(0, 0, global_rows), q.slice(0, 0, global_rows), k, v,
                                     scale, all));
    }
    if (global_rows < args.queries) {
      args.out += global_rows * args.out_row;
      args.q += global_rows * args.q_row;
      args.queries -= global_rows;
      args.query_offset += global_rows;
      calls.push_back(args);
    }
    run_attention(calls);
  }

  void rope(const Tensor& x, std::span<const int32_t> positions,
            std::span<const float> inverse_frequency, float magnitude) override {
    int64_t half = static_cast<int64_t>(inverse_frequency.size());
    expect(
        x.rank() == 3 && x.dim(0) == static_cast<int64_t>(positions.size()) && x.dim(2) == 2 * half,
        "rope", "x [positions, heads, 2 * frequencies]", "x", x);
    if (x.size() == 0) return;
    std::lock_guard lock(mutex_);
    make_rope_table(positions, inverse_frequency, magnitude);
    int64_t heads = x.dim(1);
    float* base = data(x);
    int64_t rows = std::max<int64_t>(1, kTileValues / (heads * x.dim(2)));
    pool_.run(tiles_of(x.dim(0), rows), [&](int64_t tile, int) {
      int64_t end = std::min(x.dim(0), (tile + 1) * rows);
      for (int64_t r = tile * rows; r < end; ++r) {
        const float* table = rope_table_.data() + r * 2 * half;
        for (int64_t head = 0; head < heads; ++head) {
          kernels_.rope(base + r * x.stride(0) + head * x.stride(1), table, table + half, half);
        }
      }
    });
  }

  // ---- rows ----

  void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) override {
    expect(none_or_row_of(weight, x.cols()), "rms_norm", "weight [cols]", "weight", weight, "x", x);
    const float* w = data_or_null(weight);
    each_row("rms_norm", out, x, [=, this](float* o, const float* a, int64_t n) {
      kernels_.rms_norm(o, a, w, eps, n);
    });
  }

  void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  float eps) override {
    expect(none_or_row_of(weight, x.cols()) && none_or_row_of(bias, x.cols()), "layer_norm",
           "weight and bias [cols]", "weight", weight, "bias", bias, "x", x);
    const float *w = data_or_null(weight), *b = data_or_null(bias);
    each_row("layer_norm", out, x, [=, this](float* o, const float* a, int64_t n) {
      kernels_.layer_norm(o, a, w, b, eps, n);
    });
  }

  void softmax(const Tensor& out, const Tensor& x) override {
    each_row("softmax", out, x, kernels_.softmax);
  }

  void log_softmax(const Tensor& out, const Tensor& x) override {
    each_row("log_softmax", out, x, kernels_.log_softmax);
  }

  // ---- elementwise ----

  void activate(const Tensor& out, const Tensor& x, Activation activation) override {
    each(
        "activate", out,
        [=, this](float* o, const float* a, int64_t n) { kernels_.activate(o, a, n, activation); },
        x);
  }

  void add(const Tensor& out, const Tensor& a, const Tensor& b, float b_scale) override {
    each(
        "add", out,
        [=, this](float* o, const float* p, const float* q, int64_t n) {
          kernels_.add(o, p, q, b_scale, n);
        },
        a, b);
  }

  void multiply(const Tensor& out, const Tensor& a, const Tensor& b) override {
    each("multiply", out, kernels_.multiply, a, b);
  }

  void scale(const Tensor& out, const Tensor& x, float factor) override {
    each(
        "scale", out,
        [=, this](float* o, const float* a, int64_t n) { kernels_.scale(o, a, factor, n); }, x);
  }

  void add_row(const Tensor& out, const Tensor& a, const Tensor& b) override {
    expect(row_of(b, a.cols()), "add_row", "b [cols]", "b", b, "a", a);
    const float* row = data(b);
    each_row("add_row", out, a,
             [=, this](float* o, const float* p, int64_t n) { kernels_.add(o, p, row, 1.0f, n); });
  }

  void magnitude(const Tensor& out, const Tensor& x) override {
    expect(!out.empty() && !x.empty() && x.cols() == 2 * out.cols() && x.rows() == out.rows(),
           "magnitude", "out [n, c], x [n, 2 c]", "out", out, "x", x);
    Rows to(out), from(x);
    int64_t n = out.cols();
    rows_loop(to.count(), n,
              [&](int64_t r) { kernels_.magnitude(to[r], from[r], from[r] + n, n); });
  }

  // ---- convolutions ----

  void conv1d(const Tensor& out, const Tensor& x, const Weight& w, const Tensor& bias, int taps,
              int stride, int pad_left, Activation activation) override {
    const char* op = "conv1d";
    expect(out.rank() == 2 && x.rank() == 2 && !w.empty() && taps >= 1 && stride >= 1 &&
               pad_left >= 0 && w.cols == x.dim(1) * taps && out.dim(1) == w.rows,
           op, "out [t', co], x [t, ci], w [co, ci * taps]", "out", out, "x", x, "w", w);
    expect(none_or_row_of(bias, w.rows), op, "bias [co]", "bias", bias, "w", w);
    if (out.size() == 0) return;
    MatmulArgs args;
    args.isa = choice_.isa;
    args.w = w;
    args.out_stride = out.stride(0);
    args.bias = data_or_null(bias);
    args.activation = activation;
    int64_t t = x.dim(0), channels = x.dim(1), rows = out.dim(0);
    std::lock_guard lock(mutex_);
    bool inside = pad_left == 0 && (rows - 1) * stride + taps <= t;
    if (inside && (taps == 1 || (channels == 1 && x.stride(0) == 1))) {
      args.out = data(out);
      args.x = data(x);
      args.x_stride = stride * x.stride(0);
      args.n = rows;
      cpu::matmul({&args, 1}, pool_, scratch_);
      return;
    }
    // The windows are laid out as the weights are ([ci][tap]), some rows at a time, and multiplied.
    int64_t width = channels * taps;
    int64_t chunk = std::clamp<int64_t>((int64_t{1} << 20) / width, 16, 4096);
    chunk = std::min(chunk, rows);
    std::vector<float>& windows = windows_;
    if (static_cast<int64_t>(windows.size()) < chunk * width) windows.resize(chunk * width);
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      int64_t count = std::min(chunk, rows - begin);
      pool_.run(tiles_of(count, 8), [&](int64_t tile, int) {
        for (int64_t r = tile * 8; r < std::min(count, tile * 8 + 8); ++r) {
          float* window = windows.data() + r * width;
          for (int tap = 0; tap < taps; ++tap) {
            int64_t at = (begin + r) * stride + tap - pad_left;
            const float* from = data(x) + at * x.stride(0);
            if (at < 0 || at >= t) {
              for (int64_t c = 0; c < channels; ++c) window[c * taps + tap] = 0;
            } else {
              for (int64_t c = 0; c < channels; ++c) window[c * taps + tap] = from[c];
            }
          }
        }
      });
      args.out = data(out) + begin * args.out_stride;
      args.x = windows.data();
      args.x_stride = width;
      args.n = count;
      cpu::matmul({&args, 1}, pool_, scratch_);
    }
  }

  void depthwise_conv1d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int pad_left, Activation activation) override {
    const char* op = "depthwise_conv1d";
    expect(out.rank() == 2 && x.rank() == 2 && w.rank() == 2 && out.dim(1) == x.dim(1) &&
               w.dim(0) == x.dim(1) && w.contiguous() && pad_left >= 0,
           op, "out [t', c], x [t, c], w [c, taps]", "out", out, "x", x, "w", w);
    ConvArgs args = conv_args(op, out, x, bias, activation);
    args.w = data(w);
    args.kernel_h = 1;
    args.kernel_w = w.dim(1);
    args.pad_left = pad_left;
    run_conv(args, 1, kernels_.depthwise);
  }

  void conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, int kernel,
              int stride, int pad, Activation activation) override {
    const char* op = "conv2d";
    expect(out.rank() == 3 && x.rank() == 3 && w.contiguous() && kernel >= 1 && stride >= 1 &&
               pad >= 0 && w.size() == out.dim(2) * x.dim(2) * kernel * kernel,
           op, "out [h', w', co], x [h, w, ci], w [co, ci * kernel * kernel]", "out", out, "x", x,
           "w", w);
    ConvArgs args = conv_args(op, out, x, bias, activation);
    set_square(op, args, w, kernel, stride, pad, out, x);
    run_conv(args, args.in_channels, kernels_.conv2d);
  }

  void depthwise_conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int kernel, int stride, int pad, Activation activation) override {
    const char* op = "depthwise_conv2d";
    expect(out.rank() == 3 && x.rank() == 3 && w.contiguous() && kernel >= 1 && stride >= 1 &&
               pad >= 0 && out.dim(2) == x.dim(2) && w.size() == x.dim(2) * kernel * kernel,
           op, "out [h', w', c], x [h, w, c], w [c, kernel, kernel]", "out", out, "x", x, "w", w);
    ConvArgs args = conv_args(op, out, x, bias, activation);
    set_square(op, args, w, kernel, stride, pad, out, x);
    run_conv(args, 1, kernels_.depthwise);
  }

  // ---- recurrent ----

  void lstm_step(const Tensor& h, const Tensor& c, const Tensor& gates) override {
    expect(same_shape(h, c) && gates.cols() == 4 * c.cols() && gates.rows() == c.rows(),
           "lstm_step", "h and c [n, h], gates [n, 4 h]", "h", h, "c", c, "gates", gates);
    Rows to(h), state(c), from(gates);
    rows_loop(to.count(), 8 * to.cols(),
              [&](int64_t r) { kernels_.lstm_step(to[r], state[r], from[r], to.cols()); });
  }

  // ---- choice ----

  void argmax(std::span<int32_t> out, const Tensor& x) override {
    Rows rows(x);
    expect(rows.count() == static_cast<int64_t>(out.size()) && rows.cols() > 0, "argmax",
           "one index per row of at least one value", "x", x);
    rows_loop(rows.count(), rows.cols(), [&](int64_t r) {
      int64_t best = kernels_.argmax(rows[r], rows.cols());
      if (best < 0) throw NotANumber(fmt::format("NaN in row {} of {}", r, describe(x)));
      out[r] = static_cast<int32_t>(best);
    });
  }

 private:
  static void copy_values(float* out, const float* x, int64_t n) {
    std::memcpy(out, x, n * sizeof(float));
  }

  template <typename Body>
  void run(int64_t tiles, Body&& body) {
    std::lock_guard lock(mutex_);
    pool_.run(tiles, body);
  }

  // body(row) for each of `rows` rows that cost about `values` values each.
  template <typename Body>
  void rows_loop(int64_t rows, int64_t values, Body&& body) {
    int64_t per_tile = std::max<int64_t>(1, kTileValues / std::max<int64_t>(1, values));
    run(tiles_of(rows, per_tile), [&](int64_t tile, int) {
      int64_t end = std::min(rows, (tile + 1) * per_tile);
      for (int64_t r = tile * per_tile; r < end; ++r) body(r);
    });
  }

  template <typename Body>
  void each_row(const char* op, const Tensor& out, const Tensor& x, const Body& body) {
    expect(same_shape(out, x), op, "out like x", "out", out, "x", x);
    Rows to(out), from(x);
    rows_loop(to.count(), to.cols(), [&](int64_t r) { body(to[r], from[r], to.cols()); });
  }

  // body(out, inputs..., n) over all values, in pieces: rows, or runs of contiguous memory.
  template <typename Body, typename... Inputs>
  void each(const char* op, const Tensor& out, const Body& body, const Inputs&... inputs) {
    expect(!out.empty() && (same_shape(out, inputs) && ...), op, "equal shapes", "out", out,
           (sizeof...(inputs) ? "in" : "out"), first_or(out, inputs...));
    Rows to(out);
    bool flat = to.contiguous() && (Rows(inputs).contiguous() && ...);
    int64_t cols = to.cols(), rows = to.count();
    if (cols == 0 || rows == 0) return;
    if (flat) {
      cols *= rows;
      rows = 1;
    }
    auto from = std::make_tuple(Rows(inputs)...);
    // Long rows are cut at multiples of the tile.
    int64_t pieces = tiles_of(cols, kTileValues);
    rows_loop(rows * pieces, std::min(cols, kTileValues), [&](int64_t piece) {
      int64_t row = piece / pieces, begin = piece % pieces * kTileValues;
      int64_t n = std::min(kTileValues, cols - begin);
      std::apply([&](const auto&... in) { body(to[row] + begin, (in[row] + begin)..., n); }, from);
    });
  }
  static const Tensor& first_or(const Tensor& out) { return out; }
  template <typename... Rest>
  static const Tensor& first_or(const Tensor&, const Tensor& first, const Rest&...) {
    return first;
  }

  // The tensor as a matrix with one row stride.
  static float* matrix(const char* op, const char* name, const Tensor& t, int64_t& stride) {
    Rows rows(t);
    if (!rows.one_stride()) {
      fail(Status::internal, "{}: the rows of {} {} do not lie at equal distances", op, name,
           describe(t));
    }
    stride = rows.stride();
    return data(t);
  }

  // The rows of one block, heads [head, end). T: float, or uint16_t for the bits of f16.
  template <typename T>
  void store_block(const KvWrite& write, int64_t block, int64_t head, int64_t end) {
    constexpr bool kHalf = std::is_same_v<T, uint16_t>;
    const auto& [out, x] = write;
    int64_t d = out.d, first = std::max(out.first, block * kKvBlock);
    int64_t last = std::min(out.first + out.rows, (block + 1) * kKvBlock);
    T* base = reinterpret_cast<T*>(out.blocks[block] + out.offset);
    std::vector<T> rounded(kHalf ? static_cast<size_t>(d) : 0);
    for (; head < end; ++head) {
      T* to = base + head * kKvBlock * d;
      if (out.side == KvSide::keys) {
        for (int64_t c = 0; c < d; ++c) {
          __builtin_prefetch(to + c * kKvBlock + first - block * kKvBlock, 1);
        }
      }
      for (int64_t position = first; position < last; ++position) {
        const float* row = data(x) + (position - out.first) * x.stride(0) + head * x.stride(1);
        const T* values;
        if constexpr (kHalf) {
          kernels_.to_half(rounded.data(), row, d);
          values = rounded.data();
        } else {
          values = row;
        }
        int64_t at = position - block * kKvBlock;
        if (out.side == KvSide::values) {
          std::copy_n(values, d, to + at * d);
        } else {
          for (int64_t c = 0; c < d; ++c) to[c * kKvBlock + at] = values[c];
        }
      }
    }
  }

  static AttentionArgs attention_args(const Tensor& out, const Tensor& q, const Tensor& k,
                                      const Tensor& v, float scale, const AttentionMask& mask) {
    expect(k.rank() == 3 && same_shape(k, v), "attention", "k and v [s, kv_heads, d]", "k", k, "v",
           v);
    AttentionArgs args = attention_args(out, q, k.dim(0), k.dim(1), k.dim(2), scale, mask);
    args.k = data(k);
    args.v = data(v);
    args.k_row = k.stride(0);
    args.k_head = k.stride(1);
    args.v_row = v.stride(0);
    args.v_head = v.stride(1);
    return args;
  }

  // Without keys and values.
  static AttentionArgs attention_args(const Tensor& out, const Tensor& q, int64_t keys,
                                      int64_t kv_heads, int64_t d, float scale,
                                      const AttentionMask& mask) {
    expect(q.rank() == 3 && same_shape(out, q), "attention", "out and q [n, heads, d]", "out", out,
           "q", q);
    if (d != q.dim(2) || kv_heads <= 0 || q.dim(1) % kv_heads != 0) {
      fail(Status::internal, "attention: {} kv heads of {} values for q {}", kv_heads, d,
           describe(q));
    }
    AttentionArgs args = {};
    args.out = data(out);
    args.q = data(q);
    args.out_row = out.stride(0);
    args.out_head = out.stride(1);
    args.q_row = q.stride(0);
    args.q_head = q.stride(1);
    args.queries = q.dim(0);
    args.keys = keys;
    args.heads = q.dim(1);
    args.kv_heads = kv_heads;
    args.d = q.dim(2);
    args.scale = scale;
    args.query_offset = mask.query_offset;
    args.left = mask.window_left < 0 ? kUnlimited : mask.window_left;
    args.right = mask.window_right < 0 ? kUnlimited : mask.window_right;
    if (mask.causal) args.right = 0;
    args.global = std::min(mask.global_keys, args.keys);
    if (mask.query_offset < 0 || mask.global_keys < 0 || (mask.causal && mask.global_keys > 0)) {
      fail(Status::internal, "attention: query offset {}, {} global keys{}", mask.query_offset,
           mask.global_keys, mask.causal ? " with a causal mask" : "");
    }
    // Every query must see a key: a softmax over nothing has no value. The last query's window
    // starts last.
    int64_t last = args.queries - 1 + args.query_offset;
    if (args.keys == 0 || (args.global == 0 && last - args.left >= args.keys)) {
      fail(Status::internal, "attention: a query at position {} sees none of {} keys", last,
           args.keys);
    }
    return args;
  }

  void run_attention(const std::vector<AttentionArgs>& calls) {
    std::lock_guard lock(mutex_);
    size_t scratch = 0;
    std::vector<int64_t> counts;
    for (const AttentionArgs& args : calls) {
      scratch = std::max(scratch, kernels_.attention_scratch(args));
      counts.push_back(tiles_of(args.queries, kernels_.attention_tile(args)) * args.kv_heads);
    }
    scratch_.reserve_threads(scratch);
    run_parts(counts, [&](size_t i, int64_t tile, int thread) {
      const AttentionArgs& args = calls[i];
      int64_t rows = kernels_.attention_tile(args), row_tiles = counts[i] / args.kv_heads;
      // Late tiles of a causal prompt see the most keys: they go first, so that no thread is left
      // with a long one at the end.
      int64_t row = (row_tiles - 1 - tile / args.kv_heads) * rows;
      kernels_.attention(args, tile % args.kv_heads, row, std::min(args.queries, row + rows),
                         scratch_.thread(thread));
    });
  }

  // One loop over the tiles of several parts, counts[i] of part i: body(part, tile of it, thread).
  template <typename Body>
  void run_parts(std::span<const int64_t> counts, const Body& body) {
    std::vector<int64_t> ends(counts.size());
    std::partial_sum(counts.begin(), counts.end(), ends.begin());
    pool_.run(ends.empty() ? 0 : ends.back(), [&](int64_t tile, int thread) {
      auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), tile) - ends.begin());
      body(i, tile - (ends[i] - counts[i]), thread);
    });
  }

  // cos and sin of each row of positions, kept for the next calls: every layer asks for the same.
  void make_rope_table(std::span<const int32_t> positions, std::span<const float> frequency,
                       float magnitude) {
    if (magnitude == rope_magnitude_ && std::ranges::equal(positions, rope_positions_) &&
        std::ranges::equal(frequency, rope_frequency_)) {
      return;
    }
    rope_magnitude_ = magnitude;
    rope_positions_.assign(positions.begin(), positions.end());
    rope_frequency_.assign(frequency.begin(), frequency.end());
    int64_t half = static_cast<int64_t>(frequency.size());
    rope_table_.resize(positions.size() * 2 * half);
    pool_.run(static_cast<int64_t>(positions.size()), [&](int64_t r, int) {
      float* row = rope_table_.data() + r * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        float angle = static_cast<float>(positions[r]) * frequency[i];
        row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * magnitude;
        row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * magnitude;
      }
    });
  }

  // A time axis is an image of one row.
  static ConvArgs conv_args(const char* op, const Tensor& out, const Tensor& x, const Tensor& bias,
                            Activation activation) {
    bool image = x.rank() == 3;
    ConvArgs args = {};
    args.out = data(out);
    args.x = data(x);
    args.bias = data_or_null(bias);
    args.activation = activation;
    args.h = image ? x.dim(0) : 1;
    args.x_row = image ? x.stride(0) : 0;
    args.out_h = image ? out.dim(0) : 1;
    args.out_row = image ? out.stride(0) : 0;
    args.w_in = x.dim(image);
    args.x_col = x.stride(image);
    args.out_w = out.dim(image);
    args.out_col = out.stride(image);
    args.in_channels = x.dim(image + 1);
    args.out_channels = out.dim(image + 1);
    args.kernel_h = args.kernel_w = args.stride_h = args.stride_w = 1;
    expect(none_or_row_of(bias, args.out_channels), op, "bias [co]", "bias", bias, "out", out);
    return args;
  }

  static void set_square(const char* op, ConvArgs& args, const Tensor& w, int kernel, int stride,
                         int pad, const Tensor& out, const Tensor& x) {
    args.w = data(w);
    args.kernel_h = args.kernel_w = kernel;
    args.stride_h = args.stride_w = stride;
    args.pad_top = args.pad_left = pad;
    expect(args.out_h == (args.h + 2 * pad - kernel) / stride + 1 &&
               args.out_w == (args.w_in + 2 * pad - kernel) / stride + 1 &&
               args.h + 2 * pad >= kernel && args.w_in + 2 * pad >= kernel,
           op, "h' = (h + 2 pad - kernel) / stride + 1, w' likewise", "out", out, "x", x);
  }

  void run_conv(ConvArgs args, int64_t filter_channels, decltype(Kernels::conv2d) kernel) {
    if (args.out_h * args.out_w * args.out_channels == 0) return;
    std::lock_guard lock(mutex_);
    args.filter_channels = filter_channels;
    scratch_.reserve_shared(kernels_.packed_bytes(args));
    args.packed = scratch_.shared_as<float>();
    int64_t block = kernels_.conv_channels;
    pool_.run(tiles_of(args.out_channels, block), [&](int64_t tile, int) {
      kernels_.pack_filters(args, tile * block, std::min(args.out_channels, (tile + 1) * block));
    });
    // Tiles: all channels that lie side by side, as long as their filters stay in the second-level
    // cache, times some output places; whole rows of an image where they are short.
    constexpr int64_t kValues = 32768, kFilters = 65536;
    int64_t taps = args.kernel_h * args.kernel_w * filter_channels;
    int64_t blocks = std::max<int64_t>(1, kFilters / (taps * block));
    int64_t step_c = std::min(blocks * block, args.out_channels);
    int64_t places = std::max<int64_t>(1, kValues / step_c);
    int64_t step_x = std::min(args.out_w, places);
    int64_t step_y = std::max<int64_t>(1, places / step_x);
    int64_t tiles_c = tiles_of(args.out_channels, step_c), tiles_x = tiles_of(args.out_w, step_x);
    int64_t tiles_y = tiles_of(args.out_h, step_y);
    pool_.run(tiles_c * tiles_x * tiles_y, [&](int64_t tile, int) {
      int64_t c = tile % tiles_c * step_c;
      int64_t x = tile / tiles_c % tiles_x * step_x;
      int64_t y = tile / tiles_c / tiles_x * step_y;
      kernel(args, c, std::min(args.out_channels, c + step_c), y, std::min(args.out_h, y + step_y),
             x, std::min(args.out_w, x + step_x));
    });
  }

  IsaChoice choice_;
  const bool exact_;
  const Kernels& kernels_;
  ThreadPool pool_;
  Scratch scratch_;
  // One operation at a time: requests on several threads may share a backend.
  std::mutex mutex_;
  std::vector<cpu::MatmulArgs> products_;  // of the call at hand
  std::vector<float> windows_;             // of conv1d
  std::vector<int32_t> rope_positions_;
  std::vector<float> rope_frequency_, rope_table_;
  float rope_magnitude_ = 0;
};

}  // namespace

namespace cpu {

const Kernels& kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512 || isa == Isa::amx) return kAvx512Kernels;
  if (isa == Isa::avx2) return kAvx2Kernels;
#elif defined(__aarch64__)
  if (isa != Isa::scalar) return kNeonKernels;
#endif
  (void)isa;
  return kScalarKernels;
}

}  // namespace cpu

CpuReport cpu_report() {
  CpuReport report;
  report.processor = processor_name();
  for (Isa isa : runnable_isas()) report.available.push_back(isa_name(isa));
  IsaChoice choice = choose_isa();
  report.chosen = isa_name(choice.isa);
  report.reason = choice.reason;
  report.default_threads = default_threads();
  return report;
}

std::unique_ptr<Backend> make_cpu_backend(int threads, Precision precision) {
  return std::make_unique<CpuBackend>(threads, precision);
}

}  // namespace speech
