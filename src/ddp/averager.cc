#include <ATen/ATen.h>

#include <lockstep/comm_hook.h>
#include <lockstep/error.h>

#include "comm/purpose.h"

namespace lockstep {

PeriodicAverager::PeriodicAverager(std::shared_ptr<ProcessGroup> group, AveragerOptions options)
    : group_(std::move(group)), options_(options) {
  if (!group_) throw UsageError("PeriodicAverager needs a process group");
  if (options_.period < 1)
    throw UsageError("PeriodicAverager needs a period of at least 1 (AveragerOptions::period)");
}

bool PeriodicAverager::average(const std::vector<at::Tensor>& parameters) {
  const auto step = step_++;
  if (step < options_.warmup_steps || (step - options_.warmup_steps) % options_.period != 0) return false;
  if (group_->world_size() == 1) return true;
  const at::NoGradGuard no_grad;
  const comm::Purpose purpose("PeriodicAverager::average");
  std::vector<Work> works;
  for (const auto& parameter : parameters) {
    auto values = parameter.detach();
    works.push_back(group_->all_reduce_async(values, ReduceOp::Avg));
  }
  for (auto& work : works) work.wait();
  return true;
}

}  // namespace lockstep
