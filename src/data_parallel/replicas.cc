#include "data_parallel/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <typeinfo>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/error.h>

#include "base/error_text.h"

namespace lockstep::data_parallel {

namespace {

namespace autograd = torch::autograd;
using torch::nn::Module;

constexpr const char* kCloneHint =
    "derive the module from torch::nn::Cloneable<Itself> and register parameters, buffers and modules in "
    "reset(), or override clone()";

// clone() initializes the copy's parameters at random before it copies the values. DataParallel must not
// change the program's random numbers.
class KeepRandomState {
 public:
  KeepRandomState() : state_(generator_.get_state()) {}
  ~KeepRandomState() { generator_.set_state(state_); }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

[[noreturn]] void throw_not_a_copy(const Module& module, const std::string& evidence) {
  throw UsageError(base::compose({.what = "DataParallel: clone() of the module does not return a true copy",
                                  .where = module.name(),
                                  .evidence = evidence,
                                  .hint = kCloneHint}));
}

std::shared_ptr<Module> copy_of(const Module& module, const std::optional<at::Device>& device) {
  const KeepRandomState keep;
  try {
    return device ? module.clone(*device) : module.clone();
  } catch (const c10::Error& error) {
    throw UsageError(base::compose({.what = "DataParallel: the module cannot be copied",
                                    .where = module.name(),
                                    .evidence = error.what_without_backtrace(),
                                    .hint = kCloneHint}));
  }
}

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

void check_same_names(const Module& module, const Tensors& ours, const Tensors& copies) {
  if (ours.size() == copies.size()) {
    size_t same = 0;
    while (same < ours.size() && ours[same].key() == copies[same].key()) ++same;
    if (same == ours.size()) return;
  }
  throw_not_a_copy(module, fmt::format("the module has [{}], the copy [{}]", fmt::join(ours.keys(), ", "),
                                       fmt::join(copies.keys(), ", ")));
}

void link(const at::Tensor& tensor, const at::Tensor& copy, const std::optional<at::Device>& device) {
  const auto source = device ? tensor.to(*device) : tensor;  // the tensor itself if it is on that device
  copy.set_data(source);
  if (!source.is_inference()) {
    autograd::impl::set_version_counter(copy, autograd::impl::version_counter(source));
  }
  autograd::impl::set_gradient_edge(
      copy, source.requires_grad() ? autograd::impl::gradient_edge(source) : autograd::Edge());
}

}  // namespace

Replicas::Replicas(std::shared_ptr<Module> module, std::vector<std::optional<at::Device>> devices)
    : module_(std::move(module)), devices_(std::move(devices)) {
  if (const auto& first = devices_.front()) {
    for (const auto& item : module_->named_parameters()) {
      if (item.value().device() == *first) continue;
      throw UsageError(base::compose(
          {.what = "DataParallel: the module is not on the first of the devices",
           .where = item.key(),
           .evidence = fmt::format("it is on {}, not on {}", item.value().device().str(), first->str()),
           .hint = "call module->to(device) first"}));
    }
  }
  update(size());
}

void Replicas::update(size_t count) {
  // Copies made during a forward in inference mode must be trainable as well.
  const c10::InferenceMode off(false);
  const auto modules = module_->modules();
  if (modules != copied_) copy(modules);
  for (size_t replica = 1; replica < count; ++replica) update_copy(replica, modules);
}

void Replicas::copy(const Modules& modules) {
  copies_.clear();
  for (size_t replica = 1; replica < size(); ++replica) {
    auto copy = copy_of(*module_, devices_[replica]);
    const auto parts = copy->modules();
    if (parts.size() != modules.size()) {
      throw_not_a_copy(*module_, fmt::format("the module has {} submodules, the copy {}", modules.size() - 1,
                                             parts.size() - 1));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto &ours = *modules[i], &part = *parts[i];
      if (typeid(ours) != typeid(part)) {
        throw_not_a_copy(*module_, fmt::format("the copy of a {} is a {}", ours.name(), part.name()));
      }
      if (&ours == &part) {
        throw_not_a_copy(*module_, fmt::format("the copy contains the same {} object", ours.name()));
      }
    }
    check_same_names(*module_, module_->named_parameters(), copy->named_parameters());
    check_same_names(*module_, module_->named_buffers(), copy->named_buffers());
    // From now on they require gradients only through the gradient edges that link() sets.
    for (const auto& parameter : copy->parameters()) parameter.set_requires_grad(false);
    for (const auto& buffer : copy->buffers()) buffer.set_requires_grad(false);
    copies_.push_back(std::move(copy));
  }
  copied_ = modules;
}

void Replicas::update_copy(size_t replica, const Modules& modules) {
  auto& copy = *copies_[replica - 1];
  const auto& device = devices_[replica];

  // modules() lists parents before their children: train() of a parent also changes its children.
  const auto parts = copy.modules();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->is_training() != modules[i]->is_training()) parts[i]->train(modules[i]->is_training());
  }
  const auto parameters = module_->named_parameters(), copies = copy.named_parameters();
  check_same_names(*module_, parameters, copies);
  for (size_t i = 0; i < parameters.size(); ++i) link(parameters[i].value(), copies[i].value(), device);

  const auto buffers = module_->named_buffers(), buffer_copies = copy.named_buffers();
  check_same_names(*module_, buffers, buffer_copies);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto &buffer = buffers[i].value(), &buffer_copy = buffer_copies[i].value();
    if (buffer.requires_grad()) {
      link(buffer, buffer_copy, device);
    } else {
      // New memory, because the graph of an earlier forward may still need the old values.
      buffer_copy.set_data(device && buffer.device() != *device ? buffer.to(*device) : buffer.clone());
    }
  }
}

}  // namespace lockstep::data_parallel
