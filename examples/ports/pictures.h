// The data of the ports: 28x28 images in ten classes. Fashion-MNIST if its folder is given (on Debian:
// apt-get install dataset-fashion-mnist, /usr/share/datasets/fashion-mnist). Otherwise generated flowers of
// two to six petals, filled or in outline, the same on every rank.
#pragma once

#include <algorithm>
#include <string>

#include <torch/torch.h>

#include "fashion_mnist/idx.h"

class Pictures : public torch::data::Dataset<Pictures> {
 public:
  // Reads or generates at most `count` images. `part` is "train" or "t10k".
  Pictures(int64_t count, const std::string& folder, const std::string& part = "train") {
    if (folder.empty()) {
      draw(count, part == "train" ? 0 : 1000000);
      return;
    }
    const auto path = folder + "/" + part;
    images_ = fashion_mnist::IdxFile(path + "-images-idx3-ubyte").read(3).unsqueeze(1);
    labels_ = fashion_mnist::IdxFile(path + "-labels-idx1-ubyte").read(1);
    const auto all = std::min(images_.size(0), labels_.size(0));
    images_ = images_.narrow(0, 0, std::min(count, all)).to(torch::kFloat).div_(255);
    labels_ = labels_.narrow(0, 0, std::min(count, all)).to(torch::kLong);
  }

  torch::data::Example<> get(size_t index) override {
    return {images_[static_cast<int64_t>(index)], labels_[static_cast<int64_t>(index)]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(labels_.size(0)); }

  const torch::Tensor& images() const { return images_; }  // [count, 1, 28, 28], from 0 to 1
  const torch::Tensor& labels() const { return labels_; }

 private:
  void draw(int64_t count, int64_t first) {
    const auto number = torch::arange(first, first + count, torch::kDouble).view({-1, 1, 1});
    const auto scattered = [&](double step) { return torch::frac(number * step); };
    const auto kind = torch::floor(scattered(0.8191725134) * 10).to(torch::kLong);
    labels_ = kind.flatten();
    const auto axis = torch::linspace(-1, 1, 28, torch::kDouble);
    const auto x = axis.view({1, 1, 28}) + (scattered(0.7548776662) - 0.5) * 0.3;
    const auto y = axis.view({1, 28, 1}) + (scattered(0.5698402910) - 0.5) * 0.3;
    const auto angle = torch::atan2(y, x) + scattered(0.6180339887) * 2 * M_PI;
    const auto edge = 0.55 + 0.2 * torch::cos(angle * (kind % 5 + 2));
    const auto radius = torch::sqrt(x * x + y * y);
    const auto inside = [&](double margin) { return torch::sigmoid((edge - margin - radius) * 30); };
    images_ = (inside(0) * (1 - inside(0.25) * (kind >= 5))).to(torch::kFloat).unsqueeze(1);
  }

  torch::Tensor images_, labels_;
};

// The distance between two sets of images, by the mean and the standard deviation of each pixel.
inline double distance(const torch::Tensor& some, const torch::Tensor& others) {
  const auto apart = (some.mean(0) - others.mean(0)).abs() + (some.std(0) - others.std(0)).abs();
  return apart.mean().item<double>();
}
