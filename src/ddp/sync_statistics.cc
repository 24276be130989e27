#include "ddp/sync_statistics.h"

#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "comm/purpose.h"

namespace lockstep::ddp {

namespace {

// The statistics of each channel over all ranks, in double. They are combined on the CPU, also for inputs on
// a device, where they could wait for the gradients' collectives that other ranks have started in another
// order.
struct Statistics {
  double count = 0;     // values in a channel
  at::Tensor mean, m2;  // m2: the sum of squared distances from the mean
};

int64_t count_of(const at::Tensor& input) { return input.numel() == 0 ? 0 : input.numel() / input.size(1); }

// LibTorch requires mean and variance in the type of the parameters, which may be wider than the input's.
at::ScalarType parameter_type(const BatchNormCall& call) {
  for (const auto& tensor : {call.weight, call.bias, call.running_mean, call.running_var}) {
    if (tensor.defined()) return tensor.scalar_type();
  }
  return call.input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Combines the means by their differences, in rank order: sums of squares would lose variances that are small
// compared to the mean, and another order would give different bits.
Statistics statistics_of_all(const at::Tensor& input, ProcessGroup& group) {
  // Tensors that are created in inference mode cannot be written by threads outside of it, and the group may
  // use its own threads.
  const c10::InferenceMode off(false);
  const at::NoGradGuard no_grad;
  const auto channels = input.size(1);
  const auto world = group.world_size();
  auto mine = at::zeros({1 + 2 * channels}, at::kDouble);
  if (const auto count = count_of(input); count > 0) {
    const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0);
    mine[0] = count;
    mine.narrow(0, 1, channels).copy_(mean);
    mine.narrow(0, 1 + channels, channels).copy_(variance).mul_(count);
  }
  auto all = at::empty({world, 1 + 2 * channels}, at::kDouble);
  const comm::Purpose purpose("SyncBatchNorm, statistics of the batch");
  group.all_gather_into_tensor(all, mine);

  Statistics total{.mean = at::zeros({channels}, at::kDouble), .m2 = at::zeros({channels}, at::kDouble)};
  auto* const mean = total.mean.data_ptr<double>();
  auto* const m2 = total.m2.data_ptr<double>();
  for (int rank = 0; rank < world; ++rank) {
    const auto* const theirs = all.data_ptr<double>() + rank * (1 + 2 * channels);
    const double count = theirs[0];
    // The statistics of an empty batch are NaN, and NaN times zero is NaN.
    if (count == 0) continue;
    const double share = count / (total.count + count);
    for (int64_t c = 0; c < channels; ++c) {
      const double distance = theirs[1 + c] - mean[c];
      mean[c] += distance * share;
      m2[c] += theirs[1 + channels + c] + distance * distance * share * total.count;
    }
    total.count += count;
  }
  return total;
}

void update(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (!running.defined()) return;
  // Like LibTorch's own update, it must not count as a change that invalidates graphs.
  running.data().copy_(running.to(at::kDouble).mul_(1 - momentum).add_(value.to(running.device()), momentum));
}

struct Normalised {
  at::Tensor output, mean, variance;  // mean and variance as they were used
  double count = 0;
};

Normalised normalise(const BatchNormCall& call, ProcessGroup& group) {
  TORCH_CHECK(call.input.dim() >= 2, "batch_norm expects an input with channels, got input size ",
              call.input.sizes());
  const auto all = statistics_of_all(call.input, group);
  TORCH_CHECK(all.count != 1, "Expected more than 1 value per channel when training, got input size ",
              call.input.sizes(), " and nothing on the other ranks");
  const auto dtype = parameter_type(call);
  const auto device = call.input.device();
  if (all.count == 0) {
    return {.output = at::empty_like(call.input),
            .mean = all.mean.to(device, dtype),
            .variance = all.m2.to(device, dtype)};
  }
  update(call.running_mean, all.mean, call.momentum);
  update(call.running_var, all.m2 / (all.count - 1), call.momentum);
  Normalised result{.mean = all.mean.to(device, dtype),
                    .variance = (all.m2 / all.count).to(device, dtype),
                    .count = all.count};
  if (call.input.numel() == 0) {
    result.output = at::empty_like(call.input);
  } else {
    result.output = std::get<0>(at::native_batch_norm(call.input, call.weight, call.bias, result.mean,
                                                      result.variance, false, 0, call.eps));
  }
  return result;
}

struct Members : torch::CustomClassHolder {
  explicit Members(std::shared_ptr<ProcessGroup> members) : group(std::move(members)) {}
  std::shared_ptr<ProcessGroup> group;
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SyncedBatchNorm : public torch::autograd::Function<SyncedBatchNorm> {
 public:
  // Input, weight and bias are passed separately, because autograd inspects only the arguments themselves.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::optional<at::Tensor>& /*weight*/,
                            const c10::optional<at::Tensor>& /*bias*/, const BatchNormCall& call,
                            const std::shared_ptr<ProcessGroup>& group) {
    auto result = normalise(call, *group);
    context->save_for_backward({input, call.weight, result.mean, result.variance});
    context->saved_data["count"] = result.count;
    context->saved_data["eps"] = call.eps;
    context->saved_data["has_bias"] = call.bias.defined();
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Members>(group));
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw UsageError(base::compose({.what = "a synchronised batch norm has no second derivative",
                                      .evidence = "backward was called with create_graph",
                                      .hint = "do not convert layers that need it"}));
    }
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const double eps = context->saved_data["eps"].toDouble();
    const auto group =
        c10::static_intrusive_pointer_cast<Members>(context->saved_data["group"].toCapsule())->group;
    const bool needs_input = context->needs_input_grad(0);

