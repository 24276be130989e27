// all_agree, any, mean and averaged.
#include <ATen/ATen.h>

#include <lockstep/decide.h>
#include <lockstep/error.h>

#include "comm/purpose.h"
#include "train/group_of.h"

namespace lockstep {

namespace {

bool reduced(const char* name, bool mine, ProcessGroup& group, ReduceOp op) {
  const comm::Purpose purpose(name);
  auto vote = at::full({1}, mine ? 1 : 0, at::kInt);
  group.all_reduce(vote, op);
  return vote.item<int>() != 0;
}

}  // namespace

bool all_agree(bool mine, ProcessGroup& group) { return reduced("all_agree", mine, group, ReduceOp::Min); }

bool all_agree(bool mine, const std::shared_ptr<ProcessGroup>& group) {
  return all_agree(mine, train::group_of(group, "all_agree"));
}

bool any(bool mine, ProcessGroup& group) { return reduced("any", mine, group, ReduceOp::Max); }

bool any(bool mine, const std::shared_ptr<ProcessGroup>& group) {
  return any(mine, train::group_of(group, "any"));
}

double mean(double mine, ProcessGroup& group) {
  const comm::Purpose purpose("mean");
  // Gathered and summed in rank order by everybody, since the order in which a reduction adds is the
  // backend's.
  double sum = 0;
  for (const auto& theirs : group.all_gather(at::full({1}, mine, at::kDouble))) sum += theirs.item<double>();
  return sum / group.world_size();
}

double mean(double mine, const std::shared_ptr<ProcessGroup>& group) {
  return mean(mine, train::group_of(group, "mean"));
}

std::function<at::Tensor()> averaged(std::function<at::Tensor()> closure,
                                     std::shared_ptr<ProcessGroup> group) {
  train::group_of(group, "averaged");
  if (!closure) throw UsageError("averaged was given no closure (an empty function)");
  return [closure = std::move(closure), group = std::move(group)] {
    const auto loss = closure();
    return at::full_like(loss, mean(loss.item<double>(), *group));
  };
}

}  // namespace lockstep
