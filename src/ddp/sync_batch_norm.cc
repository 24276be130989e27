// convert_sync_batchnorm, and the operator that the converted layers call.
//
// Thread-safety: the registry has a lock; layers may be called by several threads.
#include "ddp/sync_batch_norm.h"

#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/error.h>
#include <lockstep/sync_batch_norm.h>

#include "base/error_text.h"
#include "comm/control.h"
#include "comm/generation.h"
#include "comm/purpose.h"
#include "ddp/model.h"
#include "ddp/sync_statistics.h"

namespace lockstep {

namespace ddp {

namespace {

// ---- Which layers are converted

// Entries do not keep their layers alive.
class Registry {
 public:
  struct Converted {
    std::weak_ptr<torch::nn::Module> layer;
    std::shared_ptr<SyncGroup> group;  // null: not converted
  };

  void set(const at::Tensor& tensor, Converted converted) {
    if (!tensor.defined()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.converted.layer.expired(); });
    auto* const address = tensor.unsafeGetTensorImpl();
    if (converted.group) {
      entries_.insert_or_assign(address, Entry{WeakTensor(tensor.getIntrusivePtr()), std::move(converted)});
    } else {
      entries_.erase(address);
    }
  }

  Converted find(const at::Tensor& tensor) const {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(tensor.unsafeGetTensorImpl());
    return entry == entries_.end() ? Converted{} : entry->second.converted;
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    WeakTensor tensor;  // while it is held, no other tensor can have the same address
    Converted converted;
  };

