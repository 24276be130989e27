// The layers that convert_sync_batchnorm has converted, and the ranks that each shares its statistics with.
//
// A module's layers are members of fixed types whose forward is not virtual, so no layer can be replaced.
// Instead the operator that they all call is: it knows a converted layer by its tensors.
#pragma once

#include <memory>
#include <vector>

#include <lockstep/ddp.h>
#include <lockstep/process_group.h>

namespace lockstep::ddp {

// The ranks whose batches count as one. Has groups of its own, because the collectives of gradients are under
// way while a backward pass comes to these, at points that differ from rank to rank.
//
// Under Join a rank without input is left out: the others go on in a smaller group. It need not know which
// layers they run, in which order and how often.
//
// Thread-safety: none, as for a group.
class SyncGroup {
 public:
  // All ranks of the group must call it.
  explicit SyncGroup(const std::shared_ptr<ProcessGroup>& parent);

  // Those that have input. A backward pass must use the group that its forward pass did. All ranks must call
  // it first after the parent has got another generation: the groups are made anew then.
  const std::shared_ptr<ProcessGroup>& present();
  // All ranks must call it, when any of them has run out of input.
  void regroup(bool has_input);
  // All have input again.
  void restore() { present_ = all_; }

 private:
  void follow_parent();

  const std::weak_ptr<ProcessGroup> parent_;  // layers do not keep it alive
  uint64_t made_for_ = 0;                     // the parent's generation
  std::shared_ptr<ProcessGroup> all_;
  std::shared_ptr<ProcessGroup> present_;
};

// Of the converted layers in this model: each once, in the same order on all ranks.
std::vector<std::shared_ptr<SyncGroup>> sync_groups_in(const detail::ModelView& model);

}  // namespace lockstep::ddp
