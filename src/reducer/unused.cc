#include "reducer/unused.h"

namespace lockstep::reducer {

Flags reachable(const std::vector<at::Tensor>& outputs,
                const std::unordered_map<compat::NodeAddress, size_t>& nodes) {
  Flags reached(nodes.size());
  compat::walk_graph(outputs, [&](compat::NodeAddress node) {
    const auto found = nodes.find(node);
    if (found != nodes.end()) reached[found->second] = true;
  });
  return reached;
}

}  // namespace lockstep::reducer
