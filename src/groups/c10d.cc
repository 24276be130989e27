// lockstep's engines as c10d backends, and c10d backends as groups.
#include <fmt/format.h>

#include <lockstep/c10d.h>
#include <lockstep/error.h>

#include "base/deadline.h"
#include "base/error_text.h"
#include "comm/group.h"
#include "groups/make_group.h"
#include "rendezvous/foreign_store.h"
#include "rendezvous/meet.h"
#include "shm_c10d/backend.h"

namespace lockstep {

c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout) {
  if (name != "shm") {
    throw UsageError(
        base::compose({.what = fmt::format("there is no c10d backend \"{}\" in this build", name),
                       .evidence = "available: shm",
                       .hint = "create LibTorch's own backends with LibTorch"}));
  }
  if (!store || timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(base::compose({.what = "a c10d backend cannot be created",
                                    .evidence = store ? "the timeout is not positive" : "there is no store",
                                    .hint = "pass a store that all ranks share, and a positive timeout"}));
  }
  auto endpoint = std::make_shared<shm::Endpoint>(std::move(store), rank, world_size, timeout, "c10d group");
  endpoint->connect_in_background();
  return c10::make_intrusive<shm_c10d::Backend>(std::move(endpoint));
}

std::shared_ptr<ProcessGroup> make_process_group(c10::intrusive_ptr<c10d_backend> backend,
                                                 c10::intrusive_ptr<c10d::Store> store,
                                                 std::chrono::milliseconds timeout) {
  if (!backend || !store) {
    throw UsageError(base::compose({.what = "a process group cannot be created",
                                    .evidence = backend ? "there is no store" : "there is no backend",
                                    .hint = "pass a c10d backend, and a store that all its ranks share"}));
  }
  const auto deadline = base::Deadline::in(timeout);
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = fmt::format("a group of c10d's backend {}", backend->getBackendName());
  impl->rank = backend->getRank();
  impl->world_size = backend->getSize();
  impl->timeout = timeout;
  const auto keys = c10::make_intrusive<rendezvous::KeyStore>(
      std::make_shared<rendezvous::ForeignStore>(std::move(store), impl->rank), "lockstep", timeout);
  impl->ranks =
      rendezvous::meet(*keys, rendezvous::facts_of_this_process(impl->rank, impl->world_size), deadline);
  impl->placement = rendezvous::placement_of(impl->rank, impl->ranks);
  impl->watch.emplace(impl->rank, impl->ranks);
  impl->store = keys;
  impl->store_holders = impl->world_size;
  groups::adopt_backend(*impl, std::move(backend));
  rendezvous::leave(*keys, impl->rank, impl->world_size, deadline);
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace lockstep
