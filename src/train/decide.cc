// all_agree, any, mean and averaged.
#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/decide.h>
#include <lockstep/error.h>

#include "comm/control.h"
#include "comm/purpose.h"
#include "train/group_of.h"

namespace lockstep {

namespace {

std::vector<char> votes(const char* name, bool mine, ProcessGroup& group) {
  const comm::Purpose purpose(name);
  return comm::control_of(group).gather<char>(name, mine ? 1 : 0);
}

}  // namespace

bool all_agree(bool mine, ProcessGroup& group) {
  const auto all = votes("all_agree", mine, group);
  return std::find(all.begin(), all.end(), 0) == all.end();
}

bool all_agree(bool mine, const std::shared_ptr<ProcessGroup>& group) {
  return all_agree(mine, train::group_of(group, "all_agree"));
}

bool any(bool mine, ProcessGroup& group) {
  const auto all = votes("any", mine, group);
  return std::find(all.begin(), all.end(), 1) != all.end();
}

bool any(bool mine, const std::shared_ptr<ProcessGroup>& group) {
  return any(mine, train::group_of(group, "any"));
}

double mean(double mine, ProcessGroup& group) {
  const comm::Purpose purpose("mean");
  // Every rank adds in rank order: the same bits everywhere.
  double sum = 0;
  for (const auto theirs : comm::control_of(group).gather("mean", mine)) sum += theirs;
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
