#include "reducer/learn.h"

#include <ATen/ATen.h>

namespace lockstep::reducer {

Learned agree(ProcessGroup& group, int leader, const Learned& seen) {
  const auto count = static_cast<int64_t>(seen.order.size());
  auto order = at::empty({count}, at::kLong);
  auto flags = at::empty({2, count}, at::kByte);
  for (int64_t i = 0; i < count; ++i) {
    order.data_ptr<int64_t>()[i] = static_cast<int64_t>(seen.order[i]);
    flags.data_ptr<uint8_t>()[i] = seen.sparse[i] ? 1 : 0;
    flags.data_ptr<uint8_t>()[count + i] = seen.used[i] ? 1 : 0;
  }
  group.broadcast(order, leader);
  group.all_reduce(flags, ReduceOp::Max);

  Learned agreed;
  for (int64_t i = 0; i < count; ++i) {
    agreed.order.push_back(static_cast<size_t>(order.data_ptr<int64_t>()[i]));
    agreed.sparse.push_back(flags.data_ptr<uint8_t>()[i] != 0);
    agreed.used.push_back(flags.data_ptr<uint8_t>()[count + i] != 0);
  }
  return agreed;
}

std::vector<size_t> complete_order(const std::vector<size_t>& ready, size_t count) {
  std::vector<bool> there(count);
  for (const auto index : ready) there[index] = true;
  auto order = ready;
  for (size_t index = count; index-- > 0;) {
    if (!there[index]) order.push_back(index);
  }
  return order;
}

}  // namespace lockstep::reducer
