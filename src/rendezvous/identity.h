// Who this process is, from what its launcher put into the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::rendezvous {

struct Identity {
  std::string launcher;  // "torchrun", "slurm", "openmpi", "pmi", or "none": which convention was found
  int rank = 0;
  int world_size = 1;
  // What the launcher says of the machines; without it, the ranks find out by looking at each other.
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> num_nodes;

  std::string master_addr;
  uint16_t master_port = 0;
  bool agent_hosts_store = false;  // torchrun's agent has the store open already; no rank opens one

  std::string job;  // tells apart jobs that meet at one address; equal on all ranks
  int attempt = 0;  // which start of the job this is, when a launcher starts it again after a failure
};

using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Looks for lockstep run's and torchrun's variables, then Slurm's, Open MPI's, PMI's; with none of them the
// world is one process. Throws UsageError, naming the variable, when they are incomplete or contradict each
// other. Without NeedMaster it does not ask where the ranks meet.
enum class NeedMaster { No, Yes };
Identity identify(const Lookup& environment, NeedMaster need_master);
// The same on this process's environment.
Identity identify(NeedMaster need_master);

// Only where the ranks meet: MASTER_ADDR and MASTER_PORT. For a process that knows its rank already.
void read_master(Identity& identity);

// The first host of a Slurm node list: "node003" of "node[003-010,012],login1".
std::string first_slurm_host(const std::string& node_list);

}  // namespace lockstep::rendezvous
