// What the ranks know about each other's processes and machines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "network/offer.h"

namespace lockstep::rendezvous {

// What a rank sends to the others when it arrives.
struct RankFacts {
  int rank = 0;
  int world_size = 1;
  std::string host;      // the name of the machine, for messages
  std::string machine;   // base::machine_identity()
  std::string loopback;  // base::network_identity()
  std::string kernel;    // base::kernel_identity()
  std::string pid_namespace;
  int pid = 0;
  std::string cpus;                       // the CPUs it may use, before tuning
  network::Offer network;                 // its addresses, for ranks on other machines
  std::string backend;                    // the one that was requested
  std::string link;                       // the engine between machines that was requested
  std::string no_shm;                     // why it cannot share memory with other processes; empty: it can
  uint64_t own_seed = 0;                  // of its random generator; 0 if the program has set it
  std::vector<std::string> cuda_devices;  // the identities of those that it sees, by index
  // Its own one; -1: none. Not sent: the ranks derive it from what all of them see (nccl/devices.h).
  int cuda_device = -1;

  std::string describe() const;  // "rank 1 (pid 4711, host node0)"
};

RankFacts facts_of_this_process(int rank, int world_size);
std::string encode_facts(const RankFacts& facts);
// Throws MismatchError if the text is from another version or in another format.
RankFacts decode_facts(const std::string& text);

// The position of a rank among the machines of a group.
struct Placement {
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
};
// Machines are numbered in the order of their lowest rank.
Placement placement_of(int rank, const std::vector<RankFacts>& ranks);

// Whether the ranks that share this rank's kernel, on this machine and others, are more than their CPUs.
bool is_crowded(int rank, const std::vector<RankFacts>& ranks);

// Whether a process on this machine is alive but not running: stopped by a signal or a debugger.
bool is_stopped(int pid);

// Watches the other ranks' processes on this machine through pidfds, which, unlike pids, never refer to
// another process.
class PeerWatch {
 public:
  explicit PeerWatch(int rank, const std::vector<RankFacts>& ranks);

  // The ranks on this machine that have ended. Waits up to `moment` for the first one.
  std::vector<int> gone(std::chrono::milliseconds moment) const;
  std::vector<int> stopped() const;

 private:
  struct Watched {
    int rank;
    int pid;
    base::Fd process;
  };
  std::vector<Watched> watched_;
};

}  // namespace lockstep::rendezvous
