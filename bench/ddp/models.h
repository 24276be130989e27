// The models of `make bench-ddp` and their data. pytorch.py holds the same: the same operations in the same
// order, the same initial weights, the same batches, so that both sides must see the same losses.
//
// Numbers come from a hash of a name and an index, not from a random generator, whose order of calls both
// sides would have to keep. Every step has its own batch of noise: a model that has learned its data has
// gradients that vanish, and arithmetic on numbers near zero is slow.
//
// Not thread-safe. Nothing here communicates.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

namespace bench {

// ---- Numbers

inline uint32_t key_of(std::string_view name) {
  uint32_t key = 2166136261;
  for (const char letter : name) key = (key ^ static_cast<unsigned char>(letter)) * 16777619;
  return key;
}

// 24 bits, which a float holds exactly.
inline uint32_t bits_at(uint32_t key, uint32_t index) {
  uint32_t x = key + index * 2654435769;
  x = (x ^ (x >> 15)) * 1234567891;
  x = (x ^ (x >> 13)) * 987654319;
  return (x ^ (x >> 16)) >> 8;
}

// Even between -bound and bound.
inline at::Tensor noise(at::IntArrayRef sizes, std::string_view name, double bound) {
  auto tensor = torch::empty(sizes);
  const uint32_t key = key_of(name);
  auto* values = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    values[i] = (static_cast<float>(bits_at(key, i)) * 0x1p-23f - 1) * static_cast<float>(bound);
  }
  return tensor;
}

inline at::Tensor classes(at::IntArrayRef sizes, std::string_view name, int64_t count) {
  auto tensor = torch::empty(sizes, torch::kLong);
  const uint32_t key = key_of(name);
  auto* values = tensor.data_ptr<int64_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = bits_at(key, i) % count;
  return tensor;
}

// ---- Models

struct Batch {
  at::Tensor input, target;
};

struct Model : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor input) = 0;
  // `name` tells one batch from another.
  virtual Batch batch(const std::string& name) const = 0;
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const {
    return torch::cross_entropy_loss(output, target);
  }
};

struct Cnn : Model {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Linear linear1{register_module("linear1", torch::nn::Linear(9216, 128))};
  torch::nn::Linear linear2{register_module("linear2", torch::nn::Linear(128, 10))};

  at::Tensor forward(at::Tensor x) override {
    x = torch::relu(conv1->forward(x));
    x = torch::max_pool2d(torch::relu(conv2->forward(x)), 2);
    return linear2->forward(torch::relu(linear1->forward(x.flatten(1))));
  }
  Batch batch(const std::string& name) const override {
    return {noise({32, 1, 28, 28}, "input " + name, 1), classes({32}, "target " + name, 10)};
  }
};

struct Mlp : Model {
  std::vector<torch::nn::Linear> layers;

  Mlp() {
    for (int i = 0; i < 12; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(1024, 1024)));
    }
  }
  at::Tensor forward(at::Tensor x) override {
    for (auto& layer : layers) x = torch::relu(layer->forward(x));
    return x;
  }
  Batch batch(const std::string& name) const override {
    return {noise({32, 1024}, "input " + name, 1), noise({32, 1024}, "target " + name, 1)};
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return torch::mse_loss(output, target);
  }
};

constexpr int64_t kSequence = 128, kWidth = 192, kHeads = 6, kLayers = 6, kVocabulary = 64;

struct GptBlock : torch::nn::Module {
  torch::nn::LayerNorm norm1{register_module("norm1", layer_norm())};
  torch::nn::Linear qkv{register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(kWidth, kWidth))};
  torch::nn::LayerNorm norm2{register_module("norm2", layer_norm())};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(4 * kWidth, kWidth))};

  static torch::nn::LayerNorm layer_norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions(std::vector<int64_t>{kWidth}));
  }

  at::Tensor forward(at::Tensor x, const at::Tensor& future) {
    x = x + attention(norm1->forward(x), future);
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }

  // LibTorch's own would take another path in each of its versions and languages.
  at::Tensor attention(const at::Tensor& x, const at::Tensor& future) {
    constexpr int64_t kHead = kWidth / kHeads;
    const auto heads =
        qkv->forward(x).view({x.size(0), kSequence, 3, kHeads, kHead}).permute({2, 0, 3, 1, 4});
    const auto query = heads.select(0, 0), keys = heads.select(0, 1), values = heads.select(0, 2);
    auto weights = torch::matmul(query, keys.transpose(-2, -1)) * (1 / std::sqrt(static_cast<double>(kHead)));
    weights = weights.masked_fill(future, -std::numeric_limits<float>::infinity()).softmax(-1);
    return out->forward(
        torch::matmul(weights, values).transpose(1, 2).reshape({x.size(0), kSequence, kWidth}));
  }
};

struct Gpt : Model {
  at::Tensor positions{register_parameter("positions", torch::empty({kSequence, kWidth}))};
  torch::nn::Embedding tokens{register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth))};
  std::vector<std::shared_ptr<GptBlock>> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
  // Not a buffer: DDP would broadcast it at every step.
  at::Tensor future = torch::ones({kSequence, kSequence}, torch::kBool).triu(1);

  Gpt() {
    for (int i = 0; i < kLayers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<GptBlock>()));
    }
    norm = register_module("norm", GptBlock::layer_norm());
    head = register_module("head", torch::nn::Linear(kWidth, kVocabulary));
  }
  at::Tensor forward(at::Tensor input) override {
    auto x = tokens->forward(input) + positions;
    for (auto& block : blocks) x = block->forward(x, future);
    return head->forward(norm->forward(x)).view({-1, kVocabulary});
  }
  Batch batch(const std::string& name) const override {
    const auto text = classes({8, kSequence + 1}, "text " + name, kVocabulary);
    return {text.narrow(1, 0, kSequence).contiguous(), text.narrow(1, 1, kSequence).flatten()};
  }
};

// Matrices keep the size of what goes through them and a ReLU; norms begin as the identity.
inline void initialise(Model& model) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    if (parameter.dim() > 1) {
      const double inputs = static_cast<double>(parameter.numel() / parameter.size(0));
      parameter.copy_(noise(parameter.sizes(), item.key(), std::sqrt(6 / inputs)));
    } else {
      parameter.fill_(item.key().ends_with("weight") ? 1 : 0);
    }
  }
}

inline std::shared_ptr<Model> make_model(const std::string& name) {
  std::shared_ptr<Model> model;
  if (name == "cnn") model = std::make_shared<Cnn>();
  if (name == "gpt") model = std::make_shared<Gpt>();
  if (name == "mlp") model = std::make_shared<Mlp>();
  if (!model) throw std::invalid_argument("no model is called " + name);
  initialise(*model);
  return model;
}

}  // namespace bench
