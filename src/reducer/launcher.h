// Copies gradients into buckets, launches full buckets, and makes the averages the gradients. Buckets are
// launched strictly in the order of the plan, which is the same on all ranks.
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
#include "reducer/streams.h"
#include "reducer/timeline.h"
#include "reducer/updater.h"

namespace lockstep::reducer {

class Launcher {
 public:
  Launcher(std::shared_ptr<ProcessGroup> group, const Parameters& parameters, PlanCaps caps, bool as_view);

  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  // Creates the buckets. `order`: the parameters that get a place, in the order in which they become ready.
  void plan(const std::vector<size_t>& order, const std::vector<bool>& sparse);

  // Begins a pass. `takes_part`: this rank has gradients of its own.
  void begin(int participants, bool takes_part);
  // Copies the parameter's gradient, which is complete, into its bucket.
  void add(size_t parameter);
  // For a parameter that takes no part in this pass: fills its place in the bucket.
  void add_bystander(size_t parameter);
  // Fills all places with zeros: for a pass of other ranks.
  void add_nothing();
  // In the order of the plan, up to the first bucket that is not full.
  void launch_full_buckets();
  // Advances launched buckets, if the transport has no thread that does.
  void poll();
  // Blocks until all buckets are complete, then calls `used_anywhere`. A bystander gets the average if it was
  // used on any rank.
  void finish(const std::function<std::vector<bool>()>& used_anywhere);
  void end_pass();
  // Forgets launched buckets and added gradients. Does not block.
  void drop();

  // From the next pass on.
  void hold(Hold what);
  // Whether the gradients of this parameter are held, once there is a plan.
  bool holds(size_t parameter) const;
  // Blocks; all ranks must call it, after a pass. Which gradients exist was settled in that pass.
  void update(Updater& updater);
  // The same, but the parameters stay as they are: for a transform that only looks at the averages.
  void measure(const std::function<comm::Transform&(const Held&)>& transform_of);

  DdpStats stats() const;
  void log() const { timeline_.log(); }

 private:
  struct Place {
    size_t bucket = SIZE_MAX, slot = 0;  // SIZE_MAX: none
    bool bystander = false;              // in this pass
    at::Tensor lent = {};                // the gradient of a bystander, to be restored
  };
  // A launched bucket: one of the three is set, or none if its gradients are held.
  struct Launched {
    std::shared_ptr<Work::State> call;
    std::optional<CommResult> answer;
    std::optional<SparseExchange> sparse;
  };

  bool holds(const Bucket& bucket) const;
  bool reduces_in_update(const Bucket& bucket) const;
  bool is_idle(size_t parameter) const { return parameter < idle_.size() && idle_[parameter]; }
  void gather_parameters();
  template <class Exchange>
  void for_each_held(Exchange&& exchange);
  Held describe_held(const Bucket& bucket, const comm::Request& request) const;
  comm::Request update_of(Bucket& bucket) const;
  void follow_generation();
  void check_device(const Parameter& parameter) const;
  Mean::Dtypes free_averages() const;
  void launch(size_t index);
  void start_sparse();
  at::Tensor wait_for(size_t index);
  void hand_out(size_t index, const at::Tensor& sparse_average, const std::vector<bool>& used);
  void filled(const Place& place);
  double factor_of(const Bucket& bucket) const;
  GradBucket describe(size_t index) const;
  std::string purpose_of(size_t index) const;
  // Calls `body`. Its errors name this bucket and become the group's error.
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
  std::vector<size_t> pending_;   // places of each bucket that are not filled yet
  std::vector<Streams> streams_;  // on which they were filled
  uint64_t planned_for_ = 0;      // the generation that the buckets fit
  Hold hold_ = Hold::Nothing;
  bool laid_out_ = false;   // the updater knows the buckets
  std::vector<bool> idle_;  // parameters that no rank has used in the last pass

  // State of the current pass.
  std::shared_ptr<ProcessGroup::Impl> generation_;
  Mean mean_;
  bool takes_part_ = true;
  std::vector<Launched> launched_;  // in the order of the plan
  size_t first_under_way_ = 0;      // the first of them that is not known to be complete
  Timeline timeline_;
};

}  // namespace lockstep::reducer
