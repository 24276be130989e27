// One rank of the tests between machines that network namespaces simulate (tests/multinode/*).
//
//   multinode_probe equal            trains with DDP, and compares with one process; prints a digest of the
//   parameters multinode_probe bytes INTERFACE  counts the bytes of gradients that cross this machine's link
//   multinode_probe work SECONDS     averages gradients for so long, or until an error
//   multinode_probe survive          rank 1 is killed; the others end well, and say so as the last thing
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <stdexcept>
#include <string>

#include <lockstep/lockstep.h>

#include "support/data.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("it does not hold that " + what);
}

struct Net : torch::nn::Module {
  Net()
      : layers(
            register_module("layers", torch::nn::Sequential(torch::nn::Linear(64, 1024), torch::nn::ReLU(),
                                                            torch::nn::Linear(1024, 1024), torch::nn::ReLU(),
                                                            torch::nn::Linear(1024, 4)))) {}
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

std::shared_ptr<Net> make_net() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

at::Tensor batch_of(int64_t rows, int step) {
  return torch::sin(torch::arange(rows * 64, at::kFloat).view({rows, 64}) * 0.37 + step);
}

void step(torch::optim::SGD& optimizer, const at::Tensor& output) {
  optimizer.zero_grad();
  torch::mse_loss(output, torch::ones_like(output)).backward();
  optimizer.step();
}

uint64_t digest_of(const std::vector<at::Tensor>& tensors) {
  uint64_t digest = 14695981039346656037U;
  for (const auto& tensor : tensors) {
    const auto dense = tensor.detach().contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(dense.data_ptr());
    for (size_t i = 0; i < dense.nbytes(); ++i) digest = (digest ^ bytes[i]) * 1099511628211U;
  }
  return digest;
}

void reduce_everything(ProcessGroup& group) {
  for (const auto dtype : lockstep::testing::all_dtypes()) {
    for (const int64_t count : {1, 5000, 300'000}) {
      auto tensor = lockstep::testing::exact_data({count}, dtype, group.rank());
      auto expected = lockstep::testing::exact_data({count}, dtype, 0);
      for (int rank = 1; rank < group.world_size(); ++rank) {
        const auto other = lockstep::testing::exact_data({count}, dtype, rank);
        expected = dtype == at::kBool ? expected.logical_or(other) : expected + other;
      }
      group.all_reduce(tensor);
      expect(lockstep::testing::same(tensor, expected.to(dtype)),
             fmt::format("a sum of {} {} is right", count, c10::toString(dtype)));
    }
  }
}

void train_and_compare(const std::shared_ptr<ProcessGroup>& group) {
  constexpr int kSteps = 5;
  constexpr int64_t kRows = 24;  // of each rank
  DistributedDataParallel ddp(make_net(), group);
  const auto alone = make_net();
  torch::optim::SGD optimizer(ddp.parameters(), 0.05), optimizer_alone(alone->parameters(), 0.05);
  for (int i = 0; i < kSteps; ++i) {
    const auto batch = batch_of(kRows * group->world_size(), i);
    step(optimizer, ddp(batch.narrow(0, kRows * group->rank(), kRows)));
    step(optimizer_alone, alone->forward(batch));
  }
  ddp.verify_replicas();
  const auto parameters = ddp.parameters(), expected = alone->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect(at::allclose(parameters[i], expected[i], 1e-4, 1e-6), "training equals that of one process");
  }
  std::printf("digest %016llx\n", static_cast<unsigned long long>(digest_of(parameters)));
}

int64_t read_counter(const std::string& interface, const char* direction) {
  int64_t bytes = -1;
  std::ifstream(fmt::format("/sys/class/net/{}/statistics/{}_bytes", interface, direction)) >> bytes;
  expect(bytes >= 0, "the interface " + interface + " has counters");
  return bytes;
}

// Per machine and step, no more than 5 % above 2 (H - 1) / H of the gradients' bytes in each direction.
void count_bytes(const std::shared_ptr<ProcessGroup>& group, const std::string& interface) {
  constexpr int kSteps = 4;
  auto net = std::make_shared<torch::nn::LinearImpl>(1 << 10, 6 << 10);  // 25 MB
  DistributedDataParallel ddp(net, group);
  const auto input = torch::ones({1, 1 << 10});
  const auto backward = [&] { ddp(input).sum().backward(); };
  backward();  // the plan changes after the first step
  group->barrier();
  const auto sent = read_counter(interface, "tx"), received = read_counter(interface, "rx");
  for (int i = 0; i < kSteps; ++i) backward();
  group->barrier();
  double gradients = 0;
  for (const auto& parameter : ddp.parameters()) gradients += static_cast<double>(parameter.nbytes());
  const double machines = group->num_nodes();
  const double bound = 2 * (machines - 1) / machines * gradients * kSteps;
  const auto check = [&](const char* what, int64_t before, const char* direction) {
    const auto ratio = static_cast<double>(read_counter(interface, direction) - before) / bound;
    std::printf("%s %.4f of the bound\n", what, ratio);
    expect(ratio >= 1 && ratio <= 1.05, "the link carries what the gradients need");
  };
  if (group->local_rank() == 0) {
    check("sent", sent, "tx");
    check("received", received, "rx");
  }
}

void work(ProcessGroup& group, int seconds) {
  auto gradients = group.empty({6 << 20}, at::kFloat).fill_(1);
  auto more = at::ones({1});
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  std::printf("working\n");
  for (int steps = 0;; ++steps) {
    group.all_reduce(gradients, ReduceOp::Avg);
    if (group.rank() == 0) more.fill_(Clock::now() < end ? 1 : 0);
    group.broadcast(more);
    if (more.item<int>() == 0) break;
  }
  expect(gradients.eq(1).all().item<bool>(), "averages of ones are one");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "survive") {
    // Runs after the handlers that are registered later; one of them finalises MPI.
    std::atexit([] {
      std::printf("survived\n");
      std::fflush(stdout);
    });
  }
  const auto seconds = [&] { return argc > 2 ? std::stoi(argv[2]) : 10; };
  try {
    const auto group = init_process_group({.timeout = std::chrono::seconds(60)});
    std::printf("rank %d of %d, local %d of %d, node %d of %d, backend %s\n", group->rank(),
                group->world_size(), group->local_rank(), group->local_world_size(), group->node_rank(),
                group->num_nodes(), group->backend().c_str());
    if (what == "equal") {
      reduce_everything(*group);
      train_and_compare(group);
    } else if (what == "bytes") {
      count_bytes(group, argv[2]);
    } else if (what == "work") {
      work(*group, seconds());
    } else if (what == "survive") {
      auto tensor = at::ones({1000});
      group->all_reduce(tensor);
      if (group->rank() == 1) std::raise(SIGKILL);
      group->all_reduce(tensor);
    } else {
      throw std::runtime_error("unknown: \"" + what + "\"");
    }
    group->barrier();
    return 0;
  } catch (const PeerLostError& error) {
    std::fprintf(stderr, "PeerLostError: %s\n", error.what());
    if (what == "survive") {
      destroy_process_group();
      return 0;
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
