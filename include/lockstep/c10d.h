// For code that speaks c10d already: the complete type behind ProcessGroup::c10d(), and lockstep's engines as
// c10d backends.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include <lockstep/c10d_fwd.h>

namespace c10d {
class Store;
}

namespace lockstep {

// lockstep's engine of this name ("shm") as a c10d backend. Every rank of 0 … world_size - 1 must call it
// with a store that all of them share and that is fresh for this group (a PrefixStore will do). Returns
// before the others have come; so ranks may be processes, threads, or several in one thread. Calls begin when
// all ranks are there, and end with a TimeoutError when that takes longer than `timeout`, which is also that
// of every call that has none of its own. Throws UsageError for a name that this build does not have.
c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout);

class ProcessGroup;
// The other way round: a c10d backend of anybody's as a group, for DistributedDataParallel and everything
// else. Every rank of the backend must call it, with a store as above. Subgroups of it are made with shared
// memory if the backend is lockstep's own, with Gloo otherwise.
std::shared_ptr<ProcessGroup> make_process_group(c10::intrusive_ptr<c10d_backend> backend,
                                                 c10::intrusive_ptr<c10d::Store> store,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace lockstep
