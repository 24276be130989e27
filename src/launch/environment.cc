#include "launch/environment.h"

#include <algorithm>
#include <string_view>
#include <unistd.h>
#include <unordered_set>

namespace lockstep::launch {

Variables variables_of(const Place& place) {
  const auto text = [](int number) { return std::to_string(number); };
  return {
      {"RANK", text(place.rank)},
      {"LOCAL_RANK", text(place.local_rank)},
      {"WORLD_SIZE", text(place.world_size)},
      {"LOCAL_WORLD_SIZE", text(place.local_world_size)},
      {"GROUP_RANK", text(place.node_rank)},
      {"GROUP_WORLD_SIZE", text(place.nnodes)},
      {"NODE_RANK", text(place.node_rank)},
      {"ROLE_RANK", text(place.rank)},
      {"ROLE_WORLD_SIZE", text(place.world_size)},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", text(place.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", text(place.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", text(place.max_restarts)},
      {"TORCHELASTIC_RUN_ID", place.run_id},
      // The store is in rank 0's process, not in the agent.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
}

std::vector<std::string> merge(const std::vector<std::string>& inherited, const Variables& variables) {
  std::unordered_set<std::string_view> replaced;
  for (const auto& [name, value] : variables) replaced.insert(name);
  std::vector<std::string> merged;
  merged.reserve(inherited.size() + variables.size());
  for (const auto& entry : inherited) {
    if (!replaced.contains(std::string_view(entry).substr(0, entry.find('=')))) merged.push_back(entry);
  }
  for (const auto& [name, value] : variables) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

}  // namespace lockstep::launch
