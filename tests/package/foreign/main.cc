// A user's program, which uses only the installed package.
#include <cstdio>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main() {
  const auto group = lockstep::init_process_group({.timeout = std::chrono::seconds(30)});
  auto tensor = torch::full({4}, group->rank() + 1.0);
  group->all_reduce(tensor);
  std::printf("rank %d of %d: sum %.0f\n", group->rank(), group->world_size(), tensor[0].item<double>());
  return 0;
}
