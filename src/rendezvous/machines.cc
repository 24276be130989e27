#include "rendezvous/machines.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <set>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/error.h>

#include "base/error_text.h"
#include "base/host.h"
#include "tuning/topology.h"

namespace lockstep::rendezvous {

namespace {

constexpr int kFactsVersion = 7;

std::string pid_namespace() {
  std::error_code no_proc;
  return std::filesystem::read_symlink("/proc/self/ns/pid", no_proc).string();
}

}  // namespace

std::string RankFacts::describe() const { return fmt::format("rank {} (pid {}, host {})", rank, pid, host); }

RankFacts facts_of_this_process(int rank, int world_size) {
  return {.rank = rank,
          .world_size = world_size,
          .host = base::host_name(),
          .machine = base::machine_identity(),
          .loopback = base::network_identity(),
          .kernel = base::kernel_identity(),
          .pid_namespace = pid_namespace(),
          .pid = ::getpid(),
          .cpus = tuning::format_cpu_list(tuning::affinity_of())};
}

std::string encode_facts(const RankFacts& facts) {
  return nlohmann::json{{"lockstep", kFactsVersion},
                        {"rank", facts.rank},
                        {"world_size", facts.world_size},
                        {"host", facts.host},
                        {"machine", facts.machine},
                        {"loopback", facts.loopback},
                        {"kernel", facts.kernel},
                        {"pid_namespace", facts.pid_namespace},
                        {"pid", facts.pid},
                        {"cpus", facts.cpus},
                        {"network", network::to_json(facts.network)},
                        {"backend", facts.backend},
                        {"link", facts.link},
                        {"no_shm", facts.no_shm},
                        {"own_seed", facts.own_seed},
                        {"cuda_devices", facts.cuda_devices}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts decode_facts(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("lockstep") == kFactsVersion) {
      // One by one: GCC 12 destroys members of an aggregate twice if a later initialiser throws.
      RankFacts facts;
      facts.rank = json.at("rank");
      facts.world_size = json.at("world_size");
      facts.host = json.at("host");
      facts.machine = json.at("machine");
      facts.loopback = json.at("loopback");
      facts.kernel = json.at("kernel");
      facts.pid_namespace = json.at("pid_namespace");
      facts.pid = json.at("pid");
      facts.cpus = json.at("cpus");
      facts.network = network::offer_from_json(json.at("network"));
      facts.backend = json.at("backend");
      facts.link = json.at("link");
      facts.no_shm = json.at("no_shm");
      facts.own_seed = json.at("own_seed");
      facts.cuda_devices = json.at("cuda_devices");
      return facts;
    }
  } catch (const nlohmann::json::exception&) {
    // Reported below, like any other version.
  }
  throw MismatchError(base::compose({.what = "a rank of this job uses another version of lockstep",
                                     .evidence = fmt::format("it sent {}", text.substr(0, 200)),
                                     .hint = "start the same build of the program on every machine"}));
}

Placement placement_of(int rank, const std::vector<RankFacts>& ranks) {
  Placement placement{.local_rank = 0, .local_world_size = 0, .node_rank = 0, .num_nodes = 0};
  std::vector<std::string> machines;
  for (int other = 0; other < static_cast<int>(ranks.size()); ++other) {
    const auto& machine = ranks[other].machine;
    if (std::find(machines.begin(), machines.end(), machine) == machines.end()) machines.push_back(machine);
    if (machine != ranks[rank].machine) continue;
    ++placement.local_world_size;
    if (other < rank) ++placement.local_rank;
  }
  placement.num_nodes = static_cast<int>(machines.size());
  placement.node_rank =
      static_cast<int>(std::find(machines.begin(), machines.end(), ranks[rank].machine) - machines.begin());
  return placement;
}

bool is_crowded(int rank, const std::vector<RankFacts>& ranks) {
  size_t neighbours = 0;
  std::set<int> cpus;
  for (const auto& other : ranks) {
    if (other.kernel != ranks[rank].kernel) continue;
    ++neighbours;
    for (const int cpu : tuning::parse_cpu_list(other.cpus)) cpus.insert(cpu);
  }
  return neighbours > cpus.size();
}

bool is_stopped(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The name before the state may contain anything, including parentheses and spaces.
  const auto name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'T' || state == 't';
}

PeerWatch::PeerWatch(int rank, const std::vector<RankFacts>& ranks) {
  for (int other = 0; other < static_cast<int>(ranks.size()); ++other) {
    if (other == rank || ranks[other].machine != ranks[rank].machine ||
        ranks[other].pid_namespace != ranks[rank].pid_namespace || ranks[other].pid == ranks[rank].pid) {
      continue;
    }
    // -1 if the kernel is older than 5.3 or the process has already ended: such a process is not watched.
    base::Fd process(static_cast<int>(::syscall(SYS_pidfd_open, ranks[other].pid, 0)));
    if (process) watched_.push_back({other, ranks[other].pid, std::move(process)});
  }
}

std::vector<int> PeerWatch::stopped() const {
  std::vector<int> ranks;
  for (const auto& peer : watched_) {
    if (is_stopped(peer.pid)) ranks.push_back(peer.rank);
  }
  return ranks;
}

std::vector<int> PeerWatch::gone(std::chrono::milliseconds moment) const {
  std::vector<pollfd> polled;
  for (const auto& peer : watched_) polled.push_back({peer.process.get(), POLLIN, 0});
  std::vector<int> ranks;
  if (polled.empty() || ::poll(polled.data(), polled.size(), static_cast<int>(moment.count())) <= 0)
    return ranks;
  for (size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents != 0) ranks.push_back(watched_[i].rank);
  }
  return ranks;
}

}  // namespace lockstep::rendezvous
