#include "compat/autograd.h"

#include <unordered_set>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::compat {

namespace autograd = torch::autograd;

namespace {

class PostHook : public autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> fire) : fire_(std::move(fire)) {}

  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    fire_();
    return outputs;
  }

 private:
  std::function<void()> fire_;
};

}  // namespace

struct GradientHook::Impl {
  // A shared_ptr up to LibTorch 2.x, an intrusive_ptr later. The parameter itself has only a weak reference.
  decltype(autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) accumulator;
  uintptr_t key;
};

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void()> fire)
    : impl_(std::make_unique<Impl>()) {
  // A frozen parameter has no accumulator, but keeps one that it already has.
  const bool frozen = !parameter.requires_grad();
  if (frozen) parameter.set_requires_grad(true);
  impl_->accumulator = autograd::impl::grad_accumulator(parameter);
  if (frozen) parameter.set_requires_grad(false);
  impl_->key = impl_->accumulator->add_post_hook(std::make_unique<PostHook>(std::move(fire)));
}

GradientHook::~GradientHook() {
  if (impl_) impl_->accumulator->del_post_hook(impl_->key);
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

NodeAddress GradientHook::node() const { return impl_->accumulator.get(); }

bool GradientHook::belongs_to(const at::Tensor& parameter) const {
  return !parameter.requires_grad() || autograd::impl::grad_accumulator(parameter) == impl_->accumulator;
}

void at_end_of_backward(std::function<void()> callback) {
  autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

bool accumulates_into(const std::unordered_map<NodeAddress, size_t>& nodes) {
  const auto* wanted = autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;  // everything
  for (const auto& [node, info] : *wanted) {
    if (info.needed_ && nodes.contains(node)) return true;
  }
  return false;
}

void walk_graph(const std::vector<at::Tensor>& tensors, const std::function<void(NodeAddress)>& visit) {
  std::unordered_set<const autograd::Node*> seen;
  std::vector<autograd::Node*> open;
  const auto add = [&](autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  std::vector<decltype(autograd::impl::gradient_edge(at::Tensor()).function)> roots;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    roots.push_back(autograd::impl::gradient_edge(tensor).function);
    add(roots.back().get());
  }
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    visit(node);
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
}

}  // namespace lockstep::compat
