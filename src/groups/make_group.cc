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
#include "comm/diagnose.h"
#include "comm/failure.h"
#include "comm/single.h"
#include "comm/store_control.h"
#include "gloo/make_gloo.h"
#include "gloo/transport.h"
#include "rendezvous/meet.h"
#include "rendezvous/rails.h"
#include "shm/control.h"
#include "shm_c10d/backend.h"

namespace lockstep::groups {

namespace {

using namespace comm;
using namespace rendezvous;
using namespace std::chrono_literals;

constexpr auto kBetweenLooks = 20ms;

// Uses shared memory for the data and the control channel.
void use_endpoint(ProcessGroup::Impl& group, std::shared_ptr<shm::Endpoint> endpoint) {
  attach_control(group, std::make_unique<shm::Control>(endpoint->control_lane()));
  group.make_c10d = [endpoint, made = c10::intrusive_ptr<c10d_backend>()]() mutable {
    if (!made) {
      endpoint->add_owner();
      made = c10::make_intrusive<shm_c10d::Backend>(endpoint);
    }
    return made;
  };
  // The group owns the endpoint's work, not its memory: a call in progress may outlive the group.
  group.transport = {endpoint.get(), [endpoint](comm::Transport*) { endpoint->retire(); }};
}

// Uses a c10d backend for the data, and the store for the control channel.
template <class Transport>
void use_backend(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> backend) {
  auto transport = std::make_shared<Transport>(group, std::move(backend));
  auto control = std::make_unique<StoreControl>(group, [raw = transport.get()] { return raw->calls(); });
  transport->watch_control(*control);
  group.make_c10d = [raw = transport.get()] { return raw->backend(); };
  // A wait that is given up leaves the memory to the backend's threads.
  if (transport->needs_owners()) group.blocking = Returns::AtOnce;
  group.transport = std::move(transport);
  attach_control(group, std::move(control));
}

std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup::Impl> impl) {
  return std::make_shared<ProcessGroup>(std::move(impl));
}

void connect_shm(ProcessGroup::Impl& group, base::Deadline deadline) {
  try {
    auto endpoint = std::make_shared<shm::Endpoint>(group.store->for_backend(deadline), group.rank,
                                                    group.world_size, group.timeout, group.name);
    endpoint->connect();
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

void connect_gloo(ProcessGroup::Impl& group, base::Deadline deadline) {
  const auto rails = rails_of(group.rank, group.ranks);
  base::log_debug("{}: {}", group.name, network::describe(rails));
  try {
    check_rails(*group.store, group.rank, group.ranks, deadline);
    // Gloo connects to one peer after the other, each with its own timeout.
    auto connecting = base::run_aside([store = group.store->for_backend(deadline), rank = group.rank,
                                       world_size = group.world_size, timeout = group.timeout,
                                       addresses = rails.addresses] {
      return connected_gloo(store, rank, world_size, timeout, addresses);
    });
    while (connecting.wait_for(kBetweenLooks) != std::future_status::ready) {
      if (deadline.expired()) throw std::runtime_error("timed out");
      if (is_hopeless(group)) throw std::runtime_error("connecting was given up");
    }
    use_backend<gloo::Transport>(group, connecting.get());
  } catch (...) {
    try {
      throw_diagnosis(group, fmt::format("connecting the ranks (from {})", fmt::join(rails.addresses, ", ")),
                      0);
    } catch (...) {
      throw_failure(group);
    }
  }
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

}  // namespace

std::shared_ptr<ProcessGroup> make_world_of_one(std::chrono::milliseconds timeout) {
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = "world of one";
  impl->backend = "single";
  impl->timeout = timeout;
  impl->ranks = {facts_of_this_process(0, 1)};
  impl->transport = std::make_shared<SingleTransport>();
  attach_control(*impl, std::make_unique<SingleControl>());
  impl->make_c10d = [timeout, made = c10::intrusive_ptr<c10d_backend>()]() mutable {
    if (!made) made = make_c10d_backend("shm", c10::make_intrusive<c10d::HashStore>(), 0, 1, timeout);
    return made;
  };
  return wrap(std::move(impl));
}

std::shared_ptr<ProcessGroup> make_group(std::string name, const std::string& backend, int rank,
                                         std::vector<RankFacts> ranks, const Placement& placement,
                                         OwnStore store, base::Deadline deadline) {
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = std::move(name);
  impl->backend = backend;
  impl->rank = rank;
  impl->world_size = static_cast<int>(ranks.size());
  impl->placement = placement;
  impl->timeout = deadline.budget();
  impl->ranks = std::move(ranks);
  impl->watch.emplace(rank, impl->ranks);
  impl->store = std::move(store.keys);
  impl->store_holders = store.holders;
  (backend == "shm" ? connect_shm : connect_gloo)(*impl, deadline);
  base::log_debug("{}: rank {} of {}, backend {}", impl->name, rank, impl->world_size, backend);
  return wrap(std::move(impl));
}

std::shared_ptr<ProcessGroup> make_subgroup(ProcessGroup::Impl& parent, const std::vector<int>& ranks) {
  refuse_if_failed(parent);
  const auto members = checked_members(parent, ranks);
  if (parent.world_size == 1) return make_world_of_one(parent.timeout);

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
        parent.backend, rank, facts, placement_of(rank, facts),
        {parent.store->under(fmt::format("group{}", number), members), parent.world_size}, deadline);
  } else if (mine != members.end()) {
    group = make_world_of_one(parent.timeout);
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
  if (const auto* ours = dynamic_cast<const shm_c10d::Backend*>(&given)) {
    auto endpoint = ours->endpoint();
    // Returns when all ranks are connected, which the control lane requires.
    Request barrier;
    endpoint->run(barrier);
    endpoint->add_owner();
    use_endpoint(group, std::move(endpoint));
    group.make_c10d = [backend] { return backend; };
    group.backend = "shm";
  } else if (gloo::is_gloo(given)) {
    use_backend<gloo::Transport>(group, std::move(backend));
    group.backend = "gloo";
  } else {
    // Subgroups use Gloo.
    use_backend<foreign::Transport>(group, std::move(backend));
    group.backend = "gloo";
  }
}

c10::intrusive_ptr<c10d_backend> c10d_of(const ProcessGroup::Impl& group) {
  comm::refuse_if_failed(group);
  return group.make_c10d();
}

}  // namespace lockstep::groups
