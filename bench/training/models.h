// The models of `make bench` and their data. models.py contains the same operations in the same order, the
// same initial weights and the same batches, so both sides must compute the same losses.
//
// Numbers are computed from a hash of a name and an index. With a random generator, both sides would have to
// make its calls in the same order. Every step has its own batch of noise: once a model has learned its data,
// its gradients vanish, and arithmetic on numbers near zero is slow.
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

#include "../../examples/mingpt/model.h"

namespace bench {

// ---- Numbers

inline uint32_t key_of(std::string_view name) {
  uint32_t key = 2166136261;
  for (const char letter : name) key = (key ^ static_cast<unsigned char>(letter)) * 16777619;
  return key;
}

// 24 bits, which a float represents exactly.
inline uint32_t bits_at(uint32_t key, uint32_t index) {
  uint32_t x = key + index * 2654435769;
  x = (x ^ (x >> 15)) * 1234567891;
  x = (x ^ (x >> 13)) * 987654319;
  return (x ^ (x >> 16)) >> 8;
}

// Uniform between -bound and bound.
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
  virtual int64_t usual_rows() const = 0;  // rows of a rank's batch
  // `name` identifies the batch.
  virtual Batch batch(const std::string& name, int64_t rows) const = 0;
  virtual at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const {
    return torch::cross_entropy_loss(output, target);
  }
};

// DataParallel copies modules.
template <class Net>
struct Copyable : Model {
  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<torch::Device>& device = c10::nullopt) const override {
    auto copy = std::make_shared<Net>();
    if (device) copy->to(*device);
    const torch::NoGradGuard no_grad;
    const auto fill = [](const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
      for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    };
    fill(copy->parameters(), this->parameters());
    fill(copy->buffers(), this->buffers());
    return copy;
  }
};

struct Cnn : Copyable<Cnn> {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Linear linear1{register_module("linear1", torch::nn::Linear(9216, 128))};
  torch::nn::Linear linear2{register_module("linear2", torch::nn::Linear(128, 10))};

  at::Tensor forward(at::Tensor x) override {
    x = torch::relu(conv1->forward(x));
    x = torch::max_pool2d(torch::relu(conv2->forward(x)), 2);
    return linear2->forward(torch::relu(linear1->forward(x.flatten(1))));
  }
  int64_t usual_rows() const override { return 32; }
  Batch batch(const std::string& name, int64_t rows) const override {
    return {noise({rows, 1, 28, 28}, "input " + name, 1), classes({rows}, "target " + name, 10)};
  }
};

struct Mlp : Copyable<Mlp> {
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
  int64_t usual_rows() const override { return 32; }
  Batch batch(const std::string& name, int64_t rows) const override {
    return {noise({rows, 1024}, "input " + name, 1), noise({rows, 1024}, "target " + name, 1)};
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

  // LibTorch's own implementation differs between versions and languages.
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

struct Gpt : Copyable<Gpt> {
  at::Tensor positions{register_parameter("positions", torch::empty({kSequence, kWidth}))};
  torch::nn::Embedding tokens{register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth))};
  std::vector<std::shared_ptr<GptBlock>> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
  // Not a buffer, because DDP would broadcast it in every step.
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
  int64_t usual_rows() const override { return 8; }
  Batch batch(const std::string& name, int64_t rows) const override {
    const auto text = classes({rows, kSequence + 1}, "text " + name, kVocabulary);
    return {text.narrow(1, 0, kSequence).contiguous(), text.narrow(1, 1, kSequence).flatten()};
  }
};

// The model of examples/mingpt in the size "mini": as wide and deep as the one above, with a shorter context.
struct MinGpt : Copyable<MinGpt> {
  static constexpr int64_t kContext = 64;
  std::shared_ptr<mingpt::Gpt> gpt{register_module(
      "gpt", std::make_shared<mingpt::Gpt>(mingpt::Config{
                 .layers = 6, .heads = 6, .width = 192, .vocabulary = 96, .context = kContext}))};

  at::Tensor forward(at::Tensor text) override { return gpt->forward(text).flatten(0, 1); }
  int64_t usual_rows() const override { return 8; }
  Batch batch(const std::string& name, int64_t rows) const override {
    const auto text = classes({rows, kContext + 1}, "text " + name, 96);
    return {text.narrow(1, 0, kContext).contiguous(), text.narrow(1, 1, kContext).flatten()};
  }
};

struct ResNetBlock : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2, way{nullptr};
  torch::nn::BatchNorm2d norm1, norm2, way_norm{nullptr};

  ResNetBlock(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        conv2(register_module("conv2", conv(out, out, 3, 1))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))) {
    if (stride == 1) return;
    way = register_module("way", conv(in, out, 1, stride));
    way_norm = register_module("way_norm", torch::nn::BatchNorm2d(out));
  }
  static torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = norm2->forward(conv2->forward(torch::relu(norm1->forward(conv1->forward(x)))));
    return torch::relu(y + (way ? way_norm->forward(way->forward(x)) : x));
  }
};

// As large as ResNet-18, for images of 32x32.
struct ResNet : Copyable<ResNet> {
  torch::nn::Conv2d stem{register_module("stem", ResNetBlock::conv(3, 64, 3, 1))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(64))};
  std::vector<std::shared_ptr<ResNetBlock>> blocks;
  torch::nn::Linear head{register_module("head", torch::nn::Linear(512, 10))};

  ResNet() {
    int64_t in = 64;
    for (const int64_t out : {64, 64, 128, 128, 256, 256, 512, 512}) {
      const auto name = "block" + std::to_string(blocks.size());
      blocks.push_back(register_module(name, std::make_shared<ResNetBlock>(in, out, in == out ? 1 : 2)));
      in = out;
    }
  }
  at::Tensor forward(at::Tensor x) override {
    x = torch::relu(norm->forward(stem->forward(x)));
    for (auto& block : blocks) x = block->forward(x);
    return head->forward(x.mean({2, 3}));
  }
  int64_t usual_rows() const override { return 4; }
  Batch batch(const std::string& name, int64_t rows) const override {
    return {noise({rows, 3, 32, 32}, "input " + name, 1), classes({rows}, "target " + name, 10)};
  }
};

// Eight square layers with `parameters` parameters in total, to measure growth.
struct Stack : Model {
  static constexpr int kLayers = 8;
  int64_t width;
  std::vector<torch::nn::Linear> layers;

  explicit Stack(int64_t parameters)
      : width(std::llround(std::sqrt(static_cast<double>(parameters) / kLayers))) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x) override {
    for (auto& layer : layers) x = torch::relu(layer->forward(x));
    return x;
  }
  int64_t usual_rows() const override { return 4; }
  Batch batch(const std::string& name, int64_t rows) const override {
    return {noise({rows, width}, "input " + name, 1), noise({rows, width}, "target " + name, 1)};
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    return torch::mse_loss(output, target);
  }
};

// Matrices preserve the magnitude of activations through a ReLU; norms start as the identity.
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
  constexpr std::string_view kStack = "stack-";  // followed by a number of parameters
  std::shared_ptr<Model> model;
  if (name == "cnn") model = std::make_shared<Cnn>();
  if (name == "gpt") model = std::make_shared<Gpt>();
  if (name == "mlp") model = std::make_shared<Mlp>();
  if (name == "mingpt") model = std::make_shared<MinGpt>();
  if (name == "resnet") model = std::make_shared<ResNet>();
  if (name.starts_with(kStack)) model = std::make_shared<Stack>(std::stoll(name.substr(kStack.size())));
  if (!model) throw std::invalid_argument("no model is called " + name);
  initialise(*model);
  return model;
}

}  // namespace bench
