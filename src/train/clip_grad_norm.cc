// clip_grad_norm_.
//
// LibTorch's reductions add in an order that depends on the number of threads and on the CPU model. If those
// differ between ranks, so does the last bit of the norm, and the replicas drift apart. So this file does the
// summation itself: in blocks of fixed size, each with a fixed number of running sums, all in double
// precision and combined in a fixed order.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>

#include <lockstep/error.h>
#include <lockstep/train.h>

#include "base/error_text.h"
#include "comm/own_gradients.h"

namespace lockstep {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Norms. Each accumulates terms; the root function passed to clip() turns the total into the norm.

struct TwoNorm {
  static double add(double sum, double value) { return sum + value * value; }
  static double join(double a, double b) { return a + b; }
};

struct OneNorm {
  static double add(double sum, double value) { return sum + std::abs(value); }
  static double join(double a, double b) { return a + b; }
};

struct PowerNorm {
  double power;
  double add(double sum, double value) const { return sum + std::pow(std::abs(value), power); }
  static double join(double a, double b) { return a + b; }
};

struct LargestNorm {
  // Not std::max, which drops a NaN.
  static double join(double a, double b) { return b > a || std::isnan(b) ? b : a; }
  static double add(double largest, double value) { return join(largest, std::abs(value)); }
};

// ---- One tensor

constexpr int64_t kBlock = 1 << 14;
// Running sums in a block: enough to keep the CPU's adders and vector units busy.
constexpr int64_t kLanes = 16;

template <class Norm, class Value>
double of_block(const Norm& norm, const Value* values, int64_t count) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = norm.add(lanes[lane], static_cast<double>(values[i + lane]));
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    lanes[lane] = norm.add(lanes[lane], static_cast<double>(values[i]));
  }
  double sum = 0;
  for (const double lane : lanes) sum = norm.join(sum, lane);
  return sum;
}

template <class Norm, class Value>
double of_values(const Norm& norm, const Value* values, int64_t count) {
  std::vector<double> blocks((count + kBlock - 1) / kBlock);
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      blocks[block] = of_block(norm, values + first, std::min(kBlock, count - first));
    }
  });
  double sum = 0;
  for (const double block : blocks) sum = norm.join(sum, block);
  return sum;
}

template <class Norm>
double of_tensor(const Norm& norm, at::Tensor tensor) {
  tensor = tensor.detach().to(at::kCPU);
  if (tensor.is_complex()) tensor = tensor.abs();
  // The order of the elements does not matter as long as it is the same on all ranks, so any dense strides
  // will do.
  if (!tensor.is_non_overlapping_and_dense()) tensor = tensor.contiguous();
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return of_values(norm, tensor.data_ptr<float>(), tensor.numel());
    case at::kDouble:
      return of_values(norm, tensor.data_ptr<double>(), tensor.numel());
    case at::kHalf:
      return of_values(norm, tensor.data_ptr<at::Half>(), tensor.numel());
    case at::kBFloat16:
      return of_values(norm, tensor.data_ptr<at::BFloat16>(), tensor.numel());
    default:
      tensor = tensor.to(at::kDouble);
      return of_values(norm, tensor.data_ptr<double>(), tensor.numel());
  }
}

// ---- All gradients

struct Gradient {
  size_t index;  // of its parameter
  at::Tensor parameter, gradient;
};

std::vector<Gradient> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<Gradient> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const auto& gradient = parameter.grad();
    if (gradient.layout() != at::kStrided && gradient.layout() != at::kSparse) {
      throw UsageError(
          base::compose({.what = "the gradients cannot be clipped",
                         .where = fmt::format("parameter {}", i),
                         .evidence = "its gradient is neither dense nor a sparse tensor with coordinates",
                         .hint = "convert it with to_dense() first"}));
    }
    if (comm::is_own(gradient)) {
      throw UsageError(base::compose(
          {.what = "the gradients cannot be clipped",
           .where = fmt::format("parameter {}", i),
           .evidence = "a ShardedOptimizer averages it in its step; before, it is this rank's own",
           .hint = "call optimizer.clip_grad_norm(max_norm), or construct the optimizer with "
                   "{.average_gradients = true}"}));
    }
    gradients.push_back({i, parameter, gradient});
  }
  return gradients;
}

