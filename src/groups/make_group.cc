#include "groups/make_group.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/error.h>

#include "base/aside.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "c10d_face/backend.h"
#include "c10d_face/group_engine.h"
#include "c10d_face/shm_engine.h"
#include "comm/by_device.h"
#include "comm/diagnose.h"
#include "comm/failure.h"
#include "comm/single.h"
#include "comm/store_control.h"
#include "gloo/link.h"
#include "gloo/make_gloo.h"
#include "gloo/transport.h"
#include "hybrid/topology.h"
#include "hybrid/transport.h"
#include "mpi/connect.h"
#include "nccl/engine.h"
#include "nccl/transport.h"
#include "rendezvous/meet.h"
#include "rendezvous/rails.h"
#include "shm/control.h"
#include "wires/connect.h"
#include "wires/link.h"

namespace lockstep::groups {

namespace {

using namespace comm;
using namespace rendezvous;
using namespace std::chrono_literals;

constexpr auto kBetweenLooks = 20ms;

// Uses shared memory for the data and the control channel.
void use_endpoint(ProcessGroup::Impl& group, std::shared_ptr<shm::Endpoint> endpoint) {
  attach_control(group, std::make_unique<shm::Control>(endpoint->control_lane()));
  group.make_c10d = [endpoint, made = c10::intrusive_ptr<c10d_backend>()](const auto&) mutable {
    if (!made) {
      endpoint->add_owner();
      made = c10::make_intrusive<c10d_face::Backend>(std::make_unique<c10d_face::ShmEngine>(endpoint));
    }
    return made;
  };
  // The group owns the endpoint's work, not its memory: a call in progress may outlive the group.
  group.transport = {endpoint.get(), [endpoint](comm::Transport*) { endpoint->retire(); }};
}

// For a transport whose ranks do not all share memory.
template <class Transport>
void use_store_control(ProcessGroup::Impl& group, Transport& transport) {
  auto control = std::make_unique<StoreControl>(group, [&transport] { return transport.calls(); });
  transport.watch_control(*control);
  // A wait that is given up leaves the memory to other threads.
  if (transport.needs_owners()) group.blocking = Returns::AtOnce;
  attach_control(group, std::move(control));
}

// Uses a c10d backend for the data, and the store for the control channel.
template <class Transport>
void use_backend(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend) {
  auto transport = std::make_shared<Transport>(group, std::move(backend));
  use_store_control(group, *transport);
  group.make_c10d = [raw = transport.get()](const auto&) { return raw->backend(); };
  group.transport = std::move(transport);
}

std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup::Impl> impl) {
  return std::make_shared<ProcessGroup>(std::move(impl));
}

void connect_shm(ProcessGroup::Impl& group, base::Deadline deadline) {
  try {
    auto endpoint = std::make_shared<shm::Endpoint>(group.store->for_backend(deadline), group.rank,
                                                    group.world_size, group.timeout, group.name);
    endpoint->connect(deadline);
    use_endpoint(group, std::move(endpoint));
  } catch (...) {
    throw_failure(group);
  }
}

c10::intrusive_ptr<c10d_backend> connected_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                int world_size, std::chrono::milliseconds timeout,
                                                const std::vector<std::string>& addresses) {
  auto gloo = gloo::make_gloo(store, rank, world_size, timeout, addresses);
  // Gloo considers a peer connected when the kernel does. If a rank left now, it would close connections that
  // a slower peer has not processed yet, and that peer would fail. Each call uses the next rail.
  for (size_t rail = 0; rail < addresses.size(); ++rail) gloo->barrier()->wait();
  return gloo;
}

// Notices meanwhile if a rank ends. Throws Gloo's exceptions.
c10::intrusive_ptr<c10d_backend> await_gloo(ProcessGroup::Impl& group, const network::Rails& rails,
                                            base::Deadline deadline) {
  check_rails(*group.store, group.rank, group.ranks, deadline);
  // Gloo connects to one peer after the other, each with its own timeout.
  auto connecting =
      base::run_aside([store = group.store->for_backend(deadline), rank = group.rank,
                       world_size = group.world_size, timeout = group.timeout, addresses = rails.addresses] {
        return connected_gloo(store, rank, world_size, timeout, addresses);
      });
  while (connecting.wait_for(kBetweenLooks) != std::future_status::ready) {
    if (deadline.expired()) throw std::runtime_error("timed out");
    if (is_hopeless(group)) throw std::runtime_error("connecting was given up");
  }
  return connecting.get();
}

