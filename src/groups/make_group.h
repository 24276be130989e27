// Creates process groups: of all ranks that have met, and of some ranks of another group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/group.h"

namespace lockstep::groups {

// The backend that InitOptions::backend requests or, if that is "auto", LOCKSTEP_BACKEND. Throws UsageError
// for a name that is unknown or that this build does not have.
std::string wanted_backend(const std::string& option);
// The engine between machines that LOCKSTEP_LINK requests: "gloo" or "mpi". Throws UsageError for another
// one.
std::string wanted_link();
// Whether this request may result in shared memory, and in NCCL.
bool may_share_memory(const std::string& wanted);
bool may_use_nccl(const std::string& wanted);
// Why this process cannot share memory with others; empty if it can.
std::string why_no_shm();

// How the ranks of a group are connected.
struct Backend {
  std::string host;                      // for tensors on the CPU: "shm", "gloo" or "hybrid"
  bool nccl = false;                     // for tensors on CUDA devices, of which each rank has its own
  ProcessGroup::Impl::Why no_cuda = {};  // if there is no NCCL

  std::string name() const { return nccl ? host + "+nccl" : host; }
};
// The backend for these ranks: "auto" becomes the best one that they can use. Gives them their CUDA devices,
// unless they already have them. Throws UsageError if they cannot use `wanted`.
Backend choose_backend(const std::string& wanted, std::vector<rendezvous::RankFacts>& ranks);
// Only for tensors on the CPU.
std::string choose_host_backend(const std::string& wanted, const std::vector<rendezvous::RankFacts>& ranks);

std::shared_ptr<ProcessGroup> make_world_of_one(std::chrono::milliseconds timeout,
                                                c10::Device device = c10::kCPU);

// A group's part of the store. It is erased when `holders` ranks have released it.
struct OwnStore {
  rendezvous::KeyStorePtr keys;
  int holders;
};

// All ranks that have met in `store` must call it; it blocks until they are connected.
std::shared_ptr<ProcessGroup> make_group(std::string name, const Backend& backend, int rank,
                                         std::vector<rendezvous::RankFacts> ranks,
                                         const rendezvous::Placement& placement, OwnStore store,
                                         base::Deadline deadline);

// The CUDA device of a rank; kCPU if it has none.
c10::Device device_of(const rendezvous::RankFacts& rank);

// All ranks of `parent` must call it; it blocks. Returns null on ranks that are not members.
std::shared_ptr<ProcessGroup> make_subgroup(ProcessGroup::Impl& parent, const std::vector<int>& ranks);

// Makes the backend the transport of a group that already has its ranks and its store. All ranks must call
// it.
void adopt_backend(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend);

// LibTorch's Gloo between these ranks, at the addresses at which they reach each other. All of them must call
// it; it blocks until they are connected. Throws Gloo's exceptions.
c10::intrusive_ptr<c10d_backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                   const std::vector<rendezvous::RankFacts>& ranks,
                                                   std::chrono::milliseconds timeout);

// The group whose transport the backend uses; null if the backend has no group.
std::shared_ptr<ProcessGroup::Impl> group_behind(const c10d_backend& backend);

c10::intrusive_ptr<c10d_backend> c10d_of(const std::shared_ptr<ProcessGroup::Impl>& group);

}  // namespace lockstep::groups
