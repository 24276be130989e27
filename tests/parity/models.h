// The models, their batches and their optimizers; models.py has the same. They are small, because the test
// compares the handling of gradients, not the arithmetic of the layers.
//
// No parameter may have both a gradient that is zero except for rounding errors and an optimizer that divides
// by it (Adam): the errors would become full-sized steps. Hence no bias before a batch norm, and plain SGD
// for attention, where the bias of a key has no effect. Adam has a large epsilon: without it, gradients that
// are wrong by a constant factor would give the same steps.
#pragma once

#include <memory>
#include <tuple>

#include <torch/torch.h>

#include "parity/formula.h"

namespace lockstep::parity {

// The targets: one number for each row of the model's output.
using Batch = std::tuple<torch::Tensor, torch::Tensor>;

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 8, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm1{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 16, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm2{16};
  torch::nn::Linear head{16 * 3 * 3, 10};

  Cnn() {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    register_module("head", head);
  }

  static Batch batch(uint32_t stream) { return {real(stream, {8, 1, 12, 12}), whole(stream + 1, {8}, 10)}; }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm1(conv1(x))), 2);
    x = torch::max_pool2d(torch::relu(norm2(conv2(x))), 2);
    return head(x.flatten(1));
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer() {
    return std::make_unique<torch::optim::AdamW>(
        parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-2).weight_decay(0.1));
  }
};

// Sequences are the second dimension, as for torch::nn::TransformerEncoderLayer.
struct Transformer : torch::nn::Module {
  static constexpr int64_t kTokens = 12, kWords = 40, kWidth = 32;

  torch::Tensor position = register_parameter("position", torch::empty({kTokens, 1, kWidth}));
  torch::nn::Embedding words{kWords, kWidth};
  torch::nn::TransformerEncoderLayer block{
      torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(64).dropout(0).activation(
          torch::kGELU)};
  torch::nn::Linear head{kWidth, kWords};

  Transformer() {
    register_module("words", words);
    register_module("block", block);
    register_module("head", head);
  }

  static Batch batch(uint32_t stream) {
    const auto text = whole(stream, {kTokens + 1, 4}, kWords);
    return {text.slice(0, 0, kTokens), text.slice(0, 1).flatten()};
  }

  torch::Tensor forward(torch::Tensor text) {
    const auto future = torch::full({kTokens, kTokens}, -INFINITY).triu(1);
    return head(block(words(text) + position, future)).flatten(0, 1);
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer() {
    return std::make_unique<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
};

struct Lstm : torch::nn::Module {
  static constexpr int64_t kTokens = 10, kWords = 40;

  torch::nn::Embedding words{kWords, 16};
  torch::nn::LSTM memory{torch::nn::LSTMOptions(16, 24).num_layers(2).batch_first(true)};
  torch::nn::Linear head{24, kWords};

  Lstm() {
    register_module("words", words);
    register_module("memory", memory);
    register_module("head", head);
  }

  static Batch batch(uint32_t stream) {
    const auto text = whole(stream, {4, kTokens + 1}, kWords);
    return {text.slice(1, 0, kTokens), text.slice(1, 1).flatten()};
  }

  torch::Tensor forward(torch::Tensor text) { return head(std::get<0>(memory(words(text)))).flatten(0, 1); }

  std::unique_ptr<torch::optim::Optimizer> optimizer() {
    return std::make_unique<torch::optim::Adam>(parameters(), torch::optim::AdamOptions(1e-2).eps(1e-3));
  }
};

}  // namespace lockstep::parity
