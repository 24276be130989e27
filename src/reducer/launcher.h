// Launches buckets and brings them home: gradients are copied in, full buckets are reduced strictly in the
// order of the plan, which is the same on all ranks, and averages are handed out.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm_hook.h>
#include <lockstep/ddp_stats.h>
#include <lockstep/mean.h>
#include <lockstep/process_group.h>

#include "comm/group.h"
#include "comm/work.h"
#include "reducer/bucket.h"
#include "reducer/parameter.h"
#include "reducer/plan.h"
#include "reducer/sparse.h"
#include "reducer/timeline.h"

namespace lockstep::reducer {

class Launcher {
 public:
  Launcher(std::shared_ptr<ProcessGroup> group, const Parameters& parameters, PlanCaps caps, bool as_view);

  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  // Makes the buckets. `order`: the parameters that get a place, in the order in which they become ready.
  void plan(const std::vector<size_t>& order, const std::vector<bool>& sparse);

  // Begins a pass. `takes_part`: with gradients of this rank's own.
  void begin(int participants, bool takes_part);
  // The parameter's gradient is complete: it is copied in, and full buckets are launched.
  void add(size_t parameter);
  // The parameter takes no part in this pass, but its place must be filled.
  void add_bystander(size_t parameter);
  // Zeros in all places: for a pass of other ranks.
  void add_nothing();
  void launch_full_buckets();
  // Advances what is under way, where the transport has no thread that could.
  void poll();
  // Waits for all buckets. `used_anywhere` is asked then; a bystander takes the average where it says so.
  void finish(const std::function<std::vector<bool>()>& used_anywhere);
  void end_pass();
  // Forgets what is under way and what was added. Does not wait.
  void drop();

  DdpStats stats() const;
  void log() const { timeline_.log(); }

 private:
  struct Place {
    size_t bucket = SIZE_MAX, slot = 0;  // SIZE_MAX: none
    bool bystander = false;              // in this pass
    at::Tensor lent = {};                // a bystander's, to be restored
  };
  // A bucket under way: one of the three.
  struct Launched {
    std::shared_ptr<Work::State> call;
    std::optional<CommResult> answer;
    std::optional<SparseExchange> sparse;
  };

  void follow_generation();
  void check_device(const Parameter& parameter) const;
  void launch(size_t index);
  void start_sparse();
  at::Tensor wait_for(size_t index);
  void hand_out(size_t index, const at::Tensor& sparse_average, const std::vector<bool>& used);
  void filled(const Place& place);
  double factor_of(const Bucket& bucket) const;
  GradBucket describe(size_t index) const;
  std::string purpose_of(size_t index) const;
  // Errors inside are about this bucket, and are the group's.
  template <class Body>
  auto on_behalf_of(size_t index, Body&& body);

  const std::shared_ptr<ProcessGroup> group_;
  const Parameters& parameters_;
  const PlanCaps caps_;
  const bool as_view_;
  CommHook hook_;

  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
  size_t last_dense_ = SIZE_MAX;
  std::vector<size_t> pending_;  // places that each bucket waits for
  uint64_t planned_for_ = 0;     // the generation that the buckets fit

  // Of the pass under way.
  std::shared_ptr<ProcessGroup::Impl> generation_;
  Mean mean_;
  bool takes_part_ = true;
  std::vector<Launched> launched_;  // in order
  size_t first_under_way_ = 0;      // of them
  Timeline timeline_;
};

}  // namespace lockstep::reducer
