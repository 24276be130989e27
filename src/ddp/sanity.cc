#include "ddp/sanity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "base/error_text.h"
#include "base/log.h"
#include "comm/control.h"
#include "comm/purpose.h"
#include "ddp/digest.h"
#include "ddp/replicas.h"

namespace lockstep::ddp {

namespace {

// A few numbers may be the same by chance, and constants (an initial state, a mask) by design.
constexpr int64_t kFewElements = 8;
constexpr int64_t kProbeElements = 4096;
// Consecutive checks: a short last batch, or a first batch for warming up, may be the same once.
constexpr int kSuspicious = 2;

bool is_comparable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() > 0;
}

at::Tensor bytes_in_order(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

bool is_telling(const at::Tensor& values) {
  if (values.numel() <= kFewElements) return false;
  const auto* const bytes = static_cast<const char*>(values.data_ptr());
  const size_t element = values.element_size();
  // If each element equals the previous one, all are equal.
  return std::memcmp(bytes, bytes + element, values.nbytes() - element) != 0;
}

int64_t mixed(int64_t digest_so_far, int64_t next) {
  const int64_t both[] = {digest_so_far, next};
  const auto result = digest(both, sizeof both);
  return result == 0 ? 1 : result;
}

int64_t digest_of_all(const NamedTensors& tensors) {
  int64_t all = 1;
  for (const auto& [name, tensor] : tensors) {
    if (!is_comparable(tensor)) continue;
    const auto values = bytes_in_order(tensor);
    all = mixed(all, digest(values.data_ptr(), values.nbytes()));
  }
  return all;
}

bool all_equal_and_known(const std::vector<int64_t>& digests) {
  return std::all_of(digests.begin(), digests.end(),
                     [&](int64_t theirs) { return theirs != 0 && theirs == digests.front(); });
}

bool all_known(const std::vector<int64_t>& digests) {
  return std::find(digests.begin(), digests.end(), 0) == digests.end();
}

}  // namespace

bool Sanity::is_look(int64_t pass) {
  if (pass == 2) return true;
  int64_t look = 1;
  while (look < pass) look *= 16;
  return look == pass;
}

void Sanity::note_inputs(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  int64_t all = inputs_ == 0 ? 1 : inputs_;
  bool telling = false;
  for (const auto& input : inputs) {
    if (!is_comparable(input)) continue;
    const auto values = bytes_in_order(input);
    all = mixed(all, digest(values.data_ptr(), values.nbytes()));
    if (telling || !is_telling(values)) continue;
    telling = true;
    first_input_ = fmt::format("{} [{}]", c10::toString(input.scalar_type()), fmt::join(input.sizes(), ", "));
  }
  if (telling || inputs_ != 0) inputs_ = all;
}

bool Sanity::after_pass(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters) {
  const at::NoGradGuard no_grad;
  ++passes_;
  const bool looked = is_look(passes_);
  if (looked) look(group, parameters, compare_parameters);
  inputs_ = 0;
  probe_ = {};
  if (looks_next() && compare_parameters && !warned_of_parameters_) keep_probe(parameters);
  return looked;
}

void Sanity::look(ProcessGroup& group, const NamedTensors& parameters, bool compare_parameters) {
  const comm::Purpose purpose("DDP checks (DdpOptions::checks)");
  struct Observed {
    int64_t inputs = 0, parameters = 0;  // digests; 0: unknown
    double moved = std::nan("");
  } mine;
  mine.inputs = inputs_;
  if (compare_parameters && !warned_of_parameters_ && passes_ > 1)
    mine.parameters = digest_of_all(parameters);
  if (probe_.before.defined()) {
    const auto now = bytes_in_order(parameters[probe_.index].second);
    mine.moved = (now - probe_.before).to(at::kDouble).norm().item<double>();
  }
  std::vector<int64_t> inputs, digests;
  std::vector<double> moved;
  for (const auto& theirs : comm::control_of(group).gather("DDP checks", mine)) {
    inputs.push_back(theirs.inputs);
    digests.push_back(theirs.parameters);
    moved.push_back(theirs.moved);
  }
  // From here on, all ranks have the same information and do the same.
  if (all_equal_and_known(inputs)) {
    ++equal_inputs_;
  } else if (all_known(inputs)) {
    equal_inputs_ = 0;
  }
  if (equal_inputs_ >= kSuspicious && !std::exchange(warned_of_inputs_, true)) warn_of_inputs(group);
  if (all_known(digests) && !all_equal_and_known(digests)) {
    warned_of_parameters_ = true;
    warn_of_parameters(group, parameters, moved);
  }
}

// The last small parameter that is trained: a bias near the outputs almost always gets a gradient.
void Sanity::keep_probe(const NamedTensors& parameters) {
  for (size_t index = parameters.size(); index-- > 0;) {
    const auto& tensor = parameters[index].second;
    if (!is_comparable(tensor) || !tensor.requires_grad() || tensor.numel() > kProbeElements) continue;
    probe_ = {.index = index, .before = bytes_in_order(tensor).clone()};
    return;
  }
}

void Sanity::warn_of_inputs(ProcessGroup& group) {
  if (group.rank() != 0) return;
  base::log_warn(
      "{}",
      base::compose(
          {.what = "all ranks got the same batch",
           .evidence = fmt::format("the inputs of forward ({}) were bitwise the same on all {} ranks, in {} "
                                   "consecutive checks; then {} ranks learn no more than one",
                                   first_input_, group.world_size(), kSuspicious, group.world_size()),
           .hint = "use lockstep::DistributedSampler sampler(data.size().value(), group) or "
                   "lockstep::make_data_loader to give each rank its share, and "
                   "lockstep::seed_everything(seed, group) for generated data. If all ranks are meant "
                   "to have the same input (a whole graph), set DdpOptions{.checks = false}"}));
}

void Sanity::warn_of_parameters(ProcessGroup& group, const NamedTensors& parameters,
                                const std::vector<double>& moved) {
  const auto difference = first_difference(group, parameters);
  if (!difference || group.rank() != 0) return;
  std::string movements;
  for (size_t rank = 0; rank < moved.size(); ++rank) {
    if (std::isnan(moved[rank])) continue;
    movements += fmt::format("{} {:.3g} on rank {}", movements.empty() ? "" : ",", moved[rank], rank);
  }
  if (!movements.empty())
    movements = fmt::format("; the last step moved '{}' by{}", parameters[probe_.index].first, movements);
  base::log_warn(
      "{}",
      base::compose(
          {.what =
               fmt::format("'{}' is not the same on all ranks after step {}", difference->name, passes_ - 1),
           .evidence = fmt::format("it differs from rank 0 on rank {}; it is the first of {} tensors that "
                                   "differs{}",
                                   difference->ranks, parameters.size(), movements),
           .hint =
               "gradients are averaged, so the optimizers differ: use the same options (learning rate, "
               "momentum, weight decay) on all ranks, and take each step on all ranks. If the ranks differ "
               "on purpose, set DdpOptions{.checks = false}"}));
}

}  // namespace lockstep::ddp
