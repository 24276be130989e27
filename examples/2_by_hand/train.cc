// Example 2: data parallelism by hand. simple_ddp.h contains the implementation.
//
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/2_by_hand/train [epochs]
#include <cstdio>
#include <cstdlib>

#include <lockstep/lockstep.h>

#include "simple_ddp.h"
#include "spirals.h"

namespace {

// Takes one step on this rank's part of the data, with or without averaging, and returns how much the
// replicas differ afterwards.
double difference_after_one_step(const std::shared_ptr<lockstep::ProcessGroup>& group, bool sync) {
  torch::manual_seed(7);
  Net net;
  SimpleDistributedDataParallel ddp(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const Spirals data(10 * group->world_size());
  const auto share = torch::indexing::Slice(10 * group->rank(), 10 * (group->rank() + 1));
  torch::cross_entropy_loss(ddp(data.points().index({share})), data.labels().index({share})).backward();
  if (sync) ddp.sync_gradients();
  optimizer.step();
  return ddp.greatest_difference();
}

}  // namespace

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 10;
  const int accumulate = 2;  // micro-batches per step
  const auto group = lockstep::init_process_group();
  const bool speaks = group->rank() == 0;
  const int64_t batch_size = 240 / group->world_size() / accumulate;

  const auto without = difference_after_one_step(group, false);
  const auto with = difference_after_one_step(group, true);
  if (speaks)
    std::printf("after one step replicas differ by %g without sync, by %g with sync\n", without, with);

  torch::manual_seed(7);
  Net net;
  SimpleDistributedDataParallel ddp(net, group);
  torch::optim::Adam optimizer(net->parameters(), 5e-3);

  // Each rank takes its own part of the points.
  const Spirals data(12000);
  const auto share = data.points().size(0) / group->world_size();
  const auto points = data.points().narrow(0, group->rank() * share, share).split(batch_size);
  const auto labels = data.labels().narrow(0, group->rank() * share, share).split(batch_size);

  for (int epoch = 0; epoch < epochs; ++epoch) {
    double loss_sum = 0;
    for (size_t i = 0; i < points.size(); ++i) {
      const bool last = (i + 1) % accumulate == 0;
      last ? ddp.enable_gradient_sync() : ddp.disable_gradient_sync();
      auto loss = torch::cross_entropy_loss(ddp(points[i]), labels[i]) / accumulate;
      loss.backward();
      loss_sum += loss.item<double>() * accumulate;
      if (!last) continue;
      ddp.sync_gradients();
      optimizer.step();
      optimizer.zero_grad();
    }
    if (speaks)
      std::printf("epoch %d  loss %.4f\n", epoch + 1, loss_sum / static_cast<double>(points.size()));
  }
  const bool same = ddp.is_same_everywhere();
  if (speaks) {
    std::printf("accuracy on new points: %.1f %%, replicas identical: %s\n", 100 * accuracy(net),
                same ? "yes" : "no");
  }
  return same ? 0 : 1;
}
