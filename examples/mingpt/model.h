// A minimal, readable GPT after Karpathy's minGPT: pre-norm blocks, causal self-attention, the tanh form of
// GELU, learned positions, and a head with its own weights.
//
// Input: int64 tokens [batch, time], with time at most `context`. Output: logits [batch, time, vocabulary].
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include <torch/torch.h>

namespace mingpt {

struct Config {
  int64_t layers = 3, heads = 3, width = 48;  // the width must be divisible by heads
  int64_t vocabulary = 256, context = 128;
  double dropout = 0;
};

struct Attention : torch::nn::Module {
  explicit Attention(const Config& config)
      : heads(config.heads),
        attend(register_module("attend", torch::nn::Linear(config.width, 3 * config.width))),
        project(register_module("project", torch::nn::Linear(config.width, config.width))),
        drop_weights(register_module("drop_weights", torch::nn::Dropout(config.dropout))) {}

  // mask: [time, time], zero where attention is allowed and -infinity where it is not.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2), depth = width / heads;
    // One copy, after which each head's queries, keys and values are matrices that bmm can use directly.
    const auto parts = attend(x)
                           .view({batch, time, 3, heads, depth})
                           .permute({2, 0, 3, 1, 4})
                           .reshape({3, batch * heads, time, depth})
                           .unbind(0);
    // baddbmm adds the products to the mask, so masking needs no separate pass.
    const auto scores = torch::baddbmm(mask, parts[0], parts[1].transpose(1, 2), 1, 1 / std::sqrt(depth));
    const auto mixed =
        torch::bmm(drop_weights(torch::softmax(scores, -1)), parts[2]);  // [batch·heads, time, depth]
    return project(mixed.view({batch, heads, time, depth}).transpose(1, 2).reshape({batch, time, width}));
  }

  const int64_t heads;
  torch::nn::Linear attend, project;
  torch::nn::Dropout drop_weights;
};

struct Block : torch::nn::Module {
  explicit Block(const Config& config)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        attention(register_module("attention", std::make_shared<Attention>(config))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        expand(register_module("expand", torch::nn::Linear(config.width, 4 * config.width))),
        project(register_module("project", torch::nn::Linear(4 * config.width, config.width))),
        drop(register_module("drop", torch::nn::Dropout(config.dropout))) {}

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    x = x + drop(attention->forward(norm1(x), mask));
    return x + drop(project(torch::gelu(expand(norm2(x)), "tanh")));
  }

  torch::nn::LayerNorm norm1;
  std::shared_ptr<Attention> attention;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear expand, project;
  torch::nn::Dropout drop;
};

struct Gpt : torch::nn::Module {
  explicit Gpt(const Config& what)
      : config(what),
        tokens(register_module("tokens", torch::nn::Embedding(config.vocabulary, config.width))),
        positions(register_module("positions", torch::nn::Embedding(config.context, config.width))),
        drop(register_module("drop", torch::nn::Dropout(config.dropout))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        head(register_module(
            "head",
            torch::nn::Linear(torch::nn::LinearOptions(config.width, config.vocabulary).bias(false)))),
        mask_(
            torch::full({config.context, config.context}, -std::numeric_limits<float>::infinity()).triu(1)) {
    for (int64_t i = 0; i < config.layers; ++i) blocks->push_back(std::make_shared<Block>(config));
    initialise();
  }

  torch::Tensor forward(const torch::Tensor& text) {
    const auto time = text.size(1);
    TORCH_CHECK(time <= config.context, "text of ", time, " tokens, but the context of the model is ",
                config.context);
    if (mask_.device() != text.device()) mask_ = mask_.to(text.device());
    const auto mask = mask_.slice(0, 0, time).slice(1, 0, time);
    auto x = drop(tokens(text) + positions->weight.slice(0, 0, time));  // [batch, time, width]
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, mask);
    return head(norm(x));
  }

  const Config config;
  torch::nn::Embedding tokens, positions;
  torch::nn::Dropout drop;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;

 private:
  // Each layer adds to the residual stream twice. The smaller scale keeps the variance independent of the
  // depth.
  void initialise() {
    torch::NoGradGuard no_grad;
    const double residual = 0.02 / std::sqrt(2.0 * config.layers);
    for (const auto& item : named_parameters()) {
      const auto ends_with = [&](const char* end) { return std::string_view(item.key()).ends_with(end); };
      auto parameter = item.value();
      if (parameter.dim() == 2) {
        parameter.normal_(0, ends_with("project.weight") ? residual : 0.02);
      } else {
        parameter.fill_(ends_with("weight") ? 1 : 0);  // norms start as the identity
      }
    }
  }

  // Not a registered buffer, because buffers are sent to all ranks in every step and stored in every
  // snapshot.
  torch::Tensor mask_;
};

}  // namespace mingpt
