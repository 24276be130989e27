// An optimizer's state by the names of its parameters.
//
// LibTorch keys the state by addresses, which mean nothing in another process. By name, a run goes on bit for
// bit in an optimizer made anew, with another LibTorch, and with the parameters of a group in another order.
// SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS are known; LBFGS has one long vector of all parameters, whose
// order must stay.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include <torch/optim/optimizer.h>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

struct OptimizerState {
  // {"kind": "Adam", "groups": [{"options": {"lr": 0.001, …}, "parameters": ["fc1.weight", …]}],
  //  "steps": {"fc1.weight": 5, …}}
  // Floating-point numbers as in numbers.h.
  nlohmann::json about;
  NamedTensors tensors;  // "<parameter name>/<slot>": "fc1.weight/exp_avg"
};

// names: every parameter that may be in the optimizer; one that is shared may have several names. The tensors
// are the optimizer's own: the next step changes them. Throws UsageError for an optimizer of another kind and
// for a parameter without a name.
OptimizerState capture_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names);

// Checks that the state is one of this optimizer, and returns what makes the optimizer hold it and nothing
// else. Until that is called nothing has changed; it does not throw. The tensors are copied, to each
// parameter's device. Throws SnapshotError for a state of another kind, groups, parameters, shapes or dtypes.
std::function<void()> prepare_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                        const NamedTensors& names);

// The options of each parameter group, by name; nothing for an optimizer of another kind.
std::vector<nlohmann::json> options_of_groups(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::snapshot
