// Example 1: plain LibTorch, one process.
//
//   build/release/examples/1_single/train [epochs]
#include <cstdio>
#include <cstdlib>

#include <torch/torch.h>

#include "spirals.h"

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 10;
  const int64_t batch_size = 240;

  torch::manual_seed(7);
  Net net;
  torch::optim::Adam optimizer(net->parameters(), 5e-3);

  auto data = Spirals(12000).map(torch::data::transforms::Stack<>());
  auto loader =
      torch::data::make_data_loader<torch::data::samplers::RandomSampler>(std::move(data), batch_size);

  for (int epoch = 0; epoch < epochs; ++epoch) {
    double loss_sum = 0;
    int steps = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(net(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++steps;
    }
    std::printf("epoch %d  loss %.4f\n", epoch + 1, loss_sum / steps);
  }
  std::printf("accuracy on new points: %.1f %%\n", 100 * accuracy(net));
}
