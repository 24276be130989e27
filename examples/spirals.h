// The model and data of the numbered examples: a small net that separates two interleaved spirals.
#pragma once

#include <cmath>

#include <torch/torch.h>

// Points in the plane, each on one of two spirals. The same on every rank.
class Spirals : public torch::data::Dataset<Spirals> {
 public:
  explicit Spirals(int64_t count, int64_t seed = 7) {
    const auto index = torch::arange(count, torch::kDouble) + static_cast<double>(seed * count);
    const auto scattered = [&](double step) { return torch::frac(index * step); };
    labels_ = torch::arange(count) % 2;
    const auto t = scattered(0.754877666) * 3.0 + 0.3;
    const auto angle = t * 3.0 + labels_ * M_PI + (scattered(0.569840291) - 0.5) * 0.2;
    points_ = torch::stack({t * torch::cos(angle), t * torch::sin(angle)}, 1).to(torch::kFloat);
  }
  torch::data::Example<> get(size_t index) override {
    return {points_[static_cast<int64_t>(index)], labels_[static_cast<int64_t>(index)]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(points_.size(0)); }

  const torch::Tensor& points() const { return points_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  torch::Tensor points_, labels_;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(2, 64))),
        second(register_module("second", torch::nn::Linear(64, 64))),
        third(register_module("third", torch::nn::Linear(64, 2))) {}
  torch::Tensor forward(const torch::Tensor& points) {
    return third(torch::relu(second(torch::relu(first(points)))));
  }
  torch::nn::Linear first, second, third;
};
TORCH_MODULE(Net);

// The fraction of unseen points that the net classifies correctly.
inline double accuracy(Net& net) {
  const torch::NoGradGuard no_grad;
  const Spirals unseen(10000, /*seed=*/99);
  return net->forward(unseen.points()).argmax(1).eq(unseen.labels()).to(torch::kDouble).mean().item<double>();
}
