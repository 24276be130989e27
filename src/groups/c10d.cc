// lockstep's engines as c10d backends, and c10d backends as groups.
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/c10d.h>
#include <lockstep/error.h>

#include "base/address.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/error_text.h"
#include "c10d_face/backend.h"
#include "c10d_face/shm_engine.h"
#include "comm/generation.h"
#include "comm/group.h"
#include "comm/work.h"
#include "compat/backend.h"
#include "groups/make_group.h"
#include "network/offer.h"
#include "rendezvous/foreign_store.h"
#include "rendezvous/meet.h"
#include "rendezvous/rails.h"

namespace lockstep {

namespace {

constexpr const char* kName = "c10d group";  // of all that are made here

std::shared_ptr<rendezvous::ForeignStore> foreign(c10::intrusive_ptr<c10d::Store> store, int rank) {
  return std::make_shared<rendezvous::ForeignStore>(std::move(store), rank);
}

rendezvous::KeyStorePtr keys_of(std::shared_ptr<rendezvous::ForeignStore> store,
                                std::chrono::milliseconds timeout, const std::string& prefix) {
  return c10::make_intrusive<rendezvous::KeyStore>(std::move(store), prefix, timeout);
}

std::shared_ptr<shm::Endpoint> make_endpoint(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                             std::chrono::milliseconds timeout) {
  return std::make_shared<shm::Endpoint>(std::move(store), rank, world_size, timeout, kName);
}

// The store does not tell at which address the ranks meet.
rendezvous::RankFacts own_facts(int rank, int world_size) {
  auto facts = rendezvous::facts_of_this_process(rank, world_size);
  const auto master = base::env_string("MASTER_ADDR").value_or("");
  facts.network = network::offer_of_this_process(base::without_brackets(master));
  facts.link = groups::wanted_link();
  return facts;
}

// The ranks meet: to learn whether they can share memory, and where Gloo finds them.
struct Meeting {
  rendezvous::KeyStorePtr keys;
  std::vector<rendezvous::RankFacts> ranks;
  std::string backend;
};
Meeting meet_at(const std::string& place, const std::shared_ptr<rendezvous::ForeignStore>& store, int rank,
                int world_size, const std::string& wanted, base::Deadline deadline) {
  auto keys = keys_of(store, deadline.budget(), place);
  auto mine = own_facts(rank, world_size);
  mine.backend = wanted;
  if (groups::may_share_memory(wanted)) mine.no_shm = groups::why_no_shm();
  auto ranks = rendezvous::meet(*keys, mine, deadline);
  auto backend = groups::choose_host_backend(wanted, ranks);
  return {std::move(keys), std::move(ranks), std::move(backend)};
}

// The backend keeps the store until it is destroyed, for the sake of forked children (ForeignStore) and to
// connect other generations. The endpoint does not: it exists as long as any Work, and as long as the store
// exists, LibTorch gives its server, with its keys, also to the next group at the same address.
c10::intrusive_ptr<c10d_backend> make_backend(std::shared_ptr<shm::Endpoint> endpoint,
                                              std::shared_ptr<rendezvous::ForeignStore> store) {
  const auto connect = [store = std::move(store), timeout = endpoint->timeout()](
                           const std::string& place, int rank, int world_size, base::Deadline deadline) {
    const auto met = meet_at("lockstep-" + place, store, rank, world_size, "shm", deadline);
    auto next = make_endpoint(met.keys->for_backend(deadline), rank, world_size, timeout);
    next->connect(deadline);
    // When all members have come here, nobody reads these keys any more. If one has not, they remain, with
    // its verdict.
    met.keys->forget(world_size);
    return std::make_unique<c10d_face::ShmEngine>(std::move(next));
  };
  return c10::make_intrusive<c10d_face::Backend>(std::make_unique<c10d_face::ShmEngine>(std::move(endpoint)),
                                                 connect);
}

c10::intrusive_ptr<c10d_backend> make_agreed(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                             std::chrono::milliseconds timeout, const std::string& name) {
  const auto deadline = base::Deadline::in(timeout);
  const auto store_of_all = foreign(std::move(store), rank);
  const auto met =
      meet_at("lockstep-backend", store_of_all, rank, world_size, groups::wanted_backend(name), deadline);
  if (met.backend == "hybrid") {
    const auto placement = rendezvous::placement_of(rank, met.ranks);
    return groups::make_group(kName, {.host = met.backend}, rank, met.ranks, placement,
                              {met.keys, world_size}, deadline)
        ->c10d();
  }
  if (met.backend == "shm") {
    auto endpoint = make_endpoint(met.keys->for_backend(deadline), rank, world_size, timeout);
    // At once: later, a thread of the user that waits in the store may hold the lock of LibTorch's client.
    endpoint->connect(deadline);
    return make_backend(std::move(endpoint), store_of_all);
  }
  rendezvous::check_rails(*met.keys, rank, met.ranks, deadline);
  return groups::make_gloo_backend(met.keys->for_backend(deadline), rank, met.ranks, timeout);
}

void check_arguments(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout) {
  if (store && timeout > std::chrono::milliseconds(0)) return;
  throw UsageError(base::compose({.what = "a c10d backend cannot be created",
                                  .evidence = store ? "the timeout is not positive" : "there is no store",
                                  .hint = "pass a store that all ranks share, and a positive timeout"}));
}

}  // namespace

c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout,
                                                   bool connected) {
  if (name != "shm" && name != "hybrid" && name != "auto" && name != "gloo") {
    throw UsageError(
        base::compose({.what = fmt::format("there is no c10d backend \"{}\" in this build", name),
                       .evidence = "available: auto, gloo, hybrid, shm",
                       .hint = "create LibTorch's own backends with LibTorch"}));
  }
  check_arguments(store, timeout);
  if (connected || name != "shm") return make_agreed(std::move(store), rank, world_size, timeout, name);
  auto endpoint = make_endpoint(store, rank, world_size, timeout);
  endpoint->connect_in_background();
  return make_backend(std::move(endpoint), foreign(std::move(store), rank));
}

c10::intrusive_ptr<c10d_backend> make_unconnected_c10d_backend(const std::string& name,
                                                               c10::intrusive_ptr<c10d::Store> store,
                                                               int rank, int world_size,
                                                               std::chrono::milliseconds timeout) {
  const auto refuse = [](const std::string& evidence, const char* hint) {
    throw UsageError(base::compose({.what = "a backend that waits for reconfigure() cannot be created",
                                    .evidence = evidence,
                                    .hint = hint}));
  };
  check_arguments(store, timeout);
  if (!compat::kHasReconfigure) {
    refuse(fmt::format("LibTorch {} does not have reconfigure()", TORCH_VERSION), "use 2.13 or later");
  }
  const auto wanted = groups::wanted_backend(name);
  if (wanted != "auto" && wanted != "shm") {
    refuse(fmt::format("the backend is to be {}, and lockstep changes the members of shm only", wanted),
           "for another one, use PyTorch's own backend \"gloo\"");
  }
  // Its ranks never connect, so they need no store.
  auto endpoint = make_endpoint(c10::make_intrusive<c10d::HashStore>(), rank, world_size, timeout);
  endpoint->fail("UsageError",
                 base::compose({.what = "the group is not connected",
                                .where = fmt::format("rank {}/{}, c10d group, backend shm", rank, world_size),
                                .hint = "call reconfigure() with the handles of its members first"}));
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
  // Such a backend has its ranks, its store and its control channel already.
  if (const auto group = groups::group_behind(*backend)) {
    comm::Request barrier;
    comm::run(*group, barrier);
    return std::make_shared<ProcessGroup>(group);
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
