#include "nccl/devices.h"

#include <fmt/format.h>
#include <map>
#include <utility>

namespace lockstep::nccl {

namespace {

using rendezvous::RankFacts;

constexpr const char* kOneRankPerDevice =
    "start at most one rank for each device (lockstep run --nproc-per-node gpu)";

bool see_the_same(const RankFacts& a, const RankFacts& b) {
  return a.machine == b.machine && a.cuda_devices == b.cuda_devices;
}

}  // namespace

std::optional<TooFew> assign_devices(std::vector<RankFacts>& ranks) {
  if (ranks.front().cuda_device >= 0) return std::nullopt;
  std::vector<size_t> chosen;
  std::map<std::pair<std::string, std::string>, const RankFacts*> taken;  // by machine and device
  for (const auto& rank : ranks) {
    size_t before = 0, all = 0;
    for (const auto& other : ranks) {
      if (!see_the_same(rank, other)) continue;
      ++all;
      if (other.rank < rank.rank) ++before;
    }
    const auto& devices = rank.cuda_devices;
    if (devices.empty()) {
      return TooFew{fmt::format("{} sees no CUDA device", rank.describe()),
                    "look at nvidia-smi and at CUDA_VISIBLE_DEVICES on that machine"};
    }
    if (all > devices.size()) {
      return TooFew{fmt::format("{} ranks on host {} share {} CUDA {}", all, rank.host, devices.size(),
                                devices.size() == 1 ? "device" : "devices"),
                    kOneRankPerDevice};
    }
    const auto [found, is_free] = taken.emplace(std::pair(rank.machine, devices[before]), &rank);
    if (!is_free) {
      return TooFew{fmt::format("{} and {} would use the same CUDA device ({})", found->second->describe(),
                                rank.describe(), devices[before]),
                    "give all ranks of a machine the same CUDA_VISIBLE_DEVICES, or each its own device"};
    }
    chosen.push_back(before);
  }
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i].cuda_device = static_cast<int>(chosen[i]);
  return std::nullopt;
}

}  // namespace lockstep::nccl
