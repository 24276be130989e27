// A classifier: a convolutional net in a local variable, a training loop and a test loop.
// Shows: a module on the stack, loaders for training and for testing, metrics over all ranks.
//
//   build/release/examples/ports/mnist [folder with Fashion-MNIST]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/mnist
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>

#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "pictures.h"

using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

struct Net : torch::nn::Module {
  torch::nn::Conv2d near{register_module("near", torch::nn::Conv2d(1, 8, 5))};
  torch::nn::Conv2d far{register_module("far", torch::nn::Conv2d(8, 16, 5))};
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(16 * 4 * 4, 64))};
  torch::nn::Linear classes{register_module("classes", torch::nn::Linear(64, 10))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(near(x), 2));  // [n, 8, 12, 12]
    x = torch::relu(torch::max_pool2d(far(x), 2));   // [n, 16, 4, 4]
    x = torch::dropout(torch::relu(hidden(x.flatten(1))), 0.1, is_training());
    return torch::log_softmax(classes(x), 1);
  }
};

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  const int64_t batch_size = 64;
  const auto group = lockstep::init_process_group();  // +

  lockstep::seed_everything(1);  // was: torch::manual_seed(1);
  Net model;
  lockstep::DistributedDataParallel ddp(model);  // + the model stays on the stack
  torch::optim::Adam optimizer(model.parameters(), 2e-3);

  auto data = Pictures(2000, folder).map(Stack<>());
  const auto per_rank = batch_size / group->world_size();  // +
  auto loader = lockstep::make_data_loader(std::move(data), per_rank, {.shuffle = false});
  // was: auto loader = torch::data::make_data_loader<SequentialSampler>(std::move(data), batch_size);

  auto test_data = Pictures(500, folder, "t10k").map(Stack<>());
  const auto test_count = static_cast<double>(test_data.size().value());
  auto test_loader = lockstep::make_data_loader(std::move(test_data), 250, {.shuffle = false, .exact = true});
  // was: auto test_loader = torch::data::make_data_loader<SequentialSampler>(std::move(test_data), 250);

  for (int epoch = 1; epoch <= 6; ++epoch) {
    model.train();
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(ddp->forward(batch.data), batch.target);
      // was: auto loss = torch::nll_loss(model.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }

    const torch::NoGradGuard no_grad;
    model.eval();
    auto sums = torch::zeros({2}, torch::kDouble);  // the loss, right answers
    for (auto& batch : *test_loader) {
      const auto output = model.forward(batch.data);
      sums[0] += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum);
      sums[1] += output.argmax(1).eq(batch.target).sum();
    }
    group->all_reduce(sums);  // + over all ranks
    sums /= test_count;
    if (group->rank() == 0)  // +
      std::printf("epoch %d  loss %.4f  right %.3f\n", epoch, sums[0].item<double>(), sums[1].item<double>());
  }
  std::printf("parameters %s\n", to_hex(digest_of(model.parameters())).c_str());
}
