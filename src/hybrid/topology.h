// Which ranks of a group share a machine.
#pragma once

#include <cstdint>
#include <vector>

#include "rendezvous/machines.h"

namespace lockstep::hybrid {

struct Topology {
  Topology(int rank, const std::vector<rendezvous::RankFacts>& ranks);

  int machines() const { return static_cast<int>(ranks_of.size()); }
  const std::vector<int>& local_ranks() const { return ranks_of[machine]; }
  int local_size() const { return static_cast<int>(local_ranks().size()); }
  bool is_local(int other) const { return machine_of[other] == machine; }
  // The first rank of a machine speaks for it.
  bool is_leader() const { return local == 0; }
  int leader_of(int m) const { return ranks_of[m].front(); }
  std::vector<int> leaders() const;
  // The rank on machine `m` through which the machine exchanges bytes with `other`: other local ranks of the
  // other machine have other partners, so that all ranks feed the link. It is `other` itself on its own
  // machine.
  int partner_on(int m, int other) const {
    const auto& there = ranks_of[m];
    return there[local_of[other] % there.size()];
  }

  // The number of messages into which a chunk is divided on its way to one other machine.
  int64_t messages_in_a_chunk() const;

  int rank;
  // The ranks of each machine, ascending; machines in the order of their lowest rank.
  std::vector<std::vector<int>> ranks_of;
  std::vector<int> machine_of;  // by rank
  std::vector<int> local_of;    // by rank: its index among the ranks of its machine
  int machine;                  // of this rank
  int local;                    // index of this rank
};

}  // namespace lockstep::hybrid
