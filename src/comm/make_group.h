// Makes process groups: of all ranks that have met, and of some ranks of another group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/group.h"

namespace lockstep::comm {

// Throws UsageError for a name that is unknown or that this build lacks; "auto" becomes the best there is.
std::string choose_backend(const std::string& wanted);

std::shared_ptr<ProcessGroup> make_world_of_one(std::chrono::milliseconds timeout);

// Collective over the ranks that have met in `store`.
std::shared_ptr<ProcessGroup> make_group(std::string name, const std::string& backend, int rank,
                                         std::vector<RankFacts> ranks, const Placement& placement,
                                         c10::intrusive_ptr<c10d::Store> store, base::Deadline deadline);

// Collective over `parent`; null on the ranks that are not members.
std::shared_ptr<ProcessGroup> make_subgroup(ProcessGroup::Impl& parent, const std::vector<int>& ranks);

c10::intrusive_ptr<c10d_backend> c10d_of(const ProcessGroup::Impl& group);

}  // namespace lockstep::comm
