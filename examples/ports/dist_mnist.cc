// What MPI programs do by hand: broadcast every parameter once, all-reduce every gradient in every step.
// Shows: the same by hand and with the wrapper; both compute bitwise the same parameters.
//
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/dist_mnist by-hand
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/dist_mnist
//
// The wrapper makes the lines marked - unnecessary; the line marked + replaces them.
#include <cstdio>
#include <cstring>
#include <optional>

#include <lockstep/lockstep.h>

#include "digest.h"
#include "pictures.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(28 * 28, 64))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(64, 10))};
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x.flatten(1)))); }
};
TORCH_MODULE(Net);

void share_parameters(Net& model, lockstep::ProcessGroup& group) {  // -
  const torch::NoGradGuard no_grad;                                 // -
  for (auto& parameter : model->parameters()) {                     // -
    group.broadcast(parameter, 0);                                  // -
  }                                                                 // -
}  // -

void average_gradients(Net& model, lockstep::ProcessGroup& group) {  // -
  for (auto& parameter : model->parameters()) {                      // -
    if (!parameter.grad().defined()) continue;                       // -
    auto gradient = parameter.grad();                                // -
    group.all_reduce(gradient);                                      // -
    gradient.div_(group.world_size());                               // -
  }                                                                  // -
}  // -

int main(int argc, char** argv) {
  const bool by_hand = argc > 1 && std::strcmp(argv[1], "by-hand") == 0;
  const auto group = lockstep::init_process_group();
  lockstep::seed_everything(1);
  Net model;
  std::optional<lockstep::DistributedDataParallel<NetImpl>> ddp;
  if (by_hand) share_parameters(model, *group);  // -
  if (!by_hand) ddp.emplace(model);              // +
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  auto data = Pictures(2000, "").map(torch::data::transforms::Stack<>());
  auto loader = lockstep::make_data_loader(std::move(data), 64 / group->world_size());

  for (int epoch = 1; epoch <= 6; ++epoch) {
    lockstep::Average mean;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto output = by_hand ? model(batch.data) : (*ddp)(batch.data);
      auto loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      if (by_hand) average_gradients(model, *group);  // -
      optimizer.step();
      mean.add(loss.detach(), batch.target.size(0));
    }
    const auto loss = mean.all_reduce(group);
    if (group->rank() == 0) std::printf("epoch %d  loss %.4f\n", epoch, loss);
  }
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