    // First as if mean and variance did not depend on the input; their contribution to its gradient is added
    // below.
    const auto scale = weight.defined() ? weight : at::ones_like(mean);
    at::Tensor of_input, of_scale, of_shift;
    if (input.numel() > 0) {
      std::tie(of_input, of_scale, of_shift) = at::native_batch_norm_backward(
          gradients[0], input, scale, mean, variance, {}, {}, false, eps, {needs_input, true, true});
    } else {
      of_input = at::zeros_like(input);
      of_scale = at::zeros_like(mean);
      of_shift = at::zeros_like(mean);
    }

    auto sums = at::stack({of_scale, of_shift}).to(at::kCPU, at::kDouble);
    // Even if this rank does not need the result: others may.
    const comm::Purpose purpose("SyncBatchNorm, gradients of the statistics");
    group->all_reduce(sums);
    sums = sums.to(input.device());
    if (needs_input && input.numel() > 0) {
      const auto invstd = variance.to(at::kDouble).add_(eps).rsqrt_();
      const auto factor = scale.to(at::kDouble) * invstd / -count;
      const auto by_input = factor * invstd * sums[0];
      const auto constant = factor * sums[1] - by_input * mean.to(at::kDouble);
      std::vector<int64_t> per_channel(input.dim(), 1);
      per_channel[1] = input.size(1);
      const auto dtype = input.scalar_type();
      of_input.addcmul_(input, by_input.to(dtype).view(per_channel))
          .add_(constant.to(dtype).view(per_channel));
    }
    const bool has_bias = context->saved_data["has_bias"].toBool();
    return {needs_input ? of_input : at::Tensor(), weight.defined() ? of_scale : at::Tensor(),
            has_bias ? of_shift : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor synced_batch_norm(const BatchNormCall& call, const std::shared_ptr<ProcessGroup>& group) {
  return normalise(call, *group).output;
}

at::Tensor synced_batch_norm_with_graph(const BatchNormCall& call,
                                        const std::shared_ptr<ProcessGroup>& group) {
  return SyncedBatchNorm::apply(call.input, c10::make_optional(call.weight), c10::make_optional(call.bias),
                                call, group);
}

}  // namespace lockstep::ddp
