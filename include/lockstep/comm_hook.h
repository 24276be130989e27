// How the gradients of a bucket travel: the default is an all-reduce that averages; a hook does it otherwise.
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

// Gradients of some parameters, which are reduced together.
struct GradBucket {
  size_t index = 0;      // in the plan: 0 is ready first
  bool is_last = false;  // that a hook sees in this backward pass; sparse gradients take another path
  // All gradients in one dimension, adjacent but for a few zeros between them: the memory that is reduced.
  at::Tensor buffer;
  // The same memory, in the shape of each parameter.
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  // Under Join, a rank without input goes through the same calls with zeros for gradients.
  bool takes_part = true;
  // The ranks whose gradients count: all of them, but under Join those that still have input.
  int participants = 1;
  // Turns sums over the ranks into means: mean.divide(sum).
  Mean mean = {};
};

// What a hook returns: the averaged gradients, as a tensor with as many elements as the bucket's buffer, of
// any floating-point dtype, now or later. The reducer copies it into the buffer, unless it is the buffer
// itself.
class CommResult {
 public:
  using Finish = std::function<at::Tensor()>;

  CommResult(at::Tensor now) : finish_([now = std::move(now)] { return now; }) {}
  // Called at the end of the backward pass, in the order of the buckets.
  CommResult(Finish later) : finish_(std::move(later)) {}
  template <class Callable>
  requires(std::is_invocable_r_v<at::Tensor, Callable>) CommResult(Callable later)
      : finish_(std::move(later)) {}
  // A future of a tensor or of a list with one tensor in it, as c10d's Work gives it.
  CommResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  at::Tensor wait() const { return finish_(); }

 private:
  Finish finish_;
};

// Called once for each bucket and backward pass, in the same order on all ranks. It may use the group's
// asynchronous and blocking calls, but all ranks must make the same ones.
using CommHook = std::function<CommResult(GradBucket& bucket, ProcessGroup& group)>;

namespace hooks {

// Half the bytes: gradients travel as 16-bit numbers. Divided before they are cast, so that sums do not
// overflow.
CommHook fp16_compress();
CommHook bf16_compress();

struct PowerSgdOptions {
  int rank = 1;  // of the matrices that stand for each gradient
  // The first steps go uncompressed: gradients change fastest then.
  int64_t start_step = 1000;
  // A gradient is compressed if that saves at least this factor.
  double min_compression = 2;
  bool error_feedback = true;  // what compression has lost is added to the next step's gradient
  bool warm_start = true;      // begin with the last step's matrices
  uint64_t seed = 0;
};
// A low-rank approximation of each gradient (Vogels et al., 2019).
CommHook power_sgd(PowerSgdOptions options = {});

// No communication from `start_step` on, averaging as usual before: for local SGD, together with
// PeriodicAverager.
CommHook local_sgd(int64_t start_step = 0);

}  // namespace hooks

struct AveragerOptions {
  int64_t period = 4;        // average the parameters every so many steps
  int64_t warmup_steps = 0;  // none before
};
// Averages the parameters of all ranks now and then, instead of the gradients in every step.
class PeriodicAverager {
 public:
  PeriodicAverager(std::shared_ptr<ProcessGroup> group, AveragerOptions options);
  // Call it after every optimizer step. True if the parameters were averaged.
  bool average(const std::vector<at::Tensor>& parameters);

 private:
  std::shared_ptr<ProcessGroup> group_;
  AveragerOptions options_;
  int64_t step_ = 0;
};

}  // namespace lockstep
