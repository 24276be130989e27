// A program to run under a launcher: joins the job, reduces a tensor, and prints its position in the job.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

#include <ATen/ATen.h>

#include <lockstep/process_group.h>

int main(int argc, char** argv) {
  try {
    // "probe random [SEED]": draws a random number; with SEED, each rank uses a different seed.
    const bool draws = argc > 1 && std::string(argv[1]) == "random";
    if (draws && argc > 2) at::manual_seed(std::atoi(argv[2]) + std::atoi(std::getenv("RANK")));
    const char* backend = std::getenv("PROBE_BACKEND");
    const char* method = std::getenv("PROBE_INIT_METHOD");
    const auto group = lockstep::init_process_group({.backend = backend != nullptr ? backend : "auto",
                                                     .init_method = method != nullptr ? method : "env://",
                                                     .timeout = std::chrono::minutes(2)});
    if (draws) {
      std::printf("rank %d drew %.17g\n", group->rank(), at::randn({1}, at::kDouble).item<double>());
      return 0;
    }
    auto tensor = at::full({5}, group->rank() + 1);
    group->all_reduce(tensor);
    std::printf("rank %d of %d, local %d of %d, node %d of %d, backend %s, sum %d\n", group->rank(),
                group->world_size(), group->local_rank(), group->local_world_size(), group->node_rank(),
                group->num_nodes(), group->backend().c_str(), tensor[0].item<int>());
    std::fflush(stdout);
    group->barrier();
    // "probe fail 1 [STATUS]": rank 1 exits after joining.
    if (argc > 2 && std::string(argv[1]) == "fail" && std::atoi(argv[2]) == group->rank()) {
      std::exit(argc > 3 ? std::atoi(argv[3]) : 3);
    }
    if (argc > 2) group->barrier();
    // "probe wait": each rank waits for a message of the next one, which sends none.
    if (argc > 1 && std::string(argv[1]) == "wait")
      group->recv(tensor, (group->rank() + 1) % group->world_size());
    return 0;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
    return 1;
  }
}
