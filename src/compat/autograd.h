// Autograd's hooks, whose types differ between LibTorch's versions.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::compat {

// A place in the graph, for comparing.
using NodeAddress = const void*;

// Calls `fire` whenever autograd has accumulated a gradient into the parameter's .grad, in autograd's thread,
// until it is destroyed.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> fire);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) = delete;

  // The node that accumulates into this parameter.
  NodeAddress node() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Within a backward pass: has this called once, when the pass is over and before backward() returns. What it
// throws comes out of backward().
void at_end_of_backward(std::function<void()> callback);

// Within a backward pass: whether it is to accumulate into any of these nodes. torch::autograd::grad, which
// hands gradients to its caller, does not.
bool accumulates_into(const std::unordered_map<NodeAddress, size_t>& nodes);

// Calls `visit` for every node that gradients of these tensors will flow through.
void walk_graph(const std::vector<at::Tensor>& tensors, const std::function<void(NodeAddress)>& visit);

}  // namespace lockstep::compat
