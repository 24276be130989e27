#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <lockstep/data_parallel.h>
#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "data_parallel/caller_state.h"
#include "data_parallel/pool.h"
#include "data_parallel/replicas.h"
#include "tuning/topology.h"

namespace lockstep {

namespace {

using data_parallel::CallerState;
using data_parallel::Pool;
using data_parallel::Replicas;

constexpr int kMostByDefault = 4;

int usable_cores() { return tuning::read_topology(tuning::affinity_of()).usable_cores(); }

std::vector<std::optional<at::Device>> devices_of(const DataParallelOptions& options) {
  const auto refuse = [](std::string what, std::string evidence, std::string hint) {
    throw UsageError(base::compose({.what = "DataParallel: " + std::move(what),
                                    .evidence = std::move(evidence),
                                    .hint = std::move(hint)}));
  };
  if (options.replicas < 0) {
    refuse("the number of replicas is negative", std::to_string(options.replicas),
           "leave it out for the default");
  }
  if (options.devices.empty()) {
    const int replicas = options.replicas > 0 ? options.replicas : std::min(usable_cores(), kMostByDefault);
    return std::vector<std::optional<at::Device>>(replicas);
  }
  if (!torch::cuda::is_available()) {
    refuse("CUDA devices were given, but CUDA is not available",
           "this LibTorch was built without CUDA, or there is no device or driver",
           "leave .devices out to run replicas on the CPU");
  }
  if (options.replicas > 0 && options.replicas != static_cast<int>(options.devices.size())) {
    refuse(fmt::format("there are {} replicas for {} devices", options.replicas, options.devices.size()), "",
           "leave .replicas out: each device gets one");
  }
  std::vector<std::optional<at::Device>> devices;
  const auto count = static_cast<int>(torch::cuda::device_count());
  for (const int index : options.devices) {
    if (index < 0 || index >= count) {
      refuse(fmt::format("there is no CUDA device {}", index), fmt::format("this process sees {}", count),
             "see CUDA_VISIBLE_DEVICES");
    }
    devices.emplace_back(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)));
  }
  return devices;
}

// Adds the number of the replica to the message if the type of the exception allows it. Keeps the type.
std::exception_ptr with_replica(size_t replica, size_t replicas) {
  const auto where = fmt::format("in replica {} of {}", replica, replicas);
  try {
    try {
      throw;
    } catch (c10::Error& error) {
      error.add_context(where);
      throw;
    } catch (const Error& error) {
      base::throw_kind(error.kind(), fmt::format("{} ({})", error.what(), where));
    } catch (const std::runtime_error& error) {
      if (typeid(error) != typeid(std::runtime_error)) throw;
      throw std::runtime_error(fmt::format("{} ({})", error.what(), where));
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

namespace detail {

at::Tensor part_of(const at::Tensor& tensor, const Slice& slice) {
  if (!tensor.defined()) return tensor;
  auto part = tensor;
  if (tensor.dim() > 0 && slice.split.replicas > 1) {
    const auto begin = static_cast<int64_t>(slice.replica) * slice.split.rows_each;
    const auto rows = std::min(slice.split.rows_each, slice.split.rows - begin);
    // A forward may change its input in place. Autograd then also updates the base of a view, so the replicas
    // must not have views of the same base.
    part = tensor.requires_grad() && c10::GradMode::is_enabled() ? tensor.narrow(0, begin, rows).clone()
                                                                 : tensor.detach().narrow(0, begin, rows);
  }
  return slice.device ? part.to(*slice.device, /*non_blocking=*/true) : part;
}

at::Tensor join_tensors(const std::vector<at::Tensor>& parts) {
  const auto& first = parts.front();
  if (parts.size() == 1) return first;
  if (std::any_of(parts.begin(), parts.end(),
                  [&](const at::Tensor& part) { return part.defined() != first.defined(); })) {
    throw_unlike("presence of tensors");
  }
  if (!first.defined()) return first;
  std::vector<at::Tensor> here;
  here.reserve(parts.size());
  for (const auto& part : parts) {
    if (part.dim() != first.dim() || (first.dim() > 0 && part.sizes().slice(1) != first.sizes().slice(1))) {
      throw_unlike(
          fmt::format("shapes [{}] and [{}]", fmt::join(first.sizes(), ", "), fmt::join(part.sizes(), ", "))
              .c_str());
    }
    here.push_back(part.to(first.device()));
  }
  if (first.dim() > 0) return at::cat(here);
  static std::once_flag warned;
  std::call_once(warned, [] {
    base::log_warn(
        "DataParallel: 0-dimensional outputs are stacked, one for each replica; a loss needs .mean()");
  });
  return at::stack(here);
}

void throw_unlike(const char* what) {
  throw UsageError(
      base::compose({.what = "DataParallel: the outputs of the replicas cannot be joined",
                     .evidence = fmt::format("their {} differ", what),
                     .hint = "the first dimension of an output must be the batch, and no other shape may "
                             "depend on the data"}));
}

void throw_unsplittable() {
  throw UsageError(base::compose(
      {.what = "DataParallel: an argument of forward holds tensors, but is of a type that cannot be split",
       .hint = "pass tensors, or vectors, arrays, pairs, tuples, maps or optionals of tensors"}));
}

}  // namespace detail

struct DataParallelBase::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options)
      : replicas(std::move(module), devices_of(options)), pool(replicas.size(), [this] { begin_thread(); }) {
    // at::set_num_threads in a thread also changes the default for new threads: reset it.
    if (threads_each > 0) at::set_num_threads(threads_here);
  }

  // Runs in each thread of the pool. The pool's constructor waits for it, and the members declared before the
  // pool are initialized by then.
  void begin_thread() const {
    if (threads_each == 0) return;
    at::get_num_threads();  // the first call in a thread applies the default
    at::set_num_threads(threads_each);
  }

  Replicas replicas;
  // A number of threads that the user has set is left unchanged.
  const int threads_here = at::get_num_threads();
  const int threads_each = std::getenv("OMP_NUM_THREADS") != nullptr
                               ? 0
                               : std::max(1, usable_cores() / static_cast<int>(replicas.size()));
  const pid_t process = ::getpid();
  std::mutex one_at_a_time;
  Pool pool;
};

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options) {
  if (!module) {
    throw UsageError(
        base::compose({.what = "DataParallel: the module is null", .hint = "construct it first"}));
  }
  try {
    impl_ = std::make_unique<Impl>(std::move(module), options);
  } catch (const std::system_error& error) {
    throw SystemError(base::compose({.what = "DataParallel: cannot start threads for the replicas",
                                     .evidence = error.what(),
                                     .hint = "ask for fewer replicas, or see ulimit -u"}));
  }
}

