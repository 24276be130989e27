// Example 4: example 3 with snapshots. If it is killed at any moment and restarted, it resumes from the
// newest snapshot and computes the same results. Lines marked + are new.
//
//   T=build/release/examples/4_launcher_and_snapshots/train
//   build/release/bin/lockstep run --nproc-per-node 2 --max-restarts 3 $T run1 [epochs]
//   build/release/bin/lockstep snapshot ls run1
#include <cstdio>
#include <cstdlib>

#include <lockstep/lockstep.h>

#include "spirals.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: train DIRECTORY [epochs]\n");
    return 2;
  }
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 10;
  const auto group = lockstep::init_process_group();
  const int64_t batch_size = 240 / group->world_size();

  torch::manual_seed(7);
  Net net;
  lockstep::DistributedDataParallel ddp(net, group);
  torch::optim::Adam optimizer(net->parameters(), 5e-3);

  auto data = Spirals(12000).map(torch::data::transforms::Stack<>());
  auto loader = lockstep::make_data_loader(std::move(data), batch_size, group);

  lockstep::Snapshots snapshots(argv[1], group);                 // +
  const auto start = snapshots.resume(ddp, optimizer, *loader);  // + zeros the first time
  if (group->rank() == 0 && start.step > 0) {                    // +
    std::printf("resuming at epoch %ld, step %ld\n", start.epoch + 1, start.step);
  }

  auto step = start.step;                                    // +
  for (auto epoch = start.epoch; epoch < epochs; ++epoch) {  // +
    loader->set_epoch(epoch);
    lockstep::Average mean_loss;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(ddp(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      mean_loss.add(loss.item<double>(), batch.target.size(0));
      // + also in the middle of an epoch
      if (++step % 20 == 0) snapshots.save(ddp, optimizer, *loader, {.epoch = epoch, .step = step});
    }
    const auto loss = mean_loss.all_reduce(*group);
    if (group->rank() == 0) std::printf("epoch %ld  loss %.4f\n", epoch + 1, loss);
    snapshots.save(ddp, optimizer, *loader, {.epoch = epoch + 1, .step = step});  // +
  }
  ddp.verify_replicas();
  if (group->rank() == 0) std::printf("accuracy on new points: %.1f %%\n", 100 * accuracy(net));
}
