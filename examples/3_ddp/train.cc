// Example 3: example 1 with lockstep. Lines marked + are new.
//
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/3_ddp/train [epochs]
#include <cstdio>
#include <cstdlib>

#include <lockstep/lockstep.h>

#include "spirals.h"

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 10;
  const auto group = lockstep::init_process_group();     // +
  const int64_t batch_size = 240 / group->world_size();  // + the same global batch

  torch::manual_seed(7);
  Net net;
  lockstep::DistributedDataParallel ddp(net, group);  // +
  torch::optim::Adam optimizer(net->parameters(), 5e-3);

  auto data = Spirals(12000).map(torch::data::transforms::Stack<>());
  auto loader = lockstep::make_data_loader(std::move(data), batch_size, group);  // + this rank's share

  for (int epoch = 0; epoch < epochs; ++epoch) {
    loader->set_epoch(epoch);  // + each epoch has its own order
    lockstep::Average mean_loss;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(ddp(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      mean_loss.add(loss.item<double>(), batch.target.size(0));
    }
    const auto loss = mean_loss.all_reduce(*group);  // + over all ranks
    if (group->rank() == 0) std::printf("epoch %d  loss %.4f\n", epoch + 1, loss);
  }
  ddp.verify_replicas();  // + throws if they differ in any bit
  if (group->rank() == 0) std::printf("accuracy on new points: %.1f %%\n", 100 * accuracy(net));
}
