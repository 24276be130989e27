// A small convolutional net for 28x28 images in ten classes.
#pragma once

#include <torch/nn.h>

namespace fashion_mnist {

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", convolution(1, 16))};
  torch::nn::Conv2d conv2{register_module("conv2", convolution(16, 32))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(128, 10))};

  static torch::nn::Conv2d convolution(int64_t from, int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1));
  }

  torch::Tensor forward(torch::Tensor x) {                         // [n, 1, 28, 28]
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));      // [n, 16, 14, 14]
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));      // [n, 32, 7, 7]
    return fc2->forward(torch::relu(fc1->forward(x.flatten(1))));  // [n, 10]
  }
};
TORCH_MODULE(Net);

}  // namespace fashion_mnist