DataParallelBase::~DataParallelBase() {
  // After a fork, the threads exist only in the parent process and cannot be joined.
  if (impl_ && impl_->process != ::getpid()) impl_.release();  // NOLINT(bugprone-unused-return-value)
}

DataParallelBase::DataParallelBase(DataParallelBase&&) noexcept = default;
DataParallelBase& DataParallelBase::operator=(DataParallelBase&&) noexcept = default;

std::vector<at::Tensor> DataParallelBase::parameters() const {
  return impl_->replicas.module()->parameters();
}

int DataParallelBase::replicas() const { return static_cast<int>(impl_->replicas.size()); }

void DataParallelBase::refresh() {
  const std::lock_guard lock(impl_->one_at_a_time);
  impl_->replicas.forget();
}

detail::Split DataParallelBase::split_of(const std::vector<std::vector<at::Tensor>>& arguments) const {
  std::optional<int64_t> rows;
  size_t first = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const auto& tensor : arguments[i]) {
      if (!tensor.defined() || tensor.dim() == 0) continue;
      if (!rows) {
        rows = tensor.size(0);
        first = i;
      }
      if (tensor.size(0) == *rows || impl_->replicas.size() == 1) continue;
      throw UsageError(base::compose(
          {.what = "DataParallel: the arguments of forward cannot be split in the same way",
           .evidence =
               fmt::format("argument {} has {} rows, argument {} has {}", first, *rows, i, tensor.size(0)),
           .hint =
               "the first dimension of every tensor must be the batch; what all samples share belongs in a "
               "buffer of the module"}));
    }
  }
  if (rows.value_or(0) < 2) return {.replicas = 1, .rows = rows.value_or(0), .rows_each = rows.value_or(0)};
  const auto replicas = static_cast<int64_t>(impl_->replicas.size());
  const auto rows_each = (*rows + replicas - 1) / replicas;
  return {.replicas = static_cast<size_t>((*rows + rows_each - 1) / rows_each),
          .rows = *rows,
          .rows_each = rows_each};
}

bool DataParallelBase::is_direct(const detail::Split& split) const {
  return split.replicas == 1 && !impl_->replicas.device(0);
}

void DataParallelBase::run(const detail::Split& split,
                           const std::function<void(torch::nn::Module&, const detail::Slice&)>& body) {
  if (impl_->process != ::getpid()) {
    throw UsageError(base::compose(
        {.what = "DataParallel: its threads are in another process",
         .evidence = fmt::format("it was made in process {}, this is {}", impl_->process, ::getpid()),
         .hint = "make it after the fork"}));
  }
  if (impl_->pool.is_one_of_ours(std::this_thread::get_id())) {
    throw UsageError(base::compose({.what = "DataParallel: called from within its own forward",
                                    .hint = "let the module's forward call other modules only"}));
  }
  const std::lock_guard lock(impl_->one_at_a_time);
  auto& replicas = impl_->replicas;
  replicas.update(split.replicas);

  const CallerState state;
  std::vector<std::optional<c10::Stream>> streams(split.replicas);
  for (size_t i = 0; i < split.replicas; ++i) {
    if (const auto& device = replicas.device(i)) streams[i] = data_parallel::current_stream(*device);
  }
  std::vector<std::exception_ptr> errors(split.replicas);
  impl_->pool.run(split.replicas, [&](size_t i) {
    try {
      const CallerState::Entered entered(state, streams[i]);
      body(replicas[i], {.split = split, .replica = i, .device = replicas.device(i)});
    } catch (...) {
      errors[i] = with_replica(i, split.replicas);
    }
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep
