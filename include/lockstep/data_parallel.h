// Splits each batch among replicas of a module that run in threads of one process: the older alternative to
// DistributedDataParallel, in one line.
//
//   lockstep::DataParallel dp(model, {.replicas = 2});
//   auto loss = loss_of(dp(batch), target);
//   loss.backward();  // sums the gradients of all replicas into the module's own parameters
//
// DistributedDataParallel is faster and works across machines; docs/data-parallel.md has measurements.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/tensors_in.h>

namespace lockstep {

struct DataParallelOptions {
  // 0: one per device; on the CPU one per core that the process may use, but at most 4, because batch norm
  // computes its statistics from one replica's part of the batch.
  int replicas = 0;
  // CUDA devices, one per replica. The module must be on the first one, which also receives the outputs.
  std::vector<int> devices = {};
};

namespace detail {

// How a batch is divided: as by at::chunk, so a small batch uses fewer replicas.
struct Split {
  size_t replicas = 1;
  int64_t rows = 0, rows_each = 0;
};

// Selects the part of a split that one replica gets.
struct Slice {
  Split split;
  size_t replica = 0;
  std::optional<at::Device> device;  // none: the device of the tensor
};

at::Tensor part_of(const at::Tensor& tensor, const Slice& slice);
at::Tensor join_tensors(const std::vector<at::Tensor>& parts);
// Throws UsageError: the outputs of the replicas differ in `what` (lengths of vectors, keys of maps, presence
// of optional values).
[[noreturn]] void throw_unlike(const char* what);
[[noreturn]] void throw_unsplittable();

// Splits arguments and joins outputs. Supports tensors, and vectors, arrays, pairs, tuples, maps and
// optionals of supported types.
template <class T>
struct Batched {
  static constexpr bool kJoins = false;
  static T part(const T& value, const Slice&) {
    if (!tensors_in(value).empty()) throw_unsplittable();
    return value;
  }
};

// Joins the outputs of all replicas, in the order of the replicas.
template <class T>
T join(const std::vector<T>& parts) {
  static_assert(Batched<T>::kJoins,
                "DataParallel joins outputs that are tensors, or vectors, arrays, pairs, tuples, maps or "
                "optionals of tensors: let forward return one of these");
  return Batched<T>::join(parts);
}

// Joins the same member of all parts.
template <class T, class Member>
auto join_members(const std::vector<T>& parts, Member&& member) {
  std::vector<std::remove_cvref_t<decltype(member(parts.front()))>> members;
  members.reserve(parts.size());
  for (const auto& part : parts) members.push_back(member(part));
  return join(members);
}

template <>
struct Batched<at::Tensor> {
  static constexpr bool kJoins = true;
  static at::Tensor part(const at::Tensor& tensor, const Slice& slice) { return part_of(tensor, slice); }
  static at::Tensor join(const std::vector<at::Tensor>& parts) { return join_tensors(parts); }
};

template <class T, class Allocator>
requires(!std::is_arithmetic_v<T>) struct Batched<std::vector<T, Allocator>> {
  using Vector = std::vector<T, Allocator>;
  static constexpr bool kJoins = true;
  static Vector part(const Vector& values, const Slice& slice) {
    Vector parts;
    parts.reserve(values.size());
    for (const auto& value : values) parts.push_back(Batched<T>::part(value, slice));
    return parts;
  }
  static Vector join(const std::vector<Vector>& parts) {
    Vector joined;
    for (const auto& part : parts) {
      if (part.size() != parts.front().size()) throw_unlike("lengths of vectors");
    }
    for (size_t i = 0; i < parts.front().size(); ++i) {
      joined.push_back(join_members(parts, [i](const Vector& part) { return part[i]; }));
    }
    return joined;
  }
};

// Tuples, pairs, arrays.
template <TupleLike T>
struct Batched<T> {
  static constexpr bool kJoins = true;
  static T part(const T& values, const Slice& slice) {
    return std::apply(
        [&](const auto&... value) {
          return T{Batched<std::remove_cvref_t<decltype(value)>>::part(value, slice)...};
        },
        values);
  }
  static T join(const std::vector<T>& parts) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return T{join_members(parts, [](const T& part) { return std::get<I>(part); })...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
};

template <class T>
concept MapLike = requires(T map, typename T::key_type key, typename T::mapped_type value) {
  map.insert_or_assign(key, value);
  map.find(key);
};

template <MapLike T>
struct Batched<T> {
  using Value = typename T::mapped_type;
  static constexpr bool kJoins = true;
  static T part(const T& values, const Slice& slice) {
    T parts;
    for (const auto& [key, value] : values) parts.insert_or_assign(key, Batched<Value>::part(value, slice));
    return parts;
  }
  static T join(const std::vector<T>& parts) {
    T joined;
    for (const auto& part : parts) {
      if (part.size() != parts.front().size()) throw_unlike("keys of maps");
    }
    for (const auto& item : parts.front()) {
      joined.insert_or_assign(item.first, join_members(parts, [&item](const T& part) {
                                const auto found = part.find(item.first);
                                if (found == part.end()) throw_unlike("keys of maps");
                                return found->second;
                              }));
    }
    return joined;
  }
};

template <OptionalLike T>
struct Batched<T> {
  using Value = std::remove_cvref_t<decltype(*std::declval<const T&>())>;
  static constexpr bool kJoins = true;
  static T part(const T& value, const Slice& slice) {
    return value.has_value() ? T(Batched<Value>::part(*value, slice)) : T();
  }
  static T join(const std::vector<T>& parts) {
    for (const auto& part : parts) {
      if (part.has_value() != parts.front().has_value()) throw_unlike("presence of optional values");
    }
    if (!parts.front().has_value()) return T();
    return T(join_members(parts, [](const T& part) { return *part; }));
  }
};

// Passes a part of an argument as the argument was passed: as an lvalue or as an rvalue.
template <class Arg>
using PassAs = std::conditional_t<std::is_lvalue_reference_v<Arg>, std::decay_t<Arg>&, std::decay_t<Arg>&&>;

}  // namespace detail

// The part of DataParallel that does not depend on the type of the module.
class DataParallelBase {
 public:
  // The module's parameters, for an optimizer.
  std::vector<at::Tensor> parameters() const;
  int replicas() const;
  // Discards the copies of the module; the next forward makes new ones. Waits for a running forward.
  void refresh();

