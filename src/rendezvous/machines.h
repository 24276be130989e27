// What the ranks know of each other's processes and machines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"

namespace lockstep::rendezvous {

// What one rank tells the others when it arrives.
struct RankFacts {
  int rank = 0;
  int world_size = 1;
  std::string host;     // its name, for people
  std::string machine;  // base::machine_identity()
  std::string pid_namespace;
  int pid = 0;
  std::string cpus;       // the CPUs it may use, before tuning
  std::string address;    // its address on the way to the meeting point
  std::string backend;    // the one it was asked to use
  std::string no_shm;     // why it cannot share memory with other processes; empty: it can
  uint64_t own_seed = 0;  // of its random generator, if the program has not seeded it; 0: it has

  std::string describe() const;  // "rank 1 (pid 4711, host node0)"
};

RankFacts facts_of_this_process(int rank, int world_size);
std::string encode_facts(const RankFacts& facts);
// Throws MismatchError when the text is of another version or not ours at all.
RankFacts decode_facts(const std::string& text);

// Where a rank stands among the machines of a group.
struct Placement {
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
};
// Machines are numbered in the order of their lowest rank.
Placement placement_of(int rank, const std::vector<RankFacts>& ranks);

// Whether a process of this machine is alive and does not run: stopped by a signal or a debugger.
bool is_stopped(int pid);

// Watches the processes of this machine through descriptors, which, unlike numbers, never come to mean
// another process.
class PeerWatch {
 public:
  explicit PeerWatch(int rank, const std::vector<RankFacts>& ranks);

  // The ranks of this machine that have ended, after giving a death that is just happening a moment to be
  // seen.
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
