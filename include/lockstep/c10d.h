// For code that uses c10d: the complete type behind ProcessGroup::c10d(), and conversions between lockstep's
// groups and c10d backends.
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

// Returns a c10d backend. Every rank from 0 to world_size - 1 must call it, with a store that all of them
// share and that contains no keys of another group (use a PrefixStore). `timeout` is the timeout of every
// call without its own.
//   "shm"   lockstep's engine. Does not wait for the other ranks, so ranks may be processes, threads, or
//           several in one thread. A call on the backend starts when all ranks have connected, and throws
//           TimeoutError if that takes longer than `timeout`. With `connected`, blocks like the others.
//   "auto"  the engine if all ranks can share memory, otherwise LibTorch's Gloo. Blocks until all ranks have
//           called it and are connected. The environment variable LOCKSTEP_BACKEND overrides the choice.
//   "gloo"  LibTorch's Gloo, over the network interface that leads to the other ranks. Blocks likewise.
// Throws UsageError for a name that this build does not have.
c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout,
                                                   bool connected = false);

class ProcessGroup;
// Returns a group that uses a c10d backend of any origin, for DistributedDataParallel and everything else.
// Every rank of the backend must call it, with a store as above; it blocks until all have. Subgroups use
// shared memory if the backend is lockstep's own, otherwise Gloo.
std::shared_ptr<ProcessGroup> make_process_group(c10::intrusive_ptr<c10d_backend> backend,
                                                 c10::intrusive_ptr<c10d::Store> store,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace lockstep