 protected:
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options);
  ~DataParallelBase();
  DataParallelBase(DataParallelBase&&) noexcept;
  DataParallelBase& operator=(DataParallelBase&&) noexcept;

  // Throws UsageError unless all tensors of all arguments have the same number of rows.
  detail::Split split_of(const std::vector<std::vector<at::Tensor>>& arguments) const;
  // Whether the calling thread can call the module itself.
  bool is_direct(const detail::Split& split) const;
  // Updates the replicas and calls `body` for each of them in its own thread. Blocks until all have returned;
  // then throws the exception of the first replica that threw.
  void run(const detail::Split& split,
           const std::function<void(torch::nn::Module&, const detail::Slice&)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// forward() splits the tensors in its arguments along their first dimension, calls the forward of each
// replica in a thread of its own, and joins the outputs along the first dimension. 0-dimensional tensors, and
// arguments that hold no tensors, are passed to every replica. 0-dimensional outputs (losses) are stacked:
// take their mean. A batch of fewer than two rows runs in the calling thread.
//
// The first replica is the module itself, so its buffers, e.g. the statistics of batch norm, depend on the
// first part of each batch only. The others are copies, made once with the module's clone(). On the CPU they
// use the memory of the module's parameters. Before each forward they get the module's buffers, children and
// training mode. Call refresh() after changing any other member of the module.
//
// forward() blocks until all replicas have returned, and throws the exception of the first replica that
// threw, with the number of the replica in its message. It throws UsageError for arguments that cannot be
// split and for outputs that cannot be joined. Concurrent calls on one object run one after another. Whatever
// the module's forward uses besides its own members must be thread-safe. As without DataParallel, parameters
// must not change between a forward and its backward.
//
// The constructor starts the threads, and the destructor joins them. The constructor throws UsageError for
// invalid options and for a module that cannot be copied, SystemError if the threads cannot be started.
template <class Module>
class DataParallel : public DataParallelBase {
 public:
  explicit DataParallel(std::shared_ptr<Module> module, DataParallelOptions options = {})
      : DataParallelBase(module, std::move(options)), module_(std::move(module)) {}

  // Module holders (TORCH_MODULE, torch::nn::Sequential, …).
  template <class Holder>
  requires std::same_as<typename Holder::ContainedType, Module>
  explicit DataParallel(const Holder& holder, DataParallelOptions options = {})
      : DataParallel(holder.ptr(), std::move(options)) {}

  template <class... Args>
  auto forward(Args&&... args) {
    using Output = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    const auto split = split_of({tensors_in(args)...});
    if (is_direct(split)) return static_cast<Output>(module_->forward(std::forward<Args>(args)...));

    const auto call = [&](torch::nn::Module& replica, const detail::Slice& slice) {
      std::tuple<std::decay_t<Args>...> parts(detail::Batched<std::decay_t<Args>>::part(args, slice)...);
      return std::apply(
          [&](auto&... part) {
            return dynamic_cast<Module&>(replica).forward(static_cast<detail::PassAs<Args>>(part)...);
          },
          parts);
    };
    if constexpr (std::is_void_v<Output>) {
      run(split, call);
    } else {
      std::vector<std::optional<Output>> outputs(split.replicas);
      run(split, [&](torch::nn::Module& replica, const detail::Slice& slice) {
        outputs[slice.replica].emplace(call(replica, slice));
      });
      return detail::join_members(outputs, [](const std::optional<Output>& output) { return *output; });
    }
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  Module* operator->() const { return module_.get(); }
  const std::shared_ptr<Module>& module() const { return module_; }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 private:
  std::shared_ptr<Module> module_;
};

template <class Module>
DataParallel(std::shared_ptr<Module>) -> DataParallel<Module>;
template <class Module>
DataParallel(std::shared_ptr<Module>, DataParallelOptions) -> DataParallel<Module>;
template <class Holder>
DataParallel(Holder) -> DataParallel<typename Holder::ContainedType>;
template <class Holder>
DataParallel(Holder, DataParallelOptions) -> DataParallel<typename Holder::ContainedType>;

}  // namespace lockstep
