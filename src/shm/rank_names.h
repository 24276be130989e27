// How errors name the ranks of an endpoint: by their numbers in the group, of which the endpoint may connect
// only a part.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::shm {

struct RankNames {
  // All ranks of a group.
  explicit RankNames(int size) : world_size(size) {}
  // Some ranks of a group of `size` ranks, given by their numbers in it, for another transport.
  RankNames(std::vector<int> ranks, int size, std::string transport)
      : numbers(std::move(ranks)), world_size(size), backend(std::move(transport)) {}

  int of(int rank) const { return numbers.empty() ? rank : numbers.at(rank); }
  std::vector<int> of(std::vector<int> ranks) const {
    for (int& rank : ranks) rank = of(rank);
    return ranks;
  }
  // Whether the endpoint's calls are parts of the group's calls, so that their numbers say nothing to the
  // user.
  bool of_parts() const { return !numbers.empty(); }

  std::vector<int> numbers;  // empty: the endpoint's own
  int world_size;
  std::string backend = "shm";
};

}  // namespace lockstep::shm
