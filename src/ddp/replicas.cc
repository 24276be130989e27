#include "ddp/replicas.h"

#include <fmt/format.h>
#include <map>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/flatten.h"
#include "ddp/digest.h"

namespace lockstep::ddp {

namespace {

// From this size on, a separate call costs less than the copies.
constexpr size_t kLarge = size_t{256} << 10;

void broadcast_together(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  const auto flat = comm::flatten(tensors);
  group.broadcast(flat, root);
  if (group.rank() != root) comm::unflatten(flat, tensors);
}

}  // namespace

void broadcast_all(ProcessGroup& group, const NamedTensors& tensors, int root) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> small;
  for (const auto& [name, named] : tensors) {
    if (!named.defined() || named.numel() == 0) continue;
    // Does not share the version counter: the graphs of earlier forwards may have saved the buffer.
    auto tensor = named.data();
    if (tensor.nbytes() >= kLarge) {
      group.broadcast(tensor, root);
    } else {
      small[{tensor.scalar_type(), tensor.device().str()}].push_back(tensor);
    }
  }
  for (auto& [key, together] : small) broadcast_together(group, together, root);
}

std::optional<Difference> first_difference(ProcessGroup& group, const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> mine(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i].second;
    if (!tensor.defined()) continue;
    const auto values = tensor.detach().to(at::kCPU).contiguous();
    mine[i] = digest(values.data_ptr(), values.nbytes());
  }
  const auto digests = comm::control_of(group).gather_lists("comparison of the replicas", mine);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string others;
    for (size_t rank = 1; rank < digests.size(); ++rank) {
      if (digests[rank][i] == digests[0][i]) continue;
      others += fmt::format("{}{}", others.empty() ? "" : ", ", rank);
    }
    if (!others.empty()) return Difference{tensors[i].first, others};
  }
  return std::nullopt;
}

void check_same_values(ProcessGroup& group, const NamedTensors& tensors, const char* when) {
  const auto difference = first_difference(group, tensors);
  if (!difference) return;
  throw MismatchError(base::compose(
      {.what = fmt::format("'{}' is not the same on all ranks {}", difference->name, when),
       .where = fmt::format("rank {}/{}", group.rank(), group.world_size()),
       .evidence =
           fmt::format("it differs from rank 0 on rank {}; it is the first of {} tensors that differs",
                       difference->ranks, tensors.size()),
       .hint =
           "set the same seed on all ranks before the model is created, or use InitSync::Broadcast; do not "
           "change parameters on only some of the ranks"}));
}

}  // namespace lockstep::ddp