// Calls `connect`. `how`: from where, or over what, for errors, which name their cause.
template <class Connect>
void connecting(ProcessGroup::Impl& group, const std::string& how, Connect&& connect) {
  try {
    connect();
  } catch (...) {
    try {
      throw_diagnosis(group, fmt::format("connecting the ranks ({})", how), 0);
    } catch (...) {
      throw_failure(group);
    }
  }
}

// Connects the ranks over Gloo, and calls `use` with the backend.
template <class Use>
void connect_gloo(ProcessGroup::Impl& group, base::Deadline deadline, Use&& use) {
  const auto rails = rails_of(group.rank, group.ranks);
  base::log_debug("{}: {}", group.name, network::describe(rails));
  connecting(group, fmt::format("from {}", fmt::join(rails.addresses, ", ")),
             [&] { use(await_gloo(group, rails, deadline)); });
}

void connect_network(ProcessGroup::Impl& group, base::Deadline deadline) {
  connect_gloo(group, deadline, [&](c10::intrusive_ptr<c10d_backend> gloo) {
    use_backend<gloo::Transport>(group, std::move(gloo));
  });
}

// The endpoints of this machine's ranks; none if this rank is alone on it.
hybrid::Machine::Endpoints connect_machine(ProcessGroup::Impl& group, const hybrid::Topology& topology,
                                           base::Deadline deadline) {
  hybrid::Machine::Endpoints endpoints;
  if (topology.local_size() == 1) return endpoints;
  try {
    for (size_t half = 0; half < endpoints.size(); ++half) {
      const auto store = group.store->under(fmt::format("machine{}/{}", topology.machine, half));
      endpoints[half] = std::make_shared<shm::Endpoint>(
          store->for_backend(deadline), topology.local, topology.local_size(),
          shm::RankNames(topology.local_ranks(), group.world_size, group.backend), group.timeout, group.name);
    }
    for (const auto& endpoint : endpoints) {
      if (is_crowded(group.rank, group.ranks)) endpoint->expect_crowd();
      endpoint->connect(deadline);
    }
  } catch (...) {
    throw_failure(group);
  }
  return endpoints;
}

// Gloo's messages and, between the first ranks of the machines, wires for small ones.
std::shared_ptr<comm::Link> make_link(ProcessGroup::Impl& group, const hybrid::Topology& topology,
                                      c10::intrusive_ptr<c10d_backend> gloo, base::Deadline deadline) {
  struct GlooLink {
    explicit GlooLink(c10::intrusive_ptr<c10d_backend> connected) : gloo(std::move(connected)), link(*gloo) {}
    c10::intrusive_ptr<c10d_backend> gloo;
    gloo::Link link;
  };
  const auto owner = std::make_shared<GlooLink>(std::move(gloo));
  std::shared_ptr<comm::Link> link(owner, &owner->link);
  if (!topology.is_leader()) return link;
  const auto leaders = topology.leaders();
  const auto address = rails_of(group.rank, group.ranks).addresses.front();
  auto connected = wires::connect(*group.store, leaders, group.rank, address, deadline);
  std::vector<base::Fd> sockets(group.world_size);
  for (size_t i = 0; i < leaders.size(); ++i) sockets[leaders[i]] = std::move(connected[i]);
  return std::make_shared<wires::Link>(std::move(sockets), std::move(link), group.timeout);
}

void connect_hybrid(ProcessGroup::Impl& group, base::Deadline deadline) {
  const hybrid::Topology topology(group.rank, group.ranks);
  auto endpoints = connect_machine(group, topology, deadline);
  // Not the same one each time: it owns the group.
  group.make_c10d = [shared = c10d_face::GroupEngine::share()](const auto& self) {
    return c10::make_intrusive<c10d_face::Backend>(std::make_unique<c10d_face::GroupEngine>(self, shared));
  };
  const auto use_link = [&](std::shared_ptr<comm::Link> link) {
    auto transport =
        std::make_shared<hybrid::Transport>(group, topology, std::move(endpoints), std::move(link));
    use_store_control(group, *transport);
    group.transport = std::move(transport);
  };
  if (group.ranks.front().link == "mpi") {
    connecting(group, "over MPI", [&] { use_link(mpi::connect(group, deadline)); });
    return;
  }
  connect_gloo(group, deadline, [&](c10::intrusive_ptr<c10d_backend> gloo) {
    use_link(make_link(group, topology, std::move(gloo), deadline));
  });
}

