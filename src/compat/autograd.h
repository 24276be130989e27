// Autograd's hooks, whose types differ between LibTorch's versions.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::compat {

// Identifies a node of the graph.
using NodeAddress = const void*;

// Until it is destroyed, calls `fire` in autograd's thread whenever autograd has accumulated a gradient into
// the parameter's .grad.
class GradientHook {
 public:
  GradientHook(const at::Tensor& parameter, std::function<void()> fire);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) = delete;

  // The node that accumulates into this parameter.
  NodeAddress node() const;
  // Whether it still does: after torch::load, another one does.
  bool belongs_to(const at::Tensor& parameter) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Must be called within a backward pass. Registers a callback that is called once, at the end of the pass and
// before backward() returns. backward() throws what the callback throws.
void at_end_of_backward(std::function<void()> callback);

// Must be called within a backward pass. Returns whether the pass accumulates into any of these nodes.
// torch::autograd::grad, which returns gradients to its caller, does not.
bool accumulates_into(const std::unordered_map<NodeAddress, size_t>& nodes);

// Calls `visit` for every node through which gradients of these tensors will flow.
void walk_graph(const std::vector<at::Tensor>& tensors, const std::function<void(NodeAddress)>& visit);

}  // namespace lockstep::compat
