// A variational autoencoder.
// Shows: a forward that returns a struct, different noise on each rank, a loss that is a sum.
//
//   build/release/examples/ports/vae [folder with Fashion-MNIST]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/vae
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

struct Output {
  torch::Tensor logits, mean, log_variance;
};
template <class Visit>                                     // + in the namespace of Output
void visit_tensors(const Output& output, Visit&& visit) {  // + the tensors that gradients flow into
  visit(output.logits);                                    // +
  visit(output.mean);                                      // +
  visit(output.log_variance);                              // +
}  // +

struct AutoencoderImpl : torch::nn::Module {
  torch::nn::Linear look{register_module("look", torch::nn::Linear(784, 128))};
  torch::nn::Linear mean{register_module("mean", torch::nn::Linear(128, 8))};
  torch::nn::Linear log_variance{register_module("log_variance", torch::nn::Linear(128, 8))};
  torch::nn::Linear imagine{register_module("imagine", torch::nn::Linear(8, 128))};
  torch::nn::Linear draw{register_module("draw", torch::nn::Linear(128, 784))};

  Output forward(const torch::Tensor& pictures) {
    const auto seen = torch::relu(look(pictures));
    const auto middle = mean(seen), spread = log_variance(seen);
    const auto sample = middle + torch::randn_like(middle) * torch::exp(spread / 2);
    return {draw(torch::relu(imagine(sample))), middle, spread};
  }
};
TORCH_MODULE(Autoencoder);

int main(int argc, char** argv) {
  const auto group = lockstep::init_process_group();  // +
  const auto all = Pictures(1920, argc > 1 ? argv[1] : "").images().flatten(1);
  const auto mine = all.chunk(group->world_size())[group->rank()];
  // was: const auto mine = all;

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  Autoencoder model;
  lockstep::DistributedDataParallel ddp(model);  // +
  torch::optim::Adam optimizer(model->parameters(), 2e-3);

  for (int epoch = 1; epoch <= 12; ++epoch) {
    auto sum = torch::zeros({1}, torch::kDouble);
    for (const auto& pictures : mine.split(64 / group->world_size())) {
      // was: for (const auto& pictures : mine.split(64)) {
      optimizer.zero_grad();
      const auto output = ddp(pictures);
      // was: const auto output = model(pictures);
      const auto [logits, mean, log_variance] = output;
      auto loss = torch::binary_cross_entropy_with_logits(logits, pictures, {}, {}, torch::Reduction::Sum);
      loss = loss - 0.5 * torch::sum(1 + log_variance - mean.pow(2) - log_variance.exp());
      (loss * group->world_size()).backward();  // was: loss.backward();
      optimizer.step();
      sum += loss.detach();
    }
    group->all_reduce(sum);  // +
    if (group->rank() == 0)  // +
      std::printf("epoch %d  loss %.2f\n", epoch, sum.item<double>() / static_cast<double>(all.size(0)));
  }
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
