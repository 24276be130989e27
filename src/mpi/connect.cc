#include "mpi/connect.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/log.h"
#include "comm/diagnose.h"
#include "mpi/load.h"
#include "rendezvous/meet.h"
#include "store/client.h"

namespace lockstep::mpi {

namespace {

using namespace std::chrono_literals;
using Stage = Engine::Stage;

constexpr auto kBetweenLooks = 2ms;
// For the other ranks to learn what is wrong, before rank 0 closes the store.
constexpr auto kLeaveTime = 5s;
// How long a process that ends waits for the others to finalise MPI after an error.
constexpr auto kTroubleTime = 3s;

constexpr const char* kNoModule =
    "install an MPI with its compiler wrappers (apt-get install libopenmpi-dev) and build lockstep again "
    "with "
    "-DLOCKSTEP_MPI=ON, or unset LOCKSTEP_LINK to use Gloo";
constexpr const char* kNoJob =
    "start all ranks as one MPI job (mpirun -np N …, or srun --mpi=pmix …), or unset LOCKSTEP_LINK to use "
    "Gloo";
constexpr const char* kOwnMpi =
    "a program that uses MPI itself must call MPI_Init_thread, with MPI_THREAD_MULTIPLE, before it joins the "
    "group, and MPI_Finalize after it has destroyed it; others need not call MPI at all";

// What a rank says about itself, and what the ranks make of it.
struct Standing {
  std::string fault = {};
  int world_rank = 0;
  int world_size = 0;
  uint64_t number = 0;  // random: rank 0's becomes the party's
};

std::string encode(const Standing& mine) {
  return nlohmann::json{{"fault", mine.fault},
                        {"world_rank", mine.world_rank},
                        {"world_size", mine.world_size},
                        {"number", mine.number}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<Standing> exchange(rendezvous::KeyStore& store, const ProcessGroup::Impl& group,
                               const Standing& mine, base::Deadline deadline) {
  std::vector<Standing> all;
  for (const auto& said : rendezvous::exchange(store, group.rank, group.world_size, encode(mine), deadline)) {
    const auto json = nlohmann::json::parse(said);
    // One by one: GCC 12 destroys members of an aggregate twice if a later initialiser throws.
    auto& standing = all.emplace_back();
    standing.fault = json.at("fault");
    standing.world_rank = json.at("world_rank");
    standing.world_size = json.at("world_size");
    standing.number = json.at("number");
  }
  return all;
}

[[noreturn]] void refuse(rendezvous::KeyStore& store, const ProcessGroup::Impl& group,
                         base::Deadline deadline, const std::string& evidence, const char* hint) {
  rendezvous::leave(
      store, group.rank, group.world_size,
      base::Deadline::in(std::min<std::chrono::milliseconds>(kLeaveTime, deadline.remaining())));
  throw UsageError(base::compose(
      {.what = "MPI cannot connect the ranks",
       .where = fmt::format("rank {}/{}, {}, LOCKSTEP_LINK=mpi", group.rank, group.world_size, group.name),
       .evidence = evidence,
       .hint = hint}));
}

// The first rank with a fault decides, so that all ranks throw the same error.
void check_faults(rendezvous::KeyStore& store, const ProcessGroup::Impl& group, base::Deadline deadline,
                  const std::vector<Standing>& all, const char* hint) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].fault.empty()) continue;
    refuse(store, group, deadline, fmt::format("{}: {}", group.ranks[rank].describe(), all[rank].fault),
           hint);
  }
}

// Why these are not processes of one MPI job; empty if they are.
std::string obstacle(const ProcessGroup::Impl& group, const std::vector<Standing>& all) {
  std::vector<int> rank_of(all.front().world_size, -1);
  for (int rank = 0; rank < group.world_size; ++rank) {
    const auto& [fault, world_rank, world_size, number] = all[rank];
    const auto name = group.ranks[rank].describe();
    if (world_size == 1)
      return fmt::format("{} was not started by an MPI launcher: there is no other process in its MPI job",
                         name);
    if (world_size != all.front().world_size) {
      return fmt::format("the MPI job of {} has {} processes, that of {} has {}", group.ranks[0].describe(),
                         all.front().world_size, name, world_size);
    }
    if (const int other = std::exchange(rank_of.at(world_rank), rank); other >= 0) {
      return fmt::format("{} and {} are in different MPI jobs: both are rank {} of {}",
                         group.ranks[other].describe(), name, world_rank, world_size);
    }
  }
  return {};
}

