// The state of an optimizer, by parameter name.
//
// LibTorch keys the state by addresses, which are meaningless in another process. With names, a run continues
// bit for bit in a new optimizer, with another version of LibTorch, and with the parameters of a group in
// another order. Supports SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS; the vectors of LBFGS run over all
// parameters, whose order must not change.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include <torch/optim/optimizer.h>

#include "snapshot/named_tensors.h"

namespace lockstep::snapshot {

struct OptimizerState {
  // {"kind": "Adam", "groups": [{"options": {"lr": 0.001, …}, "parameters": ["fc1.weight", …]}],
  //  "steps": {"fc1.weight": 5, …}}
  // For floating-point numbers see numbers.h.
  nlohmann::json about;
  NamedTensors tensors;  // "<parameter name>/<slot>": "fc1.weight/exp_avg"
};

// Narrower than a float.
inline bool is_narrow(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// names: all parameters that the optimizer may hold; a shared one may have several names. Does not copy the
// tensors: the next step of the optimizer changes them. Throws UsageError for an unknown kind of optimizer
// and for a parameter without a name.
OptimizerState capture_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names);

// Checks that the state belongs to this optimizer, and returns a function that replaces the optimizer's state
// by it. Nothing changes until that function is called; it does not throw. Copies the tensors to the devices
// of the parameters. Throws SnapshotError if the kind, groups, parameters, shapes or dtypes differ.
std::function<void()> prepare_optimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                        const NamedTensors& names);

// The options of each parameter group; empty for an unknown kind of optimizer.
std::vector<nlohmann::json> options_of_groups(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::snapshot
