#include "compute/observed_backend.h"

namespace speech {
namespace {

class ObservedBackend : public Backend {
 public:
  ObservedBackend(std::unique_ptr<Backend> inner, ProductObserver observer)
      : inner_(std::move(inner)), observer_(std::move(observer)) {}

  void matmul(const Tensor& x, std::span<const Product> products) override {
    for (const Product& p : products) observer_(*inner_, x, p.w);
    inner_->matmul(x, products);
  }

  // Everything else as it is.
  std::string name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  int threads() const override { return inner_->threads(); }
  size_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  void write(const Tensor& out, std::span<const float> values) override {
    inner_->write(out, values);
  }
  void read(const Tensor& x, std::span<float> values) override { inner_->read(x, values); }
  void fill(const Tensor& out, float value) override { inner_->fill(out, value); }
  void copy(const Tensor& out, const Tensor& x) override { inner_->copy(out, x); }
  void transpose(const Tensor& out, const Tensor& x) override { inner_->transpose(out, x); }
  void gather(const Tensor& out, const Weight& w, std::span<const int32_t> ids) override {
    inner_->gather(out, w, ids);
  }
  void attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, float scale,
                 const AttentionMask& mask) override {
    inner_->attention(out, q, k, v, scale, mask);
  }
  void store(std::span<const KvWrite> writes) override { inner_->store(writes); }
  void cached_attention(const Tensor& out, const Tensor& q,
                        std::span<const AttentionSequence> sequences, float scale,
                        const AttentionMask& mask) override {
    inner_->cached_attention(out, q, sequences, scale, mask);
  }
  void relative_attention(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& p, const Tensor& u, const Tensor& v_bias, float scale,
                          const AttentionMask& mask) override {
    inner_->relative_attention(out, q, k, v, p, u, v_bias, scale, mask);
  }
  void rope(const Tensor& x, std::span<const int32_t> positions, std::span<const float> frequency,
            float magnitude) override {
    inner_->rope(x, positions, frequency, magnitude);
  }
  void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) override {
    inner_->rms_norm(out, x, weight, eps);
  }
  void layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  float eps) override {
    inner_->layer_norm(out, x, weight, bias, eps);
  }
  void softmax(const Tensor& out, const Tensor& x) override { inner_->softmax(out, x); }
  void log_softmax(const Tensor& out, const Tensor& x) override { inner_->log_softmax(out, x); }
  void activate(const Tensor& out, const Tensor& x, Activation activation) override {
    inner_->activate(out, x, activation);
  }
  void add(const Tensor& out, const Tensor& a, const Tensor& b, float b_scale) override {
    inner_->add(out, a, b, b_scale);
  }
  void multiply(const Tensor& out, const Tensor& a, const Tensor& b) override {
    inner_->multiply(out, a, b);
  }
  void scale(const Tensor& out, const Tensor& x, float factor) override {
    inner_->scale(out, x, factor);
  }
  void add_row(const Tensor& out, const Tensor& a, const Tensor& b) override {
    inner_->add_row(out, a, b);
  }
  void magnitude(const Tensor& out, const Tensor& x) override { inner_->magnitude(out, x); }
  void conv1d(const Tensor& out, const Tensor& x, const Weight& w, const Tensor& bias, int taps,
              int stride, int pad_left, Activation activation) override {
    inner_->conv1d(out, x, w, bias, taps, stride, pad_left, activation);
  }
  void depthwise_conv1d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int pad_left, Activation activation) override {
    inner_->depthwise_conv1d(out, x, w, bias, pad_left, activation);
  }
  void conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, int kernel,
              int stride, int pad, Activation activation) override {
    inner_->conv2d(out, x, w, bias, kernel, stride, pad, activation);
  }
  void depthwise_conv2d(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias,
                        int kernel, int stride, int pad, Activation activation) override {
    inner_->depthwise_conv2d(out, x, w, bias, kernel, stride, pad, activation);
  }
  void lstm_step(const Tensor& h, const Tensor& c, const Tensor& gates) override {
    inner_->lstm_step(h, c, gates);
  }
  void argmax(std::span<int32_t> out, const Tensor& x) override { inner_->argmax(out, x); }

 private:
  std::unique_ptr<Backend> inner_;
  ProductObserver observer_;
};

}  // namespace

std::unique_ptr<Backend> make_observed_backend(std::unique_ptr<Backend> inner,
                                               ProductObserver observer) {
  return std::make_unique<ObservedBackend>(std::move(inner), std::move(observer));
}

}  // namespace speech
