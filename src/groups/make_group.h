// Makes process groups: of all ranks that have met, and of some ranks of another group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/group.h"

namespace lockstep::groups {

// What InitOptions::backend asks for; where that is "auto", LOCKSTEP_BACKEND. Throws UsageError for a name
// that is unknown or that this build lacks.
std::string wanted_backend(const std::string& option);
// Whether that may turn out to be shared memory.
bool may_be_shm(const std::string& wanted);
// Why this process cannot share memory with others; empty when it can.
std::string why_no_shm();
// What `wanted` means for these ranks: "auto" becomes the best there is. Throws UsageError when they cannot
// have it.
std::string choose_backend(const std::string& wanted, const std::vector<rendezvous::RankFacts>& ranks);

std::shared_ptr<ProcessGroup> make_world_of_one(std::chrono::milliseconds timeout);

// A group's part of the store, and how many ranks must have no more use for it before it is erased.
struct OwnStore {
  rendezvous::KeyStorePtr keys;
  int holders;
};

// Collective over the ranks that have met in `store`. "auto" is not a backend here.
std::shared_ptr<ProcessGroup> make_group(std::string name, const std::string& backend, int rank,
                                         std::vector<rendezvous::RankFacts> ranks,
                                         const rendezvous::Placement& placement, OwnStore store,
                                         base::Deadline deadline);

// Collective over `parent`; null on the ranks that are not members.
std::shared_ptr<ProcessGroup> make_subgroup(ProcessGroup::Impl& parent, const std::vector<int>& ranks);

// The backend becomes the transport of a group that has its ranks and its store already.
void adopt_backend(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend);

c10::intrusive_ptr<c10d_backend> c10d_of(const ProcessGroup::Impl& group);

}  // namespace lockstep::groups
