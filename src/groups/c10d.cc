// lockstep's engines as c10d backends, and c10d backends as groups.
#include <fmt/format.h>

#include <lockstep/c10d.h>
#include <lockstep/error.h>

#include "base/address.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/error_text.h"
#include "comm/group.h"
#include "groups/make_group.h"
#include "network/offer.h"
#include "rendezvous/foreign_store.h"
#include "rendezvous/meet.h"
#include "rendezvous/rails.h"
#include "shm_c10d/backend.h"

namespace lockstep {

namespace {

std::shared_ptr<rendezvous::ForeignStore> foreign(c10::intrusive_ptr<c10d::Store> store, int rank) {
  return std::make_shared<rendezvous::ForeignStore>(std::move(store), rank);
}

rendezvous::KeyStorePtr keys_of(std::shared_ptr<rendezvous::ForeignStore> store,
                                std::chrono::milliseconds timeout, const char* prefix) {
  return c10::make_intrusive<rendezvous::KeyStore>(std::move(store), prefix, timeout);
}

std::shared_ptr<shm::Endpoint> make_endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                             std::chrono::milliseconds timeout) {
  return std::make_shared<shm::Endpoint>(std::move(store), rank, world_size, timeout, "c10d group");
}

// The backend keeps the store until it is destroyed, for the sake of forked children (ForeignStore). The
// endpoint does not: it exists as long as any Work, and as long as the store exists, LibTorch gives its
// server, with its keys, also to the next group at the same address.
c10::intrusive_ptr<c10d_backend> make_backend(std::shared_ptr<shm::Endpoint> endpoint,
                                              std::shared_ptr<rendezvous::ForeignStore> store) {
  return c10::make_intrusive<shm_c10d::Backend>(std::move(endpoint), std::move(store));
}

// The store does not tell at which address the ranks meet.
rendezvous::RankFacts own_facts(int rank, int world_size) {
  auto facts = rendezvous::facts_of_this_process(rank, world_size);
  const auto master = base::env_string("MASTER_ADDR").value_or("");
  facts.network = network::offer_of_this_process(base::without_brackets(master));
  return facts;
}

// The ranks meet: to learn whether they can share memory, and where Gloo finds them.
c10::intrusive_ptr<c10d_backend> make_agreed(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                             std::chrono::milliseconds timeout, const std::string& name) {
  const auto deadline = base::Deadline::in(timeout);
  const auto store_of_all = foreign(std::move(store), rank);
  const auto keys = keys_of(store_of_all, timeout, "lockstep-backend");
  auto mine = own_facts(rank, world_size);
  mine.backend = groups::wanted_backend(name);
  if (groups::may_share_memory(mine.backend)) mine.no_shm = groups::why_no_shm();
  const auto ranks = rendezvous::meet(*keys, mine, deadline);
  const auto backend = groups::choose_host_backend(mine.backend, ranks);
  if (backend == "shm") {
    auto endpoint = make_endpoint(keys->for_backend(deadline), rank, world_size, timeout);
    // At once: later, a thread of the user that waits in the store may hold the lock of LibTorch's client.
    endpoint->connect();
    return make_backend(std::move(endpoint), store_of_all);
  }
  rendezvous::check_rails(*keys, rank, ranks, deadline);
  return groups::make_gloo_backend(keys->for_backend(deadline), rank, ranks, timeout);
}

}  // namespace

c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout,
                                                   bool connected) {
  if (name != "shm" && name != "auto" && name != "gloo") {
    throw UsageError(
        base::compose({.what = fmt::format("there is no c10d backend \"{}\" in this build", name),
                       .evidence = "available: auto, gloo, shm",
                       .hint = "create LibTorch's own backends with LibTorch"}));
  }
  if (!store || timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(base::compose({.what = "a c10d backend cannot be created",
                                    .evidence = store ? "the timeout is not positive" : "there is no store",
                                    .hint = "pass a store that all ranks share, and a positive timeout"}));
  }
  if (connected || name != "shm") return make_agreed(std::move(store), rank, world_size, timeout, name);
  auto endpoint = make_endpoint(store, rank, world_size, timeout);
  endpoint->connect_in_background();
  return make_backend(std::move(endpoint), foreign(std::move(store), rank));
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
  const auto keys = keys_of(foreign(std::move(store), impl->rank), timeout, "lockstep");
  impl->ranks = rendezvous::meet(*keys, own_facts(impl->rank, impl->world_size), deadline);
  impl->placement = rendezvous::placement_of(impl->rank, impl->ranks);
  impl->watch.emplace(impl->rank, impl->ranks);
  impl->store = keys;
  impl->store_holders = impl->world_size;
  groups::adopt_backend(*impl, std::move(backend));
  rendezvous::leave(*keys, impl->rank, impl->world_size, deadline);
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace lockstep