// The entries of a sparse gradient that refer to the same element are added up.
at::Tensor elements_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.coalesce().values() : gradient;
}

[[noreturn]] void refuse_nonfinite(const std::vector<Gradient>& gradients, const std::vector<double>& sums,
                                   double norm) {
  const auto bad = std::find_if(sums.begin(), sums.end(), [](double sum) { return !std::isfinite(sum); });
  std::string evidence = "each gradient on its own is finite";
  if (bad != sums.end()) {
    const auto& first = gradients[bad - sums.begin()];
    evidence =
        fmt::format("the first gradient that is not finite is that of parameter {}, {} [{}]", first.index,
                    c10::toString(first.parameter.scalar_type()), fmt::join(first.parameter.sizes(), ", "));
  }
  throw Error(base::compose({.what = fmt::format("the norm of the gradients is {}", norm),
                             .evidence = evidence,
                             .hint = "check the loss of this step, lower the learning rate, or skip the "
                                     "step: nothing has been scaled"}));
}

void scale(const Gradient& of, double factor) {
  if (of.gradient.is_sparse()) {
    // Also correct if it is not coalesced: the sum of scaled entries is the scaled sum.
    of.gradient._values().mul_(factor);
  } else if (at::has_internal_overlap(of.gradient) == at::MemOverlap::Yes) {
    // An expanded tensor cannot be written in place.
    of.parameter.mutable_grad() = of.gradient.mul(factor);
  } else {
    of.gradient.detach().mul_(factor);
  }
}

// root: converts the accumulated terms of all tensors to the norm.
template <class Norm, class Root>
double clip(const Norm& norm, const Root& root, const std::vector<at::Tensor>& parameters, double max_norm,
            bool error_if_nonfinite) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  std::vector<double> sums;
  double sum = 0;
  for (const auto& each : gradients) {
    sums.push_back(of_tensor(norm, elements_of(each.gradient)));
    sum = norm.join(sum, sums.back());
  }
  const double total = root(sum);
  if (error_if_nonfinite && !std::isfinite(total)) refuse_nonfinite(gradients, sums, total);
  if (max_norm == kInfinity) return total;

  // The formula of PyTorch, including its guard against division by zero.
  const double factor = max_norm / (total + 1e-6);
  if (factor >= 1) return total;
  for (const auto& each : gradients) scale(each, factor);
  return total;
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  const auto refuse = [](const char* what, double value, const char* hint) {
    throw UsageError(base::compose({.what = "the gradients cannot be clipped",
                                    .evidence = fmt::format("{} is {}", what, value),
                                    .hint = hint}));
  };
  if (!(max_norm >= 0)) refuse("max_norm", max_norm, "pass a number of at least 0");
  if (!(norm_type > 0)) refuse("norm_type", norm_type, "pass a number above 0, or infinity");

  const auto same = [](double sum) { return sum; };
  if (norm_type == 2) {
    return clip(
        TwoNorm{}, [](double sum) { return std::sqrt(sum); }, parameters, max_norm, error_if_nonfinite);
  }
  if (norm_type == 1) return clip(OneNorm{}, same, parameters, max_norm, error_if_nonfinite);
  if (norm_type == kInfinity) return clip(LargestNorm{}, same, parameters, max_norm, error_if_nonfinite);
  return clip(
      PowerNorm{norm_type}, [&](double sum) { return std::pow(sum, 1 / norm_type); }, parameters, max_norm,
      error_if_nonfinite);
}

}  // namespace lockstep
