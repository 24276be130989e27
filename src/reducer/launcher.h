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
#include "comm/own_gradients.h"
#include "comm/work.h"
#include "reducer/bucket.h"
#include "reducer/parameter.h"
#include "reducer/plan.h"
#include "reducer/samples.h"
#include "reducer/sparse.h"
#include "reducer/streams.h"
#include "reducer/timeline.h"
#include "reducer/updater.h"

namespace lockstep::reducer {

class Launcher {
 public:
  // `copies`: of the parameters, while an optimizer updates them from the buckets.
  Launcher(std::shared_ptr<ProcessGroup> group, const Parameters& parameters, PlanCaps caps, bool as_view,
           Bucket::Copies copies);

  void set_hook(CommHook hook) {
    hook_ = std::move(hook);
    note_own_gradients();
  }

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

  // A pass has begun that changes gradients, synchronised or not.
  void forget_samples() { samples_.clear(); }

  // From the next pass on.
  // `narrow`: also of bfloat16 and half.
  void hold(Hold what, bool narrow);
  // Whether the gradients of this parameter are held, once there is a plan.
  bool holds(size_t parameter) const;
  // Whether gradients that are held are averaged before the update.
  bool averages_held() const { return hold_ == Hold::Averages || hook_; }
  // Blocks; all ranks must call it, after a pass. `used`: the parameters that have a gradient on some rank;
  // the others stay as they are.
  void update(Updater& updater, const std::vector<bool>& used);
  // The same, but all parameters stay as they are: for a transform that only looks at the averages.
  void measure(const std::function<comm::Transform&(const Held&)>& transform_of,
               const std::vector<bool>& used);
  // The next update lays out the buckets for its updater again.
  void forget_layout() { laid_out_ = false; }
  // Of the last pass: fewer ranks than the group has, under Join.
  bool some_took_part() const { return mean_.participants() < group_->world_size(); }
  bool took_part() const { return takes_part_; }

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
  void gather_parameters();
  void release_freed_memory() const;
  void note_own_gradients();
  void warn_of_changed_gradients();
  template <class Exchange>
  void for_each_held(const std::vector<bool>& used, bool measures, Exchange&& exchange);
  Held describe_held(const Bucket& bucket, const std::vector<bool>& used, const comm::Request& request,
                     bool replaced) const;
  comm::Request update_of(Bucket& bucket, bool measures) const;
  void refuse_overlaps() const;
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
  const Bucket::Copies copies_;
  CommHook hook_;

  std::vector<Place> places_;
  std::vector<Bucket> buckets_;
  size_t last_dense_ = SIZE_MAX;
  std::vector<size_t> pending_;   // places of each bucket that are not filled yet
  std::vector<Streams> streams_;  // on which they were filled
  uint64_t planned_for_ = 0;      // the generation that the buckets fit
  Hold hold_ = Hold::Nothing;
  bool holds_narrow_ = false;
  bool laid_out_ = false;  // the updater knows the buckets
  std::vector<std::unique_ptr<comm::OwnGradients>> own_;
  Samples samples_;  // of own gradients, when their pass was complete
  bool warned_of_changes_ = false;

  // State of the current pass.
  std::shared_ptr<ProcessGroup::Impl> generation_;
  Mean mean_;
  bool takes_part_ = true;
  std::vector<Launched> launched_;  // in the order of the plan
  size_t first_under_way_ = 0;      // the first of them that is not known to be complete
  Timeline timeline_;
};

}  // namespace lockstep::reducer