  mutable std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

// Never destroyed: it holds groups, which the destructor of a static object must not end.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

// ---- The operator

// Null unless a converted layer in training mode makes the call. Layers without running statistics use those
// of the batch in evaluation mode as well, so the mode of the layer itself is checked.
std::shared_ptr<SyncGroup> group_for(const c10::optional<at::Tensor>& weight,
                                     const c10::optional<at::Tensor>& running_mean) {
  // Layers may share their weights, but hardly ever their statistics.
  for (const auto* mark : {&running_mean, &weight}) {
    if (!mark->has_value() || !(*mark)->defined()) continue;
    const auto [weak_layer, group] = registry().find(**mark);
    if (const auto layer = weak_layer.lock()) return layer->is_training() ? group : nullptr;
  }
  return nullptr;
}

enum class Graph { Yes, No };

template <Graph graph>
at::Tensor batch_norm(const at::Tensor& input, const c10::optional<at::Tensor>& weight,
                      const c10::optional<at::Tensor>& bias, const c10::optional<at::Tensor>& running_mean,
                      const c10::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const auto group = training ? group_for(weight, running_mean) : nullptr;
  if (!group) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  const auto tensor = [](const c10::optional<at::Tensor>& maybe) { return maybe.value_or(at::Tensor()); };
  const BatchNormCall call{.input = input,
                           .weight = tensor(weight),
                           .bias = tensor(bias),
                           .running_mean = tensor(running_mean),
                           .running_var = tensor(running_var),
                           .momentum = momentum,
                           .eps = eps};
  return graph == Graph::Yes ? synced_batch_norm_with_graph(call, group->present())
                             : synced_batch_norm(call, group->present());
}

// Programs that convert nothing keep LibTorch's operator.
void take_over_operator() {
  const auto implement = [](c10::DispatchKey key, auto* kernel) {
    auto* const library =
        new torch::Library(torch::Library::IMPL, "aten", c10::make_optional(key), __FILE__, __LINE__);
    library->impl("batch_norm", kernel);
    return library;  // never deleted: the kernels are in use until the process ends
  };
  static const auto* const with_graph = implement(c10::DispatchKey::AutogradCPU, &batch_norm<Graph::Yes>);
  static const auto* const with_graph_on_cuda =
      implement(c10::DispatchKey::AutogradCUDA, &batch_norm<Graph::Yes>);
  // Used in inference mode.
  static const auto* const without = implement(c10::DispatchKey::CPU, &batch_norm<Graph::No>);
  static const auto* const without_on_cuda = implement(c10::DispatchKey::CUDA, &batch_norm<Graph::No>);
  (void)with_graph, (void)with_graph_on_cuda, (void)without, (void)without_on_cuda;
}

// ---- Conversion

struct Layer {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  at::Tensor weight, running_mean;
  int64_t channels = 0;
};

template <class... Kinds>
std::vector<Layer> layers_in(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<Layer> layers;
  const auto look_at = [&](const std::string& name, const std::shared_ptr<torch::nn::Module>& part) {
    const auto take = [&](const auto* norm) {
      if (norm != nullptr)
        layers.push_back({name, part, norm->weight, norm->running_mean, norm->options.num_features()});
    };
    (take(part->template as<Kinds>()), ...);
  };
  look_at("(the module itself)", root);
  for (const auto& item : root->named_modules("", false)) look_at(item.key(), item.value());
  return layers;
}

void check(const Layer& layer) {
  const auto refuse = [&](const char* evidence, const char* hint) {
    throw UsageError(base::compose({.what = fmt::format("batch norm '{}' cannot be synchronised", layer.name),
                                    .evidence = evidence,
                                    .hint = hint}));
  };
  if (layer.module.use_count() == 0) {
    refuse("no shared_ptr owns it", "create it with std::make_shared, or register it in another module");
  }
  if (!layer.weight.defined() && !layer.running_mean.defined()) {
    refuse("it has neither weights nor running statistics by which it could be recognized",
           "create it with affine(true) or track_running_stats(true)");
  }
  for (const auto& tensor : {layer.weight, layer.running_mean}) {
    if (tensor.defined() && !tensor.is_cpu() && !tensor.is_cuda())
      refuse("it is neither on the CPU nor on a CUDA device", "move the module to one of them first");
  }
}

}  // namespace

SyncGroup::SyncGroup(const std::shared_ptr<ProcessGroup>& parent) : parent_(parent) { follow_parent(); }

void SyncGroup::follow_parent() {
  const auto parent = parent_.lock();
  if (!parent) return;
  const auto generation = comm::generation_number(*parent);
  if (generation == made_for_) return;
  std::vector<int> ranks(parent->world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  all_ = parent->new_group(ranks);
  present_ = all_;
  made_for_ = generation;
}

const std::shared_ptr<ProcessGroup>& SyncGroup::present() {
  follow_parent();
  return present_;
}

void SyncGroup::regroup(bool has_input) {
  follow_parent();
  const auto with_input =
      comm::control_of(*all_).gather<char>("SyncBatchNorm, who has input", has_input ? 1 : 0);
  std::vector<int> ranks;
  for (int rank = 0; rank < all_->world_size(); ++rank) {
    if (with_input[rank] != 0) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  if (auto group = all_->new_group(ranks)) present_ = std::move(group);
}

std::vector<std::shared_ptr<SyncGroup>> sync_groups_in(const detail::ModelView& model) {
  std::vector<std::shared_ptr<SyncGroup>> groups;
  const auto look_at = [&](const detail::NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const auto group = registry().find(tensor).group;
      if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
  };
  look_at(model.parameters);
  look_at(model.buffers());
  return groups;
}

}  // namespace ddp

void convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                            const std::shared_ptr<ProcessGroup>& group) {
  if (!module)
    throw UsageError("convert_sync_batchnorm was given no module (a null pointer or an empty holder)");
  if (!group) throw UsageError("convert_sync_batchnorm was given no process group (a null pointer)");
  const auto layers =
      ddp::layers_in<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>(
          module);
  for (const auto& layer : layers) ddp::check(layer);

  const comm::Purpose purpose("convert_sync_batchnorm");
  std::shared_ptr<ddp::SyncGroup> with;
  if (group->world_size() > 1) {
    std::vector<std::string> lines;
    for (const auto& layer : layers) {
      lines.push_back(fmt::format("batch norm '{}' with {} channels", layer.name, layer.channels));
    }
    ddp::check_same_model(*group, lines);
    if (layers.empty()) return;
    ddp::take_over_operator();
    with = std::make_shared<ddp::SyncGroup>(group);
  }
  for (const auto& layer : layers) {
    ddp::registry().set(layer.running_mean, {layer.module, with});
    ddp::registry().set(layer.weight, {layer.module, with});
  }
}

void convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  convert_sync_batchnorm(std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), &module), group);
}

}  // namespace lockstep
