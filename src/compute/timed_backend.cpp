#include "compute/timed_backend.h"

#include <algorithm>
#include <chrono>

namespace speech {
namespace {

constexpr int64_t kFewRows = 16;

// Pairs of a query and a key that it sees, of `rows` queries behind `offset` keys.
double visible_pairs(const AttentionMask& mask, int64_t rows, int64_t keys, int64_t offset) {
  const double n = static_cast<double>(rows);
  if (mask.causal) return n * static_cast<double>(offset) + n * (n + 1) / 2;
  if (mask.window_left >= 0 && mask.window_right >= 0) {
    keys = std::min(keys, mask.window_left + mask.window_right + 1);
  }
  return n * static_cast<double>(keys);
}

class TimedBackend : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> inner, OpTimes& times)
      : inner_(std::move(inner)), times_(times) {}

  std::string name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  int threads() const override { return inner_->threads(); }
  size_t scratch_bytes() const override { return inner_->scratch_bytes(); }

  void write(const Tensor& out, std::span<const float> values) override {
    run("copy", 0, [&] { inner_->write(out, values); });
  }
  void read(const Tensor& x, std::span<float> values) override {
    run("copy", 0, [&] { inner_->read(x, values); });
  }
  void fill(const Tensor& out, float value) override {
    run("copy", 0, [&] { inner_->fill(out, value); });
  }
  void copy(const Tensor& out, const Tensor& x) override {
    run("copy", 0, [&] { inner_->copy(out, x); });
  }
  void transpose(const Tensor& out, const Tensor& x) override {
    run("copy", 0, [&] { inner_->transpose(out, x); });
  }
  void matmul(const Tensor& x, std::span<const Product> products) override {
    const char* kind = x.rows() < kFewRows ? "matmul, few rows" : "matmul";
    double outputs = 0;
    for (const Product& p : products) {
      times_.products.push_back({x.rows(), p.w});
      times_.entries[kind].bytes += static_cast<double>(p.w.bytes());
      outputs += static_cast<double>(x.rows() * p.w.rows);
    }
    run(kind, 2 * outputs * static_cast<double>(x.cols()), [&] { inner_->matmul(x, products); });
  }
  void gather(const Tensor& out, const Weight& w, std::span<const int32_t> ids) override {
    run("gather", 0, [&] { inner_->gather(out, w, ids); });
  }
  void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, float scale,
                 const AttentionMask& mask) override {
    const double width = static_cast<double>(q.size() / q.dim(0));
    run("attention", 4 * width * visible_pairs(mask, q.dim(0), k.dim(0), mask.query_offset),
        [&] { inner_->attention(out, q, k, v, scale, mask); });
  }
  void store(std::span<const KvWrite> writes) override {
    run("copy", 0, [&] { inner_->store(writes); });
  }
  void cached_attention(const Tensor& out, const Tensor& q,
                        std::span<const AttentionSequence> sequences, float scale,
                        const AttentionMask& mask) override {
    double pairs = 0;
    for (const AttentionSequence& s : sequences) {
      pairs += visible_pairs(mask, s.rows, s.k.rows, s.query_offset);
    }
    run("attention", 4 * static_cast<double>(q.size() / q.dim(0)) * pairs,
        [&] { inner_->cached_attention(out, q, sequences, scale, mask); });
  }
  void relative_attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& p, const Tensor& u, const Tensor& v_bias, float scale,
                          const AttentionMask& mask) override {
    const double width = static_cast<double>(q.size() / q.dim(0));
    run("relative attention",
        6 * width * visible_pairs(mask, q.dim(0), k.dim(0), mask.query_offset),
        [&] { inner_->relative_attention(out, q, k, v, p, u, v_bias, scale, mask); });
  }
  void rope(const Tensor& x, std::span<const int32_t> positions, std::span<const float> frequency,
            float magnitude) override {
    run("rope", 0, [&] { inner_->rope(x, positions, frequency, magnitude); });
  }
  void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) override {
    run("norm", 0, [&] { inner_->rms_norm(out, x, weight, eps); });
  }
  void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  float eps) override {
    run("norm", 0, [&] { inner_->layer_norm(out, x, weight, bias, eps); });
  }
  void softmax(const Tensor& out, const Tensor& x) override {
    run("softmax", 0, [&] { inner_->softmax(out, x); });
  }
  void log_softmax(const Tensor& out, const Tensor& x) override {
    run("softmax", 0, [&] { inner_->log_softmax(out, x); });
  }
  void activate(const Tensor& out, const Tensor& x, Activation activation) override {
    run("elementwise", 0, [&] { inner_->activate(out, x, activation); });
  }
  void add(const Tensor& out, const Tensor& a, const Tensor& b, float b_scale) override {
    run("elementwise", 0, [&] { inner_->add(out, a, b, b_scale); });
  }
  void multiply(const Tensor& out, const Tensor& a, const Tensor& b) override {
    run("elementwise", 0, [&] { inner_->multiply(out, a, b); });
  }
  void scale(const Tensor& out, const Tensor& x, float factor) override {
    run("elementwise", 0, [&] { inner_->scale(out, x, factor); });
  }
  void add_row(const Tensor& out, const Tensor& a, const Tensor& b) override {
    run("elementwise", 0, [&] { inner_->add_row(out, a, b); });
  }
  void magnitude(const Tensor& out, const Tensor& x) override {
    run("elementwise", 0, [&] { inner_->magnitude(out, x); });
  }
  void conv1d(const Tensor& out, const Tensor& x, const Weight& w, const Tensor& bias, int taps,
              int stride, int pad_left, Activation activation) override {
    run("conv1d", 0, [&] { inner_->conv1d(out, x, w, bias, taps, stride, pad_left, activation); });
  }
  void depthwise_conv1d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int pad_left, Activation activation) override {
    run("depthwise conv1d", 0,
        [&] { inner_->depthwise_conv1d(out, x, w, bias, pad_left, activation); });
  }
  void conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, int kernel,
              int stride, int pad, Activation activation) override {
    run("conv2d", 0, [&] { inner_->conv2d(out, x, w, bias, kernel, stride, pad, activation); });
  }
  void depthwise_conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int kernel, int stride, int pad, Activation activation) override {
    run("depthwise conv2d", 0,
        [&] { inner_->depthwise_conv2d(out, x, w, bias, kernel, stride, pad, activation); });
  }
  void lstm_step(const Tensor& h, const Tensor& c, const Tensor& gates) override {
    run("lstm step", 0, [&] { inner_->lstm_step(h, c, gates); });
  }
  void argmax(std::span<int32_t> out, const Tensor& x) override {
    run("argmax", 0, [&] { inner_->argmax(out, x); });
  }

 private:
  template <typename Call>
  void run(const char* op, double operations, Call&& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    OpTimes::Entry& entry = times_.entries[op];
    ++entry.calls;
    entry.seconds += time.count();
    entry.operations += operations;
  }

  std::unique_ptr<Backend> inner_;
  OpTimes& times_;
};

}  // namespace

double OpTimes::total() const {
  double sum = 0;
  for (const auto& [name, entry] : entries) sum += entry.seconds;
  return sum;
}

double OpTimes::product_bytes() const {
  double sum = 0;
  for (const auto& [name, entry] : entries) sum += entry.bytes;
  return sum;
}

std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend> inner, OpTimes& times) {
  return std::make_unique<TimedBackend>(std::move(inner), times);
}

}  // namespace speech
