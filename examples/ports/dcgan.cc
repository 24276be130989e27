// A convolutional generative adversarial network.
// Shows: two wrappers, two optimizers, different noise on each rank, batch norm, two backward passes per
// step.
//
//   build/release/examples/ports/dcgan [folder with Fashion-MNIST]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/dcgan
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;
using torch::nn::Conv2dOptions;

constexpr int64_t kNoise = 16;

struct PainterImpl : torch::nn::Module {
  torch::nn::Linear seed{register_module("seed", torch::nn::Linear(kNoise, 16 * 7 * 7))};
  torch::nn::BatchNorm2d calm{register_module("calm", torch::nn::BatchNorm2d(16))};
  torch::nn::ConvTranspose2d grow{register_module("grow", up(16, 8))};
  torch::nn::ConvTranspose2d finish{register_module("finish", up(8, 1))};

  static torch::nn::ConvTranspose2d up(int64_t from, int64_t to) {
    return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(from, to, 4).stride(2).padding(1));
  }
  torch::Tensor forward(const torch::Tensor& noise) {
    const auto small = torch::relu(calm(seed(noise).view({-1, 16, 7, 7})));
    return torch::sigmoid(finish(torch::relu(grow(small))));  // [n, 1, 28, 28]
  }
};
TORCH_MODULE(Painter);

struct CriticImpl : torch::nn::Module {
  torch::nn::Conv2d near{
      register_module("near", torch::nn::Conv2d(Conv2dOptions(1, 8, 4).stride(2).padding(1)))};
  torch::nn::Conv2d far{
      register_module("far", torch::nn::Conv2d(Conv2dOptions(8, 16, 4).stride(2).padding(1)))};
  torch::nn::Linear verdict{register_module("verdict", torch::nn::Linear(16 * 7 * 7, 1))};

  torch::Tensor forward(const torch::Tensor& picture) {
    return verdict(torch::leaky_relu(far(torch::leaky_relu(near(picture), 0.2)), 0.2).flatten(1)).squeeze(1);
  }
};
TORCH_MODULE(Critic);

int main(int argc, char** argv) {
  const int64_t batch_size = 32;
  const auto group = lockstep::init_process_group();  // +

  lockstep::seed_everything(1);                          // was: torch::manual_seed(1);
  lockstep::DistributedDataParallel painter(Painter{});  // was: Painter painter;
  lockstep::DistributedDataParallel critic(Critic{});    // was: Critic critic;
  torch::optim::Adam painter_adam(painter->parameters(), torch::optim::AdamOptions(3e-3).betas({0.5, 0.99}));
  torch::optim::Adam critic_adam(critic->parameters(), torch::optim::AdamOptions(3e-3).betas({0.5, 0.99}));

  Pictures pictures(1280, argc > 1 ? argv[1] : "");
  const auto all = pictures.images();
  auto data = pictures.map(Stack<>());
  const auto per_rank = batch_size / group->world_size();  // +
  auto loader = lockstep::make_data_loader(std::move(data), per_rank, {.shuffle = false});
  // was: auto loader = torch::data::make_data_loader<SequentialSampler>(std::move(data), batch_size);

  const auto judge = [](const torch::Tensor& said, double truth) {
    return torch::binary_cross_entropy_with_logits(said, torch::full_like(said, truth));
  };
  for (int epoch = 1; epoch <= 8; ++epoch) {
    for (auto& batch : *loader) {
      const auto fake = painter(torch::randn({batch.data.size(0), kNoise}));
      critic->zero_grad();
      judge(critic(batch.data), 0.9).backward();
      judge(critic(fake.detach()), 0).backward();
      critic_adam.step();

      painter->zero_grad();
      judge(critic(fake), 1).backward();
      painter_adam.step();
    }
    const torch::NoGradGuard no_grad;
    auto apart = distance(all, painter(torch::randn({256, kNoise})));
    apart = lockstep::mean(apart);  // +
    if (group->rank() == 0)         // +
      std::printf("epoch %d  distance %.4f\n", epoch, apart);
  }
  auto parameters = painter->parameters();
  for (const auto& parameter : critic->parameters()) parameters.push_back(parameter);
  std::printf("parameters %s\n", to_hex(digest_of(parameters)).c_str());
}