// NCCL for the tensors on this rank's device. The other tensors and the control channel remain where they
// are.
void add_nccl(ProcessGroup::Impl& group) {
  group.device = device_of(group.ranks.at(group.rank));
  auto engine = nccl::make_engine(group.store->under("nccl"), group.rank, group.world_size, group.timeout,
                                  group.device);
  auto device = std::make_shared<nccl::Transport>(group, group.device, std::move(engine));
  group.transport = std::make_shared<ByDevice>(std::move(group.transport), std::move(device));
}

std::vector<int> checked_members(const ProcessGroup::Impl& parent, std::vector<int> members) {
  std::sort(members.begin(), members.end());
  std::string problem;
  if (members.empty()) problem = "the list is empty";
  if (std::adjacent_find(members.begin(), members.end()) != members.end()) problem = "a rank is listed twice";
  if (!members.empty() && (members.front() < 0 || members.back() >= parent.world_size)) {
    problem = fmt::format("ranks go from 0 to {}", parent.world_size - 1);
  }
  if (problem.empty()) return members;
  throw UsageError(
      base::compose({.what = "new_group cannot be done",
                     .where = fmt::format("rank {}/{}, {}", parent.rank, parent.world_size, parent.name),
                     .evidence = fmt::format("the ranks are [{}]: {}", fmt::join(members, ", "), problem),
                     .hint = "pass each member once"}));
}

// All ranks of the parent must pass the same list; otherwise all of them throw.
void agree_on_members(ProcessGroup::Impl& parent, KeyStore& store, const std::vector<int>& members,
                      base::Deadline deadline) {
  const std::string mine = fmt::format("{}", fmt::join(members, ", "));
  exchange(store, parent.rank, parent.world_size, mine, deadline, [&](int rank, const std::string& theirs) {
    if (theirs == mine) return;
    throw MismatchError(base::compose(
        {.what = "the ranks do not agree on the members of a new group",
         .where = fmt::format("rank {}/{}, {}", parent.rank, parent.world_size, parent.name),
         .evidence =
             fmt::format("{} passed [{}], this rank [{}]", parent.ranks.at(rank).describe(), theirs, mine),
         .hint = "every rank of the parent, member or not, must call new_group with the same ranks"}));
  });
}

// The engine of this type, if the backend is lockstep's own and has one.
template <class Engine>
const Engine* engine_of(const c10d_backend& backend) {
  const auto* ours = dynamic_cast<const c10d_face::Backend*>(&backend);
  return ours != nullptr ? dynamic_cast<const Engine*>(&ours->engine()) : nullptr;
}

}  // namespace

c10::Device device_of(const RankFacts& rank) {
  if (rank.cuda_device < 0) return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(rank.cuda_device)};
}

std::shared_ptr<ProcessGroup> make_world_of_one(std::chrono::milliseconds timeout, c10::Device device) {
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = "world of one";
  impl->backend = "single";
  impl->device = device;
  impl->timeout = timeout;
  impl->ranks = {facts_of_this_process(0, 1)};
  impl->transport = std::make_shared<SingleTransport>();
  attach_control(*impl, std::make_unique<SingleControl>());
  impl->make_c10d = [timeout, made = c10::intrusive_ptr<c10d_backend>()](const auto&) mutable {
    if (!made) made = make_c10d_backend("shm", c10::make_intrusive<c10d::HashStore>(), 0, 1, timeout);
    return made;
  };
  return wrap(std::move(impl));
}

