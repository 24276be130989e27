// Trains a TorchScript model. Such a file is usually written by Python; here it is created in C++ if it does
// not exist.
// Shows: lockstep/jit.h, a file that one rank writes and all ranks read.
//
//   build/release/examples/ports/torchscript [model.pt]
//   build/release/bin/lockstep run --nproc-per-node 2 build/release/examples/ports/torchscript model.pt
//
// Lines marked + are new; "was" shows the line that was there before.
#include <cstdio>
#include <filesystem>
#include <string>

#include <ATen/core/ivalue.h>  // first: in C++20, clang compiles the next header only after it
#include <torch/script.h>

#include <lockstep/jit.h>       // +
#include <lockstep/lockstep.h>  // was: #include <torch/torch.h>

#include "digest.h"
#include "spirals.h"

using torch::data::samplers::SequentialSampler;

std::vector<torch::Tensor> parameters_of(const torch::jit::Module& model) {
  std::vector<torch::Tensor> list;
  for (const auto& parameter : model.parameters()) list.push_back(parameter);
  return list;
}

void write_model(const std::string& path) {
  torch::jit::Module model("Net");
  model.register_attribute("training", c10::BoolType::get(), true);
  const auto add = [&](const std::string& name, const torch::Tensor& value) {
    model.register_parameter(name, value.requires_grad_(), false);
  };
  add("w1", torch::randn({2, 64}));
  add("b1", torch::zeros({64}));
  add("w2", torch::randn({64, 64}) / 8);
  add("b2", torch::zeros({64}));
  add("w3", torch::randn({64, 2}) / 8);
  model.define(R"(
def forward(self, points):
    first = torch.relu(torch.matmul(points, self.w1) + self.b1)
    second = torch.relu(torch.matmul(first, self.w2) + self.b2)
    return torch.matmul(second, self.w3)
)");
  model.save(path);
}

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "spirals.pt";
  const auto group = lockstep::init_process_group();  // +
  torch::manual_seed(1);
  if (group->rank() == 0)  // +
    if (!std::filesystem::exists(path)) write_model(path);
  group->barrier();  // + wait until the file exists
  auto model = torch::jit::load(path);
  lockstep::DistributedDataParallel ddp(model);  // + a copy refers to the same module
  const auto parameters = parameters_of(model);
  torch::optim::Adam optimizer(parameters, 5e-3);

  auto data = Spirals(6000).map(torch::data::transforms::Stack<>());
  const auto per_rank = 120 / group->world_size();  // +
  auto loader = lockstep::make_data_loader(std::move(data), per_rank, {.shuffle = false});
  // was: auto loader = torch::data::make_data_loader<SequentialSampler>(std::move(data), 120);

  for (int epoch = 1; epoch <= 8; ++epoch) {
    auto sum = torch::zeros({1});
    int steps = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto output = ddp->forward({batch.data}).toTensor();
      // was: const auto output = model.forward({batch.data}).toTensor();
      auto loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      optimizer.step();
      sum += loss.detach();
      ++steps;
    }
    group->all_reduce(sum, lockstep::ReduceOp::Avg);  // +
    if (group->rank() == 0)                           // +
      std::printf("epoch %d  loss %.4f\n", epoch, sum.item<double>() / steps);
  }
  std::printf("parameters %s\n", to_hex(digest_of(parameters)).c_str());
  if (group->rank() == 0)  // +
    model.save(path);
}
