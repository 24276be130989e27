#include "rendezvous/identity.h"

#include <array>
#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/address.h"
#include "base/env.h"
#include "base/error_text.h"

namespace lockstep::rendezvous {

namespace {

constexpr int kMostRanks = 1 << 20;

// The environment variables of one launcher. A name is null if the launcher has no such variable.
struct Convention {
  const char* launcher;
  const char* rank;
  std::array<const char*, 2> world_size;  // the first one that is set is used
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
  const char* num_nodes;
};

constexpr Convention kTorchrun = {"torchrun",         "RANK",       {"WORLD_SIZE", nullptr}, "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"};
constexpr Convention kSlurm = {
    "slurm",        "SLURM_PROCID",        {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_LOCALID", nullptr,
    "SLURM_NODEID", "SLURM_STEP_NUM_NODES"};
constexpr Convention kOpenMpi = {"openmpi",
                                 "OMPI_COMM_WORLD_RANK",
                                 {"OMPI_COMM_WORLD_SIZE", nullptr},
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 nullptr,
                                 nullptr};
constexpr Convention kPmi = {"pmi",   "PMI_RANK", {"PMI_SIZE", nullptr}, "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                             nullptr, nullptr};

class Reader {
 public:
  explicit Reader(Lookup environment) : environment_(std::move(environment)) {}

  std::optional<std::string> text(const char* name) const {
    if (name == nullptr) return std::nullopt;
    auto value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::optional<int> number(const char* name, int low, int high) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto parsed = base::parse_int(*value);
    if (!parsed || *parsed < low || *parsed > high) {
      throw UsageError(base::compose(
          {.what = fmt::format("environment variable {} is invalid", name),
           .evidence = fmt::format("its value is \"{}\", but it must be a whole number from {} to {}", *value,
                                   low, high),
           .hint =
               "start the program with a launcher (lockstep run, torchrun, srun, mpirun), which sets it"}));
    }
    return static_cast<int>(*parsed);
  }

 private:
  Lookup environment_;
};

[[noreturn]] void missing(const char* absent, const char* present) {
  throw UsageError(base::compose(
      {.what = "the environment identifies this process only partly",
       .evidence = fmt::format("{} is set, but {} is not", present, absent),
       .hint = fmt::format(
           "set {} too, or unset {} to run as a world of one; a launcher (lockstep run) sets both", absent,
           present)}));
}

// FNV-1a: all ranks of a job must compute the same value, on every machine and in every build.
uint64_t stable_hash(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 1099511628211ULL;
  return hash;
}

// A port for a job whose launcher sets none: below the range from which the kernel assigns free ports.
uint16_t port_of_job(const std::string& job) {
  return static_cast<uint16_t>(20000 + stable_hash(job) % 12000);
}

bool found(const Reader& reader, const Convention& convention) {
  const auto has = [&](const char* name) { return reader.text(name).has_value(); };
  const bool size = has(convention.world_size[0]) || has(convention.world_size[1]);
  // RANK or WORLD_SIZE alone is a mistake that is worth an error. The size variables of other launchers are
  // also set in the shell of an allocation, where no rank was started.
  if (&convention == &kTorchrun) return has(convention.rank) || size;
  return has(convention.rank) && size;
}

Identity read(const Reader& reader, const Convention& convention) {
  Identity identity{.launcher = convention.launcher};
  const char* size_name =
      reader.text(convention.world_size[0]) ? convention.world_size[0] : convention.world_size[1];
  const auto world_size = reader.number(size_name, 1, kMostRanks);
  const auto rank = reader.number(convention.rank, 0, kMostRanks - 1);
  if (!world_size) missing(convention.world_size[0], convention.rank);
  if (!rank) missing(convention.rank, size_name);
  if (*rank >= *world_size) {
    throw UsageError(
        base::compose({.what = "the rank of this process is too large",
                       .evidence = fmt::format("{}={}, but {}={}: ranks go from 0 to {}", convention.rank,
                                               *rank, size_name, *world_size, *world_size - 1),
                       .hint = "correct one of the two"}));
  }
  identity.rank = *rank;
  identity.world_size = *world_size;
  identity.local_rank = reader.number(convention.local_rank, 0, kMostRanks - 1);
  identity.local_world_size = reader.number(convention.local_world_size, 1, kMostRanks);
  identity.node_rank = reader.number(convention.node_rank, 0, kMostRanks - 1);
  identity.num_nodes = reader.number(convention.num_nodes, 1, kMostRanks);
  // All tasks of a step on one node are on that node.
  if (!identity.local_world_size && identity.num_nodes == 1) identity.local_world_size = identity.world_size;
  if (identity.local_rank && identity.local_world_size &&
      *identity.local_rank >= *identity.local_world_size) {
    throw UsageError(base::compose(
        {.what = "the local rank of this process is too large",
         .evidence = fmt::format("{}={}, but {}={}", convention.local_rank, *identity.local_rank,
                                 convention.local_world_size, *identity.local_world_size),
         .hint = "correct one of the two"}));
  }
  return identity;
}

// If the launcher sets no address, the ranks meet at a port that is derived from this name.
std::string job_name(const Reader& reader, const Convention& convention) {
  std::string name;
  const auto add = [&](const char* variable) {
    if (const auto value = reader.text(variable)) name += fmt::format("{}={};", variable, *value);
  };
  if (&convention == &kTorchrun) add("TORCHELASTIC_RUN_ID");
  if (&convention == &kSlurm) {
    add("SLURM_JOB_ID");
    add("SLURM_STEP_ID");
  }
  if (&convention == &kOpenMpi) {
    add("PMIX_NAMESPACE");
    if (name.empty()) add("OMPI_MCA_ess_base_jobid");
  }
  if (&convention == &kPmi) {
    add("PMI_JOBID");
    add("PMI_PORT");
    // MPICH's hydra does not give its ranks the name of the job, but on one machine they are all children of
    // one proxy.
    if (name.empty()) name = fmt::format("parent={};", ::getppid());
  }
  return name;
}

void find_master(const Reader& reader, const Convention& convention, Identity& identity) {
  const auto addr = reader.text("MASTER_ADDR");
  const auto port = reader.number("MASTER_PORT", 1, 65535);
  if (addr) identity.master_addr = base::without_brackets(*addr);
  if (port) identity.master_port = static_cast<uint16_t>(*port);
  if (identity.world_size == 1) return;

  if (&convention == &kTorchrun) {
    if (!addr) missing("MASTER_ADDR", "WORLD_SIZE");
    if (!port) missing("MASTER_PORT", "WORLD_SIZE");
    return;
  }
  if (!addr && &convention == &kSlurm) {
    for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      if (const auto nodes = reader.text(list); nodes && identity.master_addr.empty()) {
        identity.master_addr = first_slurm_host(*nodes);
      }
    }
  }
  if (!addr && identity.local_world_size == identity.world_size) identity.master_addr = "127.0.0.1";
  if (identity.master_addr.empty()) {
    throw UsageError(base::compose(
        {.what = "the address where the ranks meet is unknown",
         .evidence = fmt::format("{} sets rank {} of {}, but not the address of rank 0's machine",
                                 convention.launcher, identity.rank, identity.world_size),
         .hint =
             "pass MASTER_ADDR (and MASTER_PORT) to all ranks, for example mpirun -x MASTER_ADDR=node0 …"}));
  }
  if (!port) identity.master_port = port_of_job(identity.job);
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const auto end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    const auto stop = node_list.find_first_of(",-]", end + 1);
    host += node_list.substr(end + 1, stop - end - 1);
    // "rack[1-2]-gpu": what follows the brackets belongs to the name.
    const auto close = node_list.find(']', end);
    if (close != std::string::npos) {
      const auto next = node_list.find_first_of(",[", close + 1);
      host += node_list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
    }
  }
  return host;
}

Identity identify(const Lookup& environment, NeedMaster need_master) {
  const Reader reader(environment);
  const Convention* convention = nullptr;
  for (const Convention* candidate : {&kTorchrun, &kSlurm, &kOpenMpi, &kPmi}) {
    if (convention == nullptr && found(reader, *candidate)) convention = candidate;
  }
  if (convention == nullptr) return {.launcher = "none"};
  // mpirun inside a Slurm job starts its own daemons as a Slurm step, whose variables the ranks inherit. They
  // count the daemons, not the ranks.
  if (convention == &kSlurm && found(reader, kOpenMpi) &&
      read(reader, kOpenMpi).world_size != read(reader, kSlurm).world_size) {
    convention = &kOpenMpi;
  }
  Identity identity = read(reader, *convention);
  identity.job = job_name(reader, *convention);
  if (convention == &kTorchrun) {
    identity.agent_hosts_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    identity.attempt = reader.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
  }
  if (need_master == NeedMaster::Yes) find_master(reader, *convention, identity);
  return identity;
}

Identity identify(NeedMaster need_master) { return identify(Lookup(base::env_string), need_master); }

void read_master(Identity& identity) { find_master(Reader(base::env_string), kTorchrun, identity); }

}  // namespace lockstep::rendezvous
