// A program that uses MPI itself, and joins a lockstep job with it: own_mpi LEVEL KEEP|LEAVE|APART.
//   LEVEL  single or multiple: what it asks MPI_Init_thread for
//   KEEP   finalises MPI while its group exists; LEAVE: destroys the group before
//   APART  only the processes except for the last one join, and the last one waits
#include <cstdio>
#include <mpi.h>
#include <string>

#include <ATen/ATen.h>

#include <lockstep/process_group.h>

namespace {

int sum_over_mpi(int mine) {
  int sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

void join(int rank, int size, bool leave) {
  const auto group =
      lockstep::init_process_group({.rank = rank, .world_size = size, .timeout = std::chrono::minutes(1)});
  auto tensor = at::full({100'000}, rank + 1);
  auto work = group->all_reduce_async(tensor);
  const int own = sum_over_mpi(rank + 1);
  work.wait();
  std::printf("rank %d of %d, backend %s, sum %d, by MPI %d\n", rank, size, group->backend().c_str(),
              tensor[0].item<int>(), own);
  if (leave) lockstep::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string level = argc > 1 ? argv[1] : "", how = argc > 2 ? argv[2] : "";
  int provided = 0, rank = 0, size = 0;
  MPI_Init_thread(&argc, &argv, level == "single" ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int status = 0;
  try {
    if (how != "APART") {
      join(rank, size, how == "LEAVE");
    } else if (rank + 1 < size) {
      join(rank, size - 1, true);
    }
  } catch (const lockstep::Error& error) {
    std::printf("%s: %s\n", std::string(error.kind()).c_str(), error.what());
    status = 1;
  }
  std::fflush(stdout);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return status;
}
