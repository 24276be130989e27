// A generative adversarial network of linear layers.
// Shows: alternating steps of two wrapped models, one frozen while the other is trained; a Sequential.
//
//   build/release/examples/ports/gan [folder with Fashion-MNIST]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/gan
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

using namespace torch::nn;  // NOLINT: as such programs do

void freeze(const auto& model, bool frozen) {
  // was: void freeze(Sequential& model, bool frozen) {
  for (auto& parameter : model->parameters()) parameter.requires_grad_(!frozen);
}

int main(int argc, char** argv) {
  const int64_t batch_size = 64, dims = 16;                // of the noise
  const auto group = lockstep::init_process_group();       // +
  const auto per_rank = batch_size / group->world_size();  // was: const auto per_rank = batch_size;
  const auto all = torch::avg_pool2d(Pictures(1920, argc > 1 ? argv[1] : "").images(), 2).flatten(1);
  const auto mine = all.chunk(group->world_size())[group->rank()];
  // was: const auto mine = all;

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  lockstep::DistributedDataParallel critic(Sequential(Linear(196, 64), LeakyReLU(), Linear(64, 1)));
  // was: Sequential critic(Linear(196, 64), LeakyReLU(), Linear(64, 1));
  lockstep::DistributedDataParallel painter(Sequential(Linear(dims, 64), ReLU(), Linear(64, 196), Sigmoid()));
  // was: Sequential painter(Linear(dims, 64), ReLU(), Linear(64, 196), Sigmoid());
  torch::optim::Adam critic_adam(critic->parameters(), torch::optim::AdamOptions(3e-3).betas({0.5, 0.99}));
  torch::optim::Adam painter_adam(painter->parameters(), torch::optim::AdamOptions(1e-3).betas({0.5, 0.99}));

  const auto yes = torch::ones({per_rank, 1}), no = torch::zeros({per_rank, 1});
  const auto judge = [](const auto& said, const auto& truth) {
    return torch::binary_cross_entropy_with_logits(said, truth);
  };
  for (int epoch = 1; epoch <= 20; ++epoch) {
    for (const auto& real : mine.split(per_rank)) {
      // The painter is not trained.
      critic->zero_grad();
      const auto fake = painter->forward(torch::randn({per_rank, dims})).detach();
      const auto both = critic->forward(torch::cat({real, fake}));
      judge(both, torch::cat({yes, no})).backward();
      critic_adam.step();

      // The critic is not trained. Unless it is frozen, its gradients are also sent, for nothing.
      freeze(critic, true);
      painter->zero_grad();
      const auto painted = painter->forward(torch::randn({per_rank, dims}));
      judge(critic->forward(painted), yes).backward();
      painter_adam.step();
      freeze(critic, false);
    }
    const torch::NoGradGuard no_grad;
    auto apart = distance(all, painter->forward(torch::randn({512, dims})));
    apart = lockstep::mean(apart);  // +
    if (group->rank() == 0)         // +
      std::printf("epoch %d  distance %.4f\n", epoch, apart);
  }
  auto parameters = painter->parameters();
  for (const auto& parameter : critic->parameters()) parameters.push_back(parameter);
  std::printf("parameters %s\n", to_hex(digest_of(parameters)).c_str());
}
