// A base class for c10d backends: c10d::Backend in every version of LibTorch.
//
// From 2.13 on, c10d has new names for the collectives on single tensors, asks backends for their next
// members (reconfigure), and lets a backend change its rank and size. A backend overrides what is declared
// here; with earlier versions, nothing calls it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <lockstep/c10d.h>

namespace lockstep::compat {

#ifdef C10D_BACKEND_HAS_RECONFIGURE
inline constexpr bool kHasReconfigure = true;
#else
inline constexpr bool kHasReconfigure = false;
#endif

// c10d's ReconfigureOptions.
struct NextMembers {
  int64_t uuid = 0;                  // fresh for each change
  std::vector<std::string> handles;  // by rank
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

class Backend : public c10d_backend {
 public:
  using c10d_backend::c10d_backend;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual bool can_change_members() const = 0;
  // Names this backend for those that exchange the handles of the next members.
  virtual std::string handle() const = 0;
  virtual WorkPtr change_members(const NextMembers& next) = 0;
  virtual WorkPtr gather_of_one(at::Tensor& output, at::Tensor& input,
                                const c10d::GatherOptions& options) = 0;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return can_change_members(); }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle(); }
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override {
    NextMembers next{.uuid = options.uuid, .timeout = options.timeout};
    if (const auto* ordered = std::get_if<1>(&options.handles)) {
      next.handles = *ordered;
    } else {  // the order is ours to choose, but all ranks must choose the same
      const auto& any_order = std::get<0>(options.handles);
      next.handles.assign(any_order.begin(), any_order.end());
      std::sort(next.handles.begin(), next.handles.end());
    }
    return change_members(next);
  }

  // c10d would forward these names to the old ones, but refuses one that is called within itself, such as by
  // a callback that makes the next call.
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    return this->_allgather_base(output, input, options);
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return this->_reduce_scatter_base(output, input, options);
  }
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return this->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override {
    return gather_of_one(output, input, options);
  }
#endif

 protected:
  // Only from within change_members().
  void become(int rank, int world_size) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    rank_ = rank;
    size_ = world_size;
#else
    static_cast<void>(rank);
    static_cast<void>(world_size);
#endif
  }
};

}  // namespace lockstep::compat
