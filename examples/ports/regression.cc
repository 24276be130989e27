// Polynomial regression: finds the coefficients of a hidden polynomial, until the loss is small.
// Shows: random values that all ranks must share, random values that must differ, and a stopping condition
// that is the same on all ranks.
//
//   build/release/examples/ports/regression
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/regression
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"

constexpr int64_t kDegree = 3;

// [n] to [n, degree]: x, x^2, …
torch::Tensor powers(const torch::Tensor& x) {
  std::vector<torch::Tensor> columns;
  for (int64_t exponent = 1; exponent <= kDegree; ++exponent) columns.push_back(x.pow(exponent));
  return torch::stack(columns, 1);
}

int main() {
  const int64_t batch_size = 64;
  const auto group = lockstep::init_process_group();       // +
  const auto per_rank = batch_size / group->world_size();  // +

  // Without a seed, each run has a different target, which is the same on all ranks.
  auto target = torch::randn({kDegree, 1}) * 3;
  auto offset = torch::randn({1}) * 3;

  torch::nn::Linear model(kDegree, 1);
  lockstep::DistributedDataParallel ddp(model);  // +
  torch::optim::Adam optimizer(model->parameters(), 0.05);

  lockstep::seed_everything(1);  // + from here on, each rank draws different points
  int64_t step = 0;
  for (double loss = 1; loss > 1e-5 && step < 5000; ++step) {
    const auto x = powers(torch::rand({per_rank}) * 2 - 1);
    // was: const auto x = powers(torch::rand({batch_size}) * 2 - 1);
    optimizer.zero_grad();
    auto error = torch::mse_loss(ddp(x), x.mm(target) + offset);
    // was: auto error = torch::mse_loss(model(x), x.mm(target) + offset);
    error.backward();
    optimizer.step();
    loss = lockstep::mean(error.item<double>());  // was: loss = error.item<double>();
    if (step % 100 == 0 && group->rank() == 0)
      // was: if (step % 100 == 0)
      std::printf("step %ld  loss %.6f\n", step, loss);
  }
  const auto missed =
      torch::cat({model->weight.t() - target, (model->bias - offset).view({1, 1})}).abs().max();
  std::printf("after %ld steps the coefficients are off by %.4f\n", step, missed.item<double>());
  std::printf("parameters %s\n", to_hex(digest_of(model->parameters())).c_str());
}
