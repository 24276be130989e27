#include "shm/kinds.h"

#include <ATen/ATen.h>

namespace lockstep::testing {

namespace {

bool always(int, int) { return true; }
bool root_needs_all(int rank, int) { return rank == 0; }
bool all_need_root(int, int absent) { return absent == 0; }

at::Tensor ones(int64_t count) { return at::ones({count}); }

// Sends to the next rank and receives from the previous one.
std::vector<Work> around_the_ring(ProcessGroup& group, int64_t count) {
  const int world = group.world_size(), rank = group.rank();
  auto received = ones(count);
  auto sending = group.send_async(ones(count), (rank + 1) % world);
  return {sending, group.recv_async(received, (rank + world - 1) % world)};
}

}  // namespace

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> kinds = {
      {"all_reduce", "all_reduce",
       [](ProcessGroup& group, int64_t count) {
         auto tensor = ones(count);
         return std::vector{group.all_reduce_async(tensor)};
       },
       always},
      {"broadcast", "broadcast",
       [](ProcessGroup& group, int64_t count) {
         auto tensor = ones(count);
         return std::vector{group.broadcast_async(tensor, 0)};
       },
       all_need_root},
      {"reduce", "reduce",
       [](ProcessGroup& group, int64_t count) {
         auto tensor = ones(count);
         return std::vector{group.reduce_async(tensor, 0)};
       },
       root_needs_all},
      {"all_gather", "all_gather",
       [](ProcessGroup& group, int64_t count) { return std::vector{group.all_gather_async(ones(count))}; },
       always},
      {"all_gather_into_tensor", "all_gather",
       [](ProcessGroup& group, int64_t count) {
         auto output = ones(count * group.world_size());
         return std::vector{group.all_gather_into_tensor_async(output, ones(count))};
       },
       always},
      {"reduce_scatter_tensor", "reduce_scatter",
       [](ProcessGroup& group, int64_t count) {
         auto output = ones(count);
         return std::vector{group.reduce_scatter_tensor_async(output, ones(count * group.world_size()))};
       },
       always},
      {"gather", "gather",
       [](ProcessGroup& group, int64_t count) { return std::vector{group.gather_async(ones(count), 0)}; },
       root_needs_all},
      {"scatter", "scatter",
       [](ProcessGroup& group, int64_t count) {
         auto output = ones(count);
         std::vector<at::Tensor> inputs;
         for (int i = 0; i < group.world_size() && group.rank() == 0; ++i) inputs.push_back(ones(count));
         return std::vector{group.scatter_async(output, inputs, 0)};
       },
       all_need_root},
      {"all_to_all_single", "all_to_all",
       [](ProcessGroup& group, int64_t count) {
         auto output = ones(count * group.world_size());
         return std::vector{group.all_to_all_single_async(output, ones(count * group.world_size()))};
       },
       always},
      {"send_and_recv", "rank", around_the_ring, always},
      {"barrier", "barrier", [](ProcessGroup& group, int64_t) { return std::vector{group.barrier_async()}; },
       always},
  };
  return kinds;
}

}  // namespace lockstep::testing
