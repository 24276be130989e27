// A small training library in C++, as a Python module: a Python program calls it with the process group that
// it already has. trainer_program.py trains the same model in Python.
#include <pybind11/stl.h>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <lockstep/c10d.h>
#include <lockstep/ddp.h>

namespace {

// Without random numbers, so that Python can do the same.
void set_parameters(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(torch::linspace(-0.5, 0.5, parameter.numel()).view_as(parameter));
  }
}

at::Tensor input(int rank, int step) {
  return torch::sin(torch::arange(24, torch::kDouble) * (step + 1) + rank).to(torch::kFloat).view({6, 4});
}

// All ranks must call it, with a store of which no other call uses the keys.
std::vector<double> train(const c10::intrusive_ptr<c10d::ProcessGroup>& pythons,
                          const c10::intrusive_ptr<c10d::Store>& store, int steps, int hidden) {
  const auto group = lockstep::make_process_group(pythons, store);
  torch::nn::Sequential model(torch::nn::Linear(4, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, 1));
  set_parameters(*model);
  lockstep::DistributedDataParallel ddp(model.ptr(), group);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto loss = (ddp(input(group->rank(), step)) - 1).square().mean();
    losses.push_back(loss.item<double>());
    ddp.zero_grad();
    loss.backward();
    optimizer.step();
  }
  ddp.verify_replicas();
  return losses;
}

}  // namespace

PYBIND11_MODULE(trainer, module) {
  // Without Python's lock: the ranks wait for each other, and other threads of Python may run meanwhile.
  module.def("train", &train, pybind11::arg("group"), pybind11::arg("store"), pybind11::arg("steps"),
             pybind11::arg("hidden") = 8, pybind11::call_guard<pybind11::gil_scoped_release>());
}
