// Trains a small net to tell two spirals apart, one replica in each process.
//
//   build/release/examples/demo                                                   one process
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/demo     two, same global batch
//
// The batch is split over the ranks, so that any number of them takes the same steps; afterwards every rank
// must hold the same parameters, bit for bit.
#include <chrono>
#include <cstdio>

#include <lockstep/lockstep.h>

namespace {

constexpr int64_t kGlobalBatch = 240;  // divisible by 1 … 6 ranks
constexpr int kSteps = 600;

// Two interleaved spirals; the same points on every rank.
std::pair<torch::Tensor, torch::Tensor> spirals(int64_t count) {
  const auto t = torch::rand({count}) * 3.0 + 0.3;
  const auto label = torch::randint(2, {count});
  const auto angle = t * 3.0 + label * M_PI;
  const auto noise = torch::randn({count, 2}) * 0.05;
  return {torch::stack({t * torch::cos(angle), t * torch::sin(angle)}, 1) + noise, label};
}

int train() {
  const auto group = lockstep::init_process_group();
  if (kGlobalBatch % group->world_size() != 0) {
    throw lockstep::UsageError(
        "the batch of 240 does not divide by the number of ranks\nhint: use 1 to 6 of them");
  }
  const bool speaks = group->rank() == 0;

  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                              torch::nn::ReLU(), torch::nn::Linear(64, 2));
  lockstep::DistributedDataParallel ddp(model, group);
  torch::optim::Adam optimizer(ddp.parameters(), 5e-3);

  const int64_t share = kGlobalBatch / group->world_size();
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    const auto [points, labels] = spirals(kGlobalBatch);
    const auto mine = torch::indexing::Slice(group->rank() * share, (group->rank() + 1) * share);
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(ddp(points.index({mine})), labels.index({mine}));
    loss.backward();  // gradients are averaged when this returns
    optimizer.step();

    auto mean_loss = loss.detach();
    group->all_reduce(mean_loss, lockstep::ReduceOp::Avg);
    if (speaks && (step + 1) % 100 == 0)
      std::printf("step %4d  loss %.4f\n", step + 1, mean_loss.item<double>());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  torch::manual_seed(99);
  const auto [points, labels] = spirals(10000);
  const auto accuracy = model->forward(points).argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  ddp.verify_replicas();  // throws if they are not the same, bit for bit
  if (speaks) {
    std::printf(
        "%d process%s, backend %s: %.1f s, %.1f %% of 10000 new points right, replicas identical: yes\n",
        group->world_size(), group->world_size() == 1 ? "" : "es", group->backend().c_str(), seconds.count(),
        100 * accuracy);
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
    return 1;
  }
}