std::shared_ptr<ProcessGroup> make_group(std::string name, const Backend& backend, int rank,
                                         std::vector<RankFacts> ranks, const Placement& placement,
                                         OwnStore store, base::Deadline deadline) {
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = std::move(name);
  impl->backend = backend.name();
  impl->backend_of_subgroups = backend.nccl ? "nccl" : backend.host;
  impl->no_cuda = backend.no_cuda;
  impl->rank = rank;
  impl->world_size = static_cast<int>(ranks.size());
  impl->placement = placement;
  impl->timeout = deadline.budget();
  impl->ranks = std::move(ranks);
  impl->watch.emplace(rank, impl->ranks);
  impl->store = std::move(store.keys);
  impl->store_holders = store.holders;
  const auto connect = backend.host == "shm"      ? connect_shm
                       : backend.host == "hybrid" ? connect_hybrid
                                                  : connect_network;
  connect(*impl, deadline);
  if (backend.nccl) add_nccl(*impl);
  base::log_debug("{}: rank {} of {}, backend {}, device {}", impl->name, rank, impl->world_size,
                  impl->backend, impl->device.str());
  return wrap(std::move(impl));
}

std::shared_ptr<ProcessGroup> make_subgroup(ProcessGroup::Impl& parent, const std::vector<int>& ranks) {
  refuse_if_failed(parent);
  const auto members = checked_members(parent, ranks);
  if (parent.world_size == 1) return make_world_of_one(parent.timeout, parent.device);

  const auto deadline = base::Deadline::in(parent.timeout);
  const int number = parent.subgroups++;
  const auto store = parent.store->under(fmt::format("group{}", number));
  agree_on_members(parent, *store, members, deadline);

  std::shared_ptr<ProcessGroup> group;
  const auto mine = std::find(members.begin(), members.end(), parent.rank);
  if (mine != members.end() && members.size() > 1) {
    std::vector<RankFacts> facts;
    for (const int member : members) facts.push_back(parent.ranks.at(member));
    const int rank = static_cast<int>(mine - members.begin());
    group = make_group(
        fmt::format("group {} of ranks {} of {}", number, base::describe_ranks(members), parent.name),
        choose_backend(parent.backend_of_subgroups, facts), rank, facts, placement_of(rank, facts),
        {parent.store->under(fmt::format("group{}", number), members), parent.world_size}, deadline);
  } else if (mine != members.end()) {
    group = make_world_of_one(parent.timeout, parent.device);
  }
  leave(*store, parent.rank, parent.world_size, deadline);
  if (!group || group->world_size() == 1) store->forget(parent.world_size);
  return group;
}

c10::intrusive_ptr<c10d_backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                   const std::vector<RankFacts>& ranks,
                                                   std::chrono::milliseconds timeout) {
  const auto rails = rails_of(rank, ranks);
  base::log_debug("a group of c10d's backend gloo: {}", network::describe(rails));
  return connected_gloo(store, rank, static_cast<int>(ranks.size()), timeout, rails.addresses);
}

void adopt_backend(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend) {
  const c10d_backend& given = *backend;
  if (const auto* ours = engine_of<c10d_face::ShmEngine>(given)) {
    auto endpoint = ours->endpoint();
    // Returns when all ranks are connected, which the control lane requires.
    Request barrier;
    endpoint->run(barrier);
    endpoint->add_owner();
    use_endpoint(group, std::move(endpoint));
    group.make_c10d = [backend](const auto&) { return backend; };
    group.backend = "shm";
  } else if (gloo::is_gloo(given)) {
    use_backend<gloo::Transport>(group, std::move(backend));
    group.backend = "gloo";
  } else if (nccl::is_nccl(given)) {
    group.make_c10d = [backend](const auto&) { return backend; };
    group.device = c10::kCUDA;
    auto transport = std::make_shared<nccl::Transport>(group, group.device,
                                                       nccl::engine_of(std::move(backend), group.device));
    use_store_control(group, *transport);
    group.transport = std::move(transport);
    group.backend = "nccl";
  } else {
    use_backend<foreign::Transport>(group, std::move(backend));
    group.backend = "gloo";
  }
  // Those of backends that only their user can create use Gloo.
  group.backend_of_subgroups = group.backend == "shm" ? "shm" : "gloo";
}

std::shared_ptr<ProcessGroup::Impl> group_behind(const c10d_backend& backend) {
  const auto* ours = engine_of<c10d_face::GroupEngine>(backend);
  return ours != nullptr ? ours->group() : nullptr;
}

c10::intrusive_ptr<c10d_backend> c10d_of(const std::shared_ptr<ProcessGroup::Impl>& group) {
  comm::refuse_if_failed(*group);
  return group->make_c10d(group);
}

}  // namespace lockstep::groups
