// A small residual network, with a decaying learning rate.
// Shows: batch norm over the batches of all ranks; a schedule; snapshots, so that a run that is killed and
// restarted ends with the same parameters.
//
//   build/release/examples/ports/resnet [epochs] [folder for snapshots]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/resnet 4 run1
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>
#include <cstdlib>
#include <optional>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

torch::nn::Sequential convolution(int64_t from, int64_t to, int64_t stride) {
  const auto options = torch::nn::Conv2dOptions(from, to, 3).padding(1).stride(stride).bias(false);
  return torch::nn::Sequential(torch::nn::Conv2d(options), torch::nn::BatchNorm2d(to));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t from, int64_t to)
      : first(register_module("first", convolution(from, to, 2))),
        second(register_module("second", convolution(to, to, 1))),
        shortcut(register_module("shortcut", convolution(from, to, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(second->forward(torch::relu(first->forward(x))) + shortcut->forward(x));
  }
  torch::nn::Sequential first, second, shortcut;
};
TORCH_MODULE(Block);

struct ResNetImpl : torch::nn::Module {
  torch::nn::Sequential stem{register_module("stem", convolution(1, 8, 2))};  // [n, 8, 14, 14]
  Block near{register_module("near", Block(8, 16))};                          // [n, 16, 7, 7]
  Block far{register_module("far", Block(16, 32))};                           // [n, 32, 4, 4]
  torch::nn::Linear classes{register_module("classes", torch::nn::Linear(32, 10))};

  torch::Tensor forward(const torch::Tensor& x) {
    return classes(far(near(torch::relu(stem->forward(x)))).mean({2, 3}));
  }
};
TORCH_MODULE(ResNet);

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 4;
  const int64_t batch_size = 64;
  const auto group = lockstep::init_process_group();       // +
  const auto per_rank = batch_size / group->world_size();  // +

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  ResNet model;
  lockstep::convert_sync_batchnorm(model);  // + statistics of the whole batch, not only of this rank's part
  lockstep::DistributedDataParallel ddp(model);  // +
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::Scheduler scheduler(optimizer, lockstep::schedules::exponential(0.5));  // +

  auto data = Pictures(1280, "").map(Stack<>());
  auto loader = lockstep::make_data_loader(std::move(data), per_rank, {.shuffle = false});
  // was: auto loader = torch::data::make_data_loader<SequentialSampler>(std::move(data), batch_size);

  std::optional<lockstep::Snapshots> snapshots;                                  // +
  if (argc > 2) snapshots.emplace(argv[2]);                                      // +
  lockstep::Position start;                                                      // +
  if (snapshots) start = snapshots->resume(ddp, optimizer, *loader, scheduler);  // +
  for (auto epoch = start.epoch; epoch < epochs; ++epoch) {
    // was: for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    auto sum = torch::zeros({1});
    int steps = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(ddp(batch.data), batch.target);
      // was: auto loss = torch::cross_entropy_loss(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      sum += loss.detach();
      ++steps;
    }
    scheduler.step();
    // was: for (auto& each : optimizer.param_groups()) each.options().set_lr(each.options().get_lr() / 2);
    group->all_reduce(sum, lockstep::ReduceOp::Avg);                                           // +
    if (snapshots) snapshots->save(ddp, optimizer, *loader, scheduler, {.epoch = epoch + 1});  // +
    if (group->rank() == 0)                                                                    // +
      std::printf("epoch %ld  loss %.4f\n", epoch + 1, sum.item<double>() / steps);
  }
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
