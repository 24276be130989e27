#include "reducer/agree.h"

#include "comm/control.h"

namespace lockstep::reducer {

Learned agree(ProcessGroup& group, int leader, const Learned& seen) {
  auto& control = comm::control_of(group);
  Learned agreed;
  agreed.order = control.list_of_root("DDP gradients, plan of the buckets", seen.order, leader);
  Flags flags = seen.sparse;
  flags.insert(flags.end(), seen.used.begin(), seen.used.end());
  const auto any = control.any("DDP gradients, plan of the buckets", flags);
  const auto middle = any.begin() + static_cast<std::ptrdiff_t>(seen.sparse.size());
  agreed.sparse.assign(any.begin(), middle);
  agreed.used.assign(middle, any.end());
  return agreed;
}

}  // namespace lockstep::reducer
