// The layers that convert_sync_batchnorm has converted, and the ranks with which each shares its statistics.
//
// A module's layers are members of fixed types whose forward is not virtual, so no layer can be replaced.
// Instead, the operator that all of them call is replaced. It recognizes a converted layer by its tensors.
#pragma once

#include <memory>
#include <vector>

#include <lockstep/ddp.h>
#include <lockstep/process_group.h>

namespace lockstep::ddp {

// The ranks whose batches are normalised together. It has its own process groups, because a backward pass
// reaches these layers while the collectives of gradients are in progress, at points that differ from rank to
// rank.
//
// Under Join, a rank without input is left out, and the others continue in a smaller group. So it need not
// know which layers they run, in which order and how often.
//
// Not thread-safe, like a process group.
class SyncGroup {
 public:
  // All ranks of the group must call it; it blocks.
  explicit SyncGroup(const std::shared_ptr<ProcessGroup>& parent);

  // The group of the ranks that have input. A backward pass must use the group of its forward pass. After the
  // parent has changed its generation, the first call creates new groups: all ranks must make it.
  const std::shared_ptr<ProcessGroup>& present();
  // All ranks must call it when any of them has run out of input; it blocks.
  void regroup(bool has_input);
  // All ranks have input again.
  void restore() { present_ = all_; }

 private:
  void follow_parent();

  const std::weak_ptr<ProcessGroup> parent_;  // layers do not keep it alive
  uint64_t made_for_ = 0;                     // the parent's generation
  std::shared_ptr<ProcessGroup> all_;
  std::shared_ptr<ProcessGroup> present_;
};

// The groups of the converted layers in this model: each once, in the same order on all ranks.
std::vector<std::shared_ptr<SyncGroup>> sync_groups_in(const detail::ModelView& model);

}  // namespace lockstep::ddp
