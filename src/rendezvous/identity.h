// The identity of this process, from the environment variables that its launcher has set.
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
  // The launcher's information about the machines; what is missing is derived from the facts that the ranks
  // exchange.
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> num_nodes;

  std::string master_addr;
  uint16_t master_port = 0;
  bool agent_hosts_store = false;  // torchrun's agent hosts the store; no rank opens one

  std::string job;  // distinguishes jobs that meet at one address; the same on all ranks
  int attempt = 0;  // how often the launcher has restarted the job after a failure
};

using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Reads the variables of lockstep run and torchrun, then of Slurm, Open MPI and PMI; without any of them, the
// world size is 1. Throws UsageError, with the name of the variable, if they are incomplete or contradict
// each other. NeedMaster::No: does not read where the ranks meet.
enum class NeedMaster { No, Yes };
Identity identify(const Lookup& environment, NeedMaster need_master);
// The same with the environment of this process.
Identity identify(NeedMaster need_master);

// Reads only where the ranks meet: MASTER_ADDR and MASTER_PORT. For a process that already knows its rank.
void read_master(Identity& identity);

// The first host of a Slurm node list: "node003" of "node[003-010,012],login1".
std::string first_slurm_host(const std::string& node_list);

}  // namespace lockstep::rendezvous
