// init_process_group and the default group.
#include <cstdio>
#include <fmt/format.h>
#include <map>
#include <mutex>

#include <lockstep/process_group.h>

#include "base/env.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/note.h"
#include "base/uncaught.h"
#include "groups/make_group.h"
#include "groups/seed.h"
#include "groups/tune.h"
#include "nccl/engine.h"
#include "network/offer.h"
#include "rendezvous/identity.h"
#include "rendezvous/meet.h"
#include "rendezvous/open_store.h"

namespace lockstep {

namespace {

using namespace rendezvous;
using namespace groups;

struct Default {
  std::mutex mutex;
  std::shared_ptr<ProcessGroup> group;
  std::map<std::string, int> meetings;  // how many groups this process has made at each meeting point
};

// Never destroyed: at exit, the other ranks may still be communicating, and the destructor of a static object
// must not wait.
Default& the_default() {
  static auto* const instance = new Default;
  return *instance;
}

// The identity of this process: from the options if they contain it, otherwise from the environment.
Identity identity_for(const InitOptions& options) {
  if ((options.rank < 0) != (options.world_size < 0)) {
    throw UsageError(base::compose(
        {.what = "InitOptions sets only one of rank and world_size",
         .evidence = fmt::format("rank is {}, world_size is {}", options.rank, options.world_size),
         .hint = "set both, or leave both at -1"}));
  }
  if (options.rank < 0) return identify(options.init_method == "env://" ? NeedMaster::Yes : NeedMaster::No);
  if (options.rank >= options.world_size) {
    throw UsageError(base::compose(
        {.what = "the rank of this process is too large",
         .evidence = fmt::format("rank is {}, world_size is {}", options.rank, options.world_size),
         .hint = "ranks go from 0 to world_size - 1"}));
  }
  Identity identity{.launcher = "InitOptions", .rank = options.rank, .world_size = options.world_size};
  if (options.init_method == "env://") read_master(identity);
  return identity;
}

void check_options(const InitOptions& options) {
  if (options.timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(base::compose({.what = "InitOptions::timeout is invalid",
                                    .evidence = fmt::format("it is {} ms", options.timeout.count()),
                                    .hint = "set a positive time: every wait needs a deadline"}));
  }
}

// The launcher's information about the machines takes precedence; the rest is derived from the ranks' facts.
Placement placement_by(const Identity& identity, const std::vector<RankFacts>& ranks) {
  auto placement = placement_of(identity.rank, ranks);
  if (identity.local_rank) placement.local_rank = *identity.local_rank;
  if (identity.local_world_size) placement.local_world_size = *identity.local_world_size;
  if (identity.node_rank) placement.node_rank = *identity.node_rank;
  if (identity.num_nodes) placement.num_nodes = *identity.num_nodes;
  return placement;
}

std::shared_ptr<ProcessGroup> make_default_group(const InitOptions& options, Default& state) {
  check_options(options);
  const auto wanted = wanted_backend(options.backend);
  const auto identity = identity_for(options);
  base::set_log_rank(identity.rank, identity.world_size);
  if (base::env_flag("LOCKSTEP_RUN", false)) {
    // The launcher reads this output through a pipe. With line buffering, each line arrives immediately and
    // survives a crash.
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  }
  auto mine = facts_of_this_process(identity.rank, identity.world_size);
  if (may_use_nccl(wanted)) mine.cuda_devices = nccl::visible_devices();
  if (identity.world_size == 1) {
    std::vector<RankFacts> ranks{mine};
    choose_backend(wanted, ranks);
    if (options.tune) tune_process(0, ranks);
    return make_world_of_one(options.timeout, device_of(ranks.front()));
  }

  const auto deadline = base::Deadline::in(options.timeout);
  const auto point = meeting_point(options.init_method, identity);
  const auto root = open_store(point, identity, deadline);
  const auto store =
      root->under(fmt::format("{}{}/{}", identity.job, identity.attempt, state.meetings[point.describe()]++));
  if (!point.one_machine) mine.network = network::offer_of_this_process(point.host);
  mine.backend = wanted;
  mine.link = wanted_link();
  mine.own_seed = unseeded_generator();
  if (may_share_memory(wanted)) mine.no_shm = why_no_shm();
  auto ranks = meet(*store, mine, deadline);
  const auto backend = choose_backend(wanted, ranks);
  if (options.tune) tune_process(identity.rank, ranks);
  share_seed(ranks);
  auto group = make_group("the default group", backend, identity.rank, ranks, placement_by(identity, ranks),
                          {store, identity.world_size}, deadline);
  leave(*store, identity.rank, identity.world_size, deadline);
  return group;
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(InitOptions options) {
  base::report_uncaught_errors();
  auto& state = the_default();
  const std::lock_guard lock(state.mutex);
  if (state.group) {
    throw UsageError(base::compose({.what = "the default process group already exists",
                                    .evidence = "init_process_group was called twice",
                                    .hint = "use default_group(), or call destroy_process_group() first"}));
  }
  try {
    state.group = make_default_group(options, state);
    if (const auto device = state.group->device(); !device.is_cpu()) nccl::use_device(device);
  } catch (const Error& error) {
    base::write_note({std::string(error.kind()), error.what(), error.culprits()});
    throw;
  }
  return state.group;
}

std::shared_ptr<ProcessGroup> default_group() {
  auto& state = the_default();
  const std::lock_guard lock(state.mutex);
  if (!state.group) {
    base::report_uncaught_errors();
    throw UsageError(base::compose({.what = "there is no default process group",
                                    .evidence = "init_process_group has not been called in this process",
                                    .hint = "call lockstep::init_process_group() first"}));
  }
  return state.group;
}

void destroy_process_group() {
  auto& state = the_default();
  const std::lock_guard lock(state.mutex);
  state.group.reset();
}

int64_t get(std::string_view what) {
  const auto group = default_group();
  if (what == "ws") return group->world_size();
  if (what == "rank" || what == "grank") return group->rank();
  if (what == "lrank") return group->local_rank();
  throw UsageError(base::compose({.what = fmt::format("get(\"{}\") is not defined", what),
                                  .hint = "use \"ws\", \"rank\", \"grank\" or \"lrank\""}));
}

}  // namespace lockstep
