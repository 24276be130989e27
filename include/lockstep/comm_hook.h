// How the gradients of a bucket are exchanged. The default is an all-reduce that averages; a communication
// hook replaces it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <lockstep/mean.h>
#include <lockstep/process_group.h>

namespace lockstep {

// The gradients of some parameters, which are reduced together.
struct GradBucket {
  size_t index = 0;      // in the plan; bucket 0 is ready first
  bool is_last = false;  // of the buckets that hooks get in this pass; hooks do not get sparse gradients
  // All gradients as one flat tensor, adjacent except for a few zeros between them: the memory that is
  // reduced.
  at::Tensor buffer;
  // The same memory: one tensor per parameter, with its shape.
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  // False under Join on a rank without input, which makes the same calls with zeros as gradients.
  bool takes_part = true;
  // The number of ranks whose gradients count: all, or under Join those that still have input.
  int participants = 1;
  // Converts a sum over the ranks to the mean: mean.divide(sum).
  Mean mean = {};
};

// The result of a hook: the averaged gradients, as a tensor of any floating-point dtype with as many elements
// as the bucket's buffer, now or later. The reducer copies it into the buffer, unless it is the buffer
// itself.
class CommResult {
 public:
  using Finish = std::function<at::Tensor()>;

  CommResult(at::Tensor now) : finish_([now = std::move(now)] { return now; }) {}
  // `later` is called at the end of the backward pass, in the order of the buckets.
  CommResult(Finish later) : finish_(std::move(later)) {}
  template <class Callable>
  requires(std::is_invocable_r_v<at::Tensor, Callable>) CommResult(Callable later)
      : finish_(std::move(later)) {}
  // A future that holds a tensor or a list of one tensor, as c10d's Work returns it.
  CommResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  at::Tensor wait() const { return finish_(); }

 private:
  Finish finish_;
};

// Called once per bucket and backward pass, in the same order on all ranks. It may make blocking and
// asynchronous calls on the group, but all ranks must make the same ones. If it throws, the step ends with an
// error on all ranks.
using CommHook = std::function<CommResult(GradBucket& bucket, ProcessGroup& group)>;

namespace hooks {

// Sends gradients as 16-bit numbers, which halves the bytes. They are divided before the conversion, so that
// sums do not overflow. On several machines, only what crosses the links between them is rounded.
CommHook fp16_compress();
CommHook bf16_compress();

struct PowerSgdOptions {
  int rank = 1;  // of the matrices that approximate each gradient
  // No compression before this step: gradients change fastest in the first steps.
  int64_t start_step = 1000;
  // A gradient is compressed only if that reduces its size at least by this factor.
  double min_compression = 2;
  bool error_feedback = true;  // add the error of the compression to the next step's gradient
  bool warm_start = true;      // start with the matrices of the previous step
  uint64_t seed = 0;
};
// Sends a low-rank approximation of each gradient (Vogels et al., 2019).
CommHook power_sgd(PowerSgdOptions options = {});

// Averages gradients before `start_step` and does not communicate from then on: for local SGD, together with
// PeriodicAverager.
CommHook local_sgd(int64_t start_step = 0);

}  // namespace hooks

struct AveragerOptions {
  int64_t period = 4;        // the number of steps from one average to the next
  int64_t warmup_steps = 0;  // no average in the first steps
};
// Averages the parameters of all ranks every few steps, instead of the gradients in every step.
class PeriodicAverager {
 public:
  // Throws UsageError if the group is null or the period is less than 1.
  PeriodicAverager(std::shared_ptr<ProcessGroup> group, AveragerOptions options);
  // Call it on all ranks after every optimizer step; it blocks when it averages. Returns whether it did.
  bool average(const std::vector<at::Tensor>& parameters);

 private:
  std::shared_ptr<ProcessGroup> group_;
  AveragerOptions options_;
  int64_t step_ = 0;
};

}  // namespace lockstep