// Why the communicator cannot be created, for which MPI needs all processes of the job; empty if it can.
std::string incompleteness(const ProcessGroup::Impl& group, const std::vector<Standing>& all) {
  const int size = all.front().world_size;
  if (size == group.world_size) return {};
  return fmt::format("the MPI job has {} processes, but {} ranks are in the first group that uses MPI", size,
                     group.world_size);
}

// Blocks until the engine has reached the stage. Throws std::runtime_error if it will not.
void reach(Engine& engine, Stage stage, const ProcessGroup::Impl& group, base::Deadline deadline) {
  engine.advance_to(stage);
  while (engine.stage() < stage) {
    if (deadline.expired()) throw std::runtime_error("timed out: another rank does not initialise MPI");
    if (comm::is_hopeless(group)) throw std::runtime_error("initialising MPI was given up");
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// MPI's launchers call a process failed that ends without having finalised MPI. A process that ends with
// another status than 0 is one: it does not wait for the others.
void finalise_at_exit() {
  static const pid_t process = ::getpid();
  const auto finalise = [](int status, void*) {
    if (status != 0 || ::getpid() != process) return;
    // Before the wait: ranks that still need this one can name it.
    store::Client::say_goodbye();
    auto& engine = *load().engine;
    try {
      engine.advance_to(Stage::Closed);
      for (const auto patience = base::Deadline::in(kTroubleTime); engine.stage() != Stage::Closed;) {
        if (engine.in_trouble() && patience.expired()) return;
        std::this_thread::sleep_for(kBetweenLooks);
      }
    } catch (const std::exception& error) {
      base::log_debug("MPI has not been finalised: {}", error.what());
    }
  };
  static std::once_flag once;
  std::call_once(once, [&] { ::on_exit(finalise, nullptr); });
}

uint64_t random_number() {
  std::random_device device;
  return (uint64_t{device()} << 32) + device();
}

}  // namespace

std::shared_ptr<comm::Link> connect(ProcessGroup::Impl& group, base::Deadline deadline) {
  const auto store = group.store->under("mpi");
  const auto loading = store->under("module"), joining = store->under("job");

  // A rank without the module would make the others wait in MPI_Init.
  const auto& [engine, no_engine] = load();
  check_faults(*loading, group, deadline, exchange(*loading, group, {.fault = no_engine}, deadline),
               kNoModule);

  Standing mine{.number = random_number()};
  bool open = false;
  try {
    reach(*engine, Stage::Initialised, group, deadline);
    open = engine->stage() == Stage::Open;
    mine.world_rank = engine->world().rank;
    mine.world_size = engine->world().size;
    finalise_at_exit();
  } catch (const std::runtime_error& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr || deadline.expired() || comm::is_hopeless(group))
      throw;
    mine.fault = error.what();
  }
  const auto all = exchange(*joining, group, mine, deadline);
  check_faults(*joining, group, deadline, all, kOwnMpi);
  if (const auto why = obstacle(group, all); !why.empty()) refuse(*joining, group, deadline, why, kNoJob);
  if (const auto why = incompleteness(group, all); !open && !why.empty()) {
    refuse(*joining, group, deadline, why, "let all processes of the MPI job join the default group");
  }
  reach(*engine, Stage::Open, group, deadline);

  Party party{.id = all.front().number, .rank = group.rank, .timeout = group.timeout};
  for (const auto& each : all) party.world_ranks.push_back(each.world_rank);
  party.has_lost_rank = [keys = group.store] { return !keys->ended(store::Ending::Lost).empty(); };
  base::log_debug("{}: MPI between the machines, rank {} of {} in MPI_COMM_WORLD: {}", group.name,
                  mine.world_rank, mine.world_size, engine->library());
  return engine->make_link(std::move(party));
}

}  // namespace lockstep::mpi
