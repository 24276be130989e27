// For code that uses c10d: the complete type behind ProcessGroup::c10d(), and conversions between lockstep's
// groups and c10d backends.
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <utility>

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
//   "shm"     lockstep's engine for one machine. Does not wait for the other ranks, so ranks may be
//   processes,
//             threads, or several in one thread. A call on the backend starts when all ranks have connected,
//             and throws TimeoutError if that takes longer than `timeout`. With `connected`, blocks like the
//             others.
//   "hybrid"  lockstep's engine for several machines: shared memory inside each, the network between them
//             (docs/multi-node.md). Ranks are processes. Cannot receive from any rank (UsageError). Becomes
//             "shm" if all ranks are on one machine. Blocks until all ranks have called it and are connected.
//   "auto"    "shm" if all ranks are on one machine, "hybrid" if they are on several, and "gloo" if the ranks
//             of a machine cannot share memory. Blocks likewise. The environment variable LOCKSTEP_BACKEND
//             overrides the choice.
//   "gloo"    LibTorch's Gloo, over the network interface that leads to the other ranks. Blocks likewise.
// Throws UsageError for a name that this build does not have.
//
// The backend of "shm" and "hybrid" is thread-safe. It may be destroyed while calls are in progress, which
// continue. A Work may be kept as long as you like. In a forked child, every call throws UsageError.
c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout,
                                                   bool connected = false);

// For LibTorch 2.13 and later. Returns a backend whose ranks are not connected, and which does not wait for
// them: c10d's reconfigure() connects it with those whose handles (get_reconfigure_handle()) it is given. It
// blocks until all of them have called it. Until then, calls throw UsageError. `rank` and `world_size` are
// what the backend reports until then; `name` is "shm" or "auto", which is the same here. The store is as
// above; ranks that join later must share it, too. Backends that make_c10d_backend makes over shared memory
// also support reconfigure(). Throws UsageError with earlier versions of LibTorch, and if LOCKSTEP_BACKEND
// asks for Gloo.
c10::intrusive_ptr<c10d_backend> make_unconnected_c10d_backend(const std::string& name,
                                                               c10::intrusive_ptr<c10d::Store> store,
                                                               int rank, int world_size,
                                                               std::chrono::milliseconds timeout);

class ProcessGroup;
// Returns a group that uses a c10d backend of any origin, for DistributedDataParallel and everything else.
// Every rank of the backend must call it, with a store as above; it blocks until all have. Subgroups use
// shared memory or "hybrid" if the backend is lockstep's own, otherwise Gloo. A group of the backend "hybrid"
// has the timeout, and uses the store, with which the backend was made.
std::shared_ptr<ProcessGroup> make_process_group(c10::intrusive_ptr<c10d_backend> backend,
                                                 c10::intrusive_ptr<c10d::Store> store,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(5));

#if TORCH_VERSION_MAJOR >= 2
namespace detail {
c10::intrusive_ptr<c10d_backend> cpu_backend_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
}
// The same with the backend for tensors on the CPU of a c10d::ProcessGroup, such as Python's. (A template,
// because c10::intrusive_ptr claims to convert to any other.)
template <std::same_as<c10d::ProcessGroup> Group>
std::shared_ptr<ProcessGroup> make_process_group(
    const c10::intrusive_ptr<Group>& group, c10::intrusive_ptr<c10d::Store> store,
    std::chrono::milliseconds timeout = std::chrono::minutes(5)) {
  return make_process_group(detail::cpu_backend_of(group), std::move(store), timeout);
}
#endif

}  // namespace lockstep
