#include "hybrid/topology.h"

#include <algorithm>
#include <string>

namespace lockstep::hybrid {

Topology::Topology(int own_rank, const std::vector<rendezvous::RankFacts>& ranks) : rank(own_rank) {
  std::vector<std::string> names;
  for (int other = 0; other < static_cast<int>(ranks.size()); ++other) {
    const auto& name = ranks[other].machine;
    const auto found = std::find(names.begin(), names.end(), name) - names.begin();
    if (found == static_cast<std::ptrdiff_t>(names.size())) {
      names.push_back(name);
      ranks_of.emplace_back();
    }
    machine_of.push_back(static_cast<int>(found));
    local_of.push_back(static_cast<int>(ranks_of[found].size()));
    ranks_of[found].push_back(other);
  }
  machine = machine_of.at(rank);
  local = local_of.at(rank);
}

std::vector<int> Topology::leaders() const {
  std::vector<int> ranks;
  for (const auto& each : ranks_of) ranks.push_back(each.front());
  return ranks;
}

int64_t Topology::messages_in_a_chunk() const {
  size_t most = 1;
  for (const auto& ranks : ranks_of) most = std::max(most, ranks.size());
  // Between two machines, a share is sent as a whole.
  return static_cast<int64_t>(most) * (machines() > 2 ? machines() : 1);
}

}  // namespace lockstep::hybrid
