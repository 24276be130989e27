// Threads, CPU affinity and heap: plans are made for machines that are described by trees of /sys and /proc
// files; binding, the heap and the environment are tested on this process.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <malloc.h>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <lockstep/error.h>

#include "tuning/blas.h"
#include "tuning/cgroup.h"
#include "tuning/plan.h"
#include "tuning/topology.h"

namespace lockstep::tuning {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

namespace fs = std::filesystem;
using Cpus = std::vector<int>;

// Sets or (nullopt) unsets a variable, and restores its previous value.
class ScopedEnv {
 public:
  ScopedEnv(std::string name, std::optional<std::string> value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    set(value);
  }
  ~ScopedEnv() { set(before_); }
  ScopedEnv(const ScopedEnv&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    value ? ::setenv(name_.c_str(), value->c_str(), 1) : ::unsetenv(name_.c_str());
  }
  std::string name_;
  std::optional<std::string> before_;
};

// A root directory with generated files.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (fs::temp_directory_path() / "lockstep-tuning-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;

  const fs::path& path() const { return path_; }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text << "\n";
  }
  void cpu(int id, int package, int core_id, const std::string& siblings) {
    const auto folder = fmt::format("sys/devices/system/cpu/cpu{}/topology/", id);
    write(folder + "physical_package_id", std::to_string(package));
    write(folder + "core_id", std::to_string(core_id));
    write(folder + "thread_siblings_list", siblings);
  }
  void node(int id, const std::string& cpus) {
    write(fmt::format("sys/devices/system/node/node{}/cpulist", id), cpus);
  }

 private:
  fs::path path_;
};

Cpus range(int first, int last) {
  Cpus cpus;
  for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  return cpus;
}

// Two sockets of `per_socket` cores, one NUMA node each. With SMT, the second CPUs of all cores follow all
// first ones, as Linux numbers them.
std::unique_ptr<FakeRoot> two_sockets(int per_socket, bool smt) {
  auto root = std::make_unique<FakeRoot>();
  const int cores = 2 * per_socket;
  for (int core = 0; core < cores; ++core) {
    const int package = core / per_socket;
    const auto siblings = smt ? fmt::format("{},{}", core, core + cores) : std::to_string(core);
    root->cpu(core, package, core % per_socket, siblings);
    if (smt) root->cpu(core + cores, package, core % per_socket, siblings);
  }
  for (int node = 0; node < 2; ++node) {
    auto cpus = fmt::format("{}-{}", node * per_socket, (node + 1) * per_socket - 1);
    if (smt) cpus += fmt::format(",{}-{}", cores + node * per_socket, cores + (node + 1) * per_socket - 1);
    root->node(node, cpus);
  }
  return root;
}

Topology flat(int cores) {
  Topology topology;
  for (int cpu = 0; cpu < cores; ++cpu) topology.cpus.push_back({.id = cpu, .core = cpu});
  return topology;
}

// Removes variables that influence plans from the environment of the tests.
class TuningPlan : public ::testing::Test {
 private:
  ScopedEnv threads_{"OMP_NUM_THREADS", std::nullopt};
  ScopedEnv bind_{"OMP_PROC_BIND", std::nullopt};
  ScopedEnv places_{"OMP_PLACES", std::nullopt};
  ScopedEnv gomp_{"GOMP_CPU_AFFINITY", std::nullopt};
  ScopedEnv kmp_{"KMP_AFFINITY", std::nullopt};
  ScopedEnv policy_{"OMP_WAIT_POLICY", std::nullopt};
  ScopedEnv spin_{"GOMP_SPINCOUNT", std::nullopt};
  ScopedEnv timeout_{"OPENBLAS_THREAD_TIMEOUT", std::nullopt};
  ScopedEnv mmap_{"MALLOC_MMAP_MAX_", std::nullopt};
  ScopedEnv trim_{"MALLOC_TRIM_THRESHOLD_", std::nullopt};
  ScopedEnv threshold_{"MALLOC_MMAP_THRESHOLD_", std::nullopt};
  ScopedEnv tunables_{"GLIBC_TUNABLES", std::nullopt};
};

// ---- CPU lists

TEST(TuningCpuList, ReadsAndWritesTheKernelsForm) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(format_cpu_list({5, 4}), "4-5");
  EXPECT_EQ(parse_cpu_list(""), Cpus{});
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(parse_cpu_list("7\n"), Cpus{7});
}

TEST(TuningCpuList, StopsAtInvalidText) {
  EXPECT_EQ(parse_cpu_list("1,x"), Cpus{1});
  EXPECT_EQ(parse_cpu_list("1-"), Cpus{});
  EXPECT_EQ(parse_cpu_list("none"), Cpus{});
}

// ---- Topology

TEST(TuningTopology, TwoSocketsWithSmt) {
  const auto root = two_sockets(4, true);
  const auto topology = read_topology(range(0, 15), root->path());
  EXPECT_EQ(topology.cpus.size(), 16u);
  EXPECT_EQ(topology.cores(), 8);
  EXPECT_EQ(topology.packages(), 2);
  EXPECT_EQ(topology.nodes(), 2);
  EXPECT_EQ(topology.usable_cores(), 8);
  Cpus order;
  for (const auto& cpu : topology.cpus) order.push_back(cpu.id);
  EXPECT_EQ(order, (Cpus{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}));
}

TEST(TuningTopology, OnlyAllowedCpusCount) {
  const auto root = two_sockets(4, true);
  const auto topology = read_topology({2, 3, 11, 12}, root->path());
  EXPECT_EQ(topology.cores(), 3);  // 3 and 11 are one core
  EXPECT_EQ(topology.nodes(), 2);
}

TEST(TuningTopology, NoFilesAtAll) {
  const FakeRoot root;
  const auto topology = read_topology({0, 1, 5}, root.path());
  EXPECT_EQ(topology.cores(), 3);
  EXPECT_EQ(topology.nodes(), 1);
  EXPECT_EQ(topology.packages(), 1);
  EXPECT_FALSE(topology.quota);
}

TEST(TuningTopology, OddFilesDoNotMatter) {
  FakeRoot root;
  root.cpu(0, -1, 0, "garbage");
  root.cpu(1, -1, 0, "0");  // claims a sibling that does not list it
  root.write("sys/devices/system/node/nodeX/cpulist", "0-1");
  root.write("sys/devices/system/node/possible", "0");
  const auto topology = read_topology({0, 1}, root.path());
  EXPECT_EQ(topology.cores(), 2);
  EXPECT_EQ(topology.packages(), 1);
  EXPECT_EQ(topology.nodes(), 1);
}

TEST(TuningTopology, NoCpusIsStillOneCore) { EXPECT_EQ(Topology{}.usable_cores(), 1); }

TEST(TuningTopology, ThisMachine) {
  const auto cpus = affinity_of();
  ASSERT_FALSE(cpus.empty());
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
  const auto topology = read_topology(cpus);
  EXPECT_EQ(topology.cpus.size(), cpus.size());
  EXPECT_GE(topology.cores(), 1);
  EXPECT_LE(topology.usable_cores(), static_cast<int>(cpus.size()));
  EXPECT_TRUE(affinity_of(-1).empty());
}

// ---- Control groups

constexpr const char* kMountV2 =
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
constexpr const char* kMountV1 =
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory";

TEST(TuningCgroup, Version2TakesTheSmallestOnTheWayUp) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/job/step");
  root.write("proc/self/mountinfo", kMountV2);
  EXPECT_FALSE(cpu_quota(root.path()));
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  EXPECT_FALSE(cpu_quota(root.path()));
  root.write("sys/fs/cgroup/job/cpu.max", "250000 100000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 2.5);
  root.write("sys/fs/cgroup/job/step/cpu.max", "400000 100000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 2.5);
  root.write("sys/fs/cgroup/memory.max", "max");
  EXPECT_FALSE(memory_limit_bytes(root.path()));
  root.write("sys/fs/cgroup/job/memory.max", "1073741824");
  EXPECT_EQ(memory_limit_bytes(root.path()).value(), 1 << 30);
}

TEST(TuningCgroup, Version1) {
  FakeRoot root;
  root.write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/17ab\n0::/");
  root.write("proc/self/mountinfo", kMountV1);
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/17ab/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/17ab/cpu.cfs_period_us", "100000");
  EXPECT_FALSE(cpu_quota(root.path()));
  root.write("sys/fs/cgroup/cpu,cpuacct/docker/17ab/cpu.cfs_quota_us", "150000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 1.5);
  root.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_FALSE(memory_limit_bytes(root.path()));
  root.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "4096000");
  EXPECT_EQ(memory_limit_bytes(root.path()).value(), 4096000);
}

TEST(TuningCgroup, ContainerThatSeesItsGroupAsTheTop) {
  FakeRoot root;
  root.write("proc/self/cgroup", "4:cpu:/docker/17ab/inner");
  root.write("proc/self/mountinfo", "31 24 0:27 /docker/17ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 3);
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "200000");
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 2);
}

TEST(TuningCgroup, GroupOutsideOfTheMount) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/../elsewhere");
  root.write("proc/self/mountinfo", kMountV2);
  root.write("sys/fs/cgroup/cpu.max", "100000 100000");
  root.write("sys/fs/elsewhere/cpu.max", "1000 100000");
  EXPECT_DOUBLE_EQ(cpu_quota(root.path()).value(), 1);
}

TEST(TuningCgroup, OddFilesDoNotLimit) {
  FakeRoot root;
  EXPECT_FALSE(cpu_quota(root.path()));
  root.write("proc/self/cgroup", "nonsense\n0::/");
  root.write("proc/self/mountinfo", std::string("short line\n") + kMountV2);
  for (const char* text : {"", "0 100000", "100000 0", "-5 100000", "many few", "100000"}) {
    root.write("sys/fs/cgroup/cpu.max", text);
    EXPECT_FALSE(cpu_quota(root.path())) << text;
  }
}

// ---- Threads

TEST_F(TuningPlan, ThreadsAreCoresDividedByRanks) {
  EXPECT_EQ(plan_on(flat(8), 0, 1, {}).threads, 8);
  EXPECT_EQ(plan_on(flat(8), 0, 2, {}).threads, 4);
  EXPECT_EQ(plan_on(flat(8), 0, 3, {}).threads, 2);
  EXPECT_EQ(plan_on(flat(8), 0, 9, {}).threads, 1);
  const auto smt = two_sockets(4, true);
  EXPECT_EQ(plan_on(read_topology(range(0, 15), smt->path()), 0, 2, {}).threads, 4);  // cores, not CPUs
}

TEST_F(TuningPlan, ThreadsFollowTheQuotaAndBindingDoesNot) {
  auto machine = flat(16);
  machine.quota = 4.0;
  EXPECT_EQ(plan_on(machine, 0, 2, {}).threads, 2);
  EXPECT_EQ(plan_on(machine, 0, 2, {}).cpus, range(0, 7));
  machine.quota = 3.9;
  EXPECT_EQ(plan_on(machine, 0, 1, {}).threads, 3);
  machine.quota = 0.2;
  EXPECT_EQ(plan_on(machine, 0, 1, {}).threads, 1);
  machine.quota = 400.0;
  EXPECT_EQ(plan_on(machine, 0, 1, {}).threads, 16);
}

TEST_F(TuningPlan, SettingsOfTheUserAreKept) {
  EXPECT_EQ(plan_on(flat(8), 0, 2, {.threads = 3}).threads, 3);
  EXPECT_EQ(plan_on(flat(8), 0, 2, {.threads = 0}).threads, 0);
  const ScopedEnv omp("OMP_NUM_THREADS", "5");
  EXPECT_EQ(plan_on(flat(8), 0, 2, {}).threads, 0);
  EXPECT_EQ(plan_on(flat(8), 0, 2, {.threads = 3}).threads, 0);
}

TEST_F(TuningPlan, RankMustBeAmongTheLocalRanks) {
  EXPECT_THROW(plan_on(flat(2), 2, 2, {}), UsageError);
  EXPECT_THROW(plan_on(flat(2), -1, 2, {}), UsageError);
  EXPECT_THROW(plan_on(flat(2), 0, 0, {}), UsageError);
}

// ---- Shares of CPUs

std::vector<Cpus> all_shares(const Topology& topology, int ranks) {
  std::vector<Cpus> shares;
  for (int rank = 0; rank < ranks; ++rank) shares.push_back(plan_on(topology, rank, ranks, {}).cpus);
  return shares;
}

TEST_F(TuningPlan, SharesAreContiguous) {
  EXPECT_EQ(all_shares(flat(4), 2), (std::vector<Cpus>{{0, 1}, {2, 3}}));
  EXPECT_EQ(all_shares(flat(5), 2), (std::vector<Cpus>{{0, 1}, {2, 3, 4}}));
}

TEST_F(TuningPlan, SiblingsStayTogether) {
  const auto root = two_sockets(4, true);
  const auto topology = read_topology(range(0, 15), root->path());
  const auto shares = all_shares(topology, 4);
  EXPECT_EQ(shares[0], (Cpus{0, 8, 1, 9}));
  EXPECT_EQ(shares[3], (Cpus{6, 14, 7, 15}));
}

TEST_F(TuningPlan, MoreRanksThanCoresCutsByCpu) {
  const auto root = two_sockets(2, true);
  const auto topology = read_topology(range(0, 7), root->path());
  const auto shares = all_shares(topology, 8);
  EXPECT_EQ(shares, (std::vector<Cpus>{{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}}));
}

TEST_F(TuningPlan, MoreRanksThanCpusAreNotBound) {
  for (const auto& share : all_shares(flat(2), 3)) EXPECT_TRUE(share.empty());
}

TEST_F(TuningPlan, OneRankIsNotBound) { EXPECT_TRUE(plan_on(flat(4), 0, 1, {}).cpus.empty()); }

TEST_F(TuningPlan, BindingCanBeTurnedOff) {
  EXPECT_TRUE(plan_on(flat(4), 0, 2, {.bind = false}).cpus.empty());
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    const ScopedEnv openmp(name, "close");
    EXPECT_TRUE(plan_on(flat(4), 0, 2, {}).cpus.empty()) << name;
    EXPECT_EQ(plan_on(flat(4), 0, 2, {}).threads, 0) << name;
    EXPECT_EQ(plan_on(flat(4), 0, 2, {.threads = 2}).threads, 2) << name;
  }
  const ScopedEnv openmp("OMP_PROC_BIND", "false");
  EXPECT_FALSE(plan_on(flat(4), 0, 2, {}).cpus.empty());
}

TEST_F(TuningPlan, NoRankSpansNodesUnlessCoresAreShort) {
  // 6 cores on node 0, 3 on node 1: three ranks of 3 cores fit without spanning nodes, 3 + 3 | 3.
  auto machine = flat(9);
  for (int cpu = 6; cpu < 9; ++cpu) machine.cpus[cpu].node = 1;
  EXPECT_EQ(all_shares(machine, 3), (std::vector<Cpus>{range(0, 2), range(3, 5), range(6, 8)}));

  // 5 + 3 cores, two ranks with 4 threads: a cut between the nodes leaves one rank short of cores, so the cut
  // is in the middle.
  auto uneven = flat(8);
  for (int cpu = 5; cpu < 8; ++cpu) uneven.cpus[cpu].node = 1;
  EXPECT_EQ(all_shares(uneven, 2), (std::vector<Cpus>{range(0, 3), range(4, 7)}));

  // 5 + 5 cores, three ranks with 3 threads: two ranks on one node are short of cores, so one rank spans the
  // nodes (3, 3, 4).
  auto tight = flat(10);
  for (int cpu = 5; cpu < 10; ++cpu) tight.cpus[cpu].node = 1;
  EXPECT_EQ(all_shares(tight, 3), (std::vector<Cpus>{range(0, 2), range(3, 5), range(6, 9)}));

  // 7 + 4 cores, five ranks with 2 threads: 2 + 2 + 3 | 2 + 2, where with an even cut (2, 2, 2, 2, 3) a rank
  // would span the nodes.
  auto seven = flat(11);
  for (int cpu = 7; cpu < 11; ++cpu) seven.cpus[cpu].node = 1;
  EXPECT_EQ(all_shares(seven, 5),
            (std::vector<Cpus>{range(0, 1), range(2, 3), range(4, 6), range(7, 8), range(9, 10)}));
}

// For every machine and every number of ranks: no CPU is used twice, every rank has CPUs, siblings stay
// together, and the cores suffice for the threads.
TEST_F(TuningPlan, SharesAlwaysFit) {
  for (const bool smt : {false, true}) {
    for (int per_socket = 1; per_socket <= 6; ++per_socket) {
      const auto root = two_sockets(per_socket, smt);
      const int cpus = 2 * per_socket * (smt ? 2 : 1);
      for (int first = 0; first < cpus; first += 3) {  // the whole machine, and parts of it
        const auto topology = read_topology(range(first, cpus - 1), root->path());
        std::map<int, int> core_of;
        for (const auto& cpu : topology.cpus) core_of[cpu.id] = cpu.core;
        for (int ranks = 2; ranks <= static_cast<int>(topology.cpus.size()); ++ranks) {
          SCOPED_TRACE(
              fmt::format("smt {} per socket {} from CPU {} ranks {}", smt, per_socket, first, ranks));
          std::set<int> used_cpus, used_cores;
          for (int rank = 0; rank < ranks; ++rank) {
            const auto plan = plan_on(topology, rank, ranks, {});
            ASSERT_FALSE(plan.cpus.empty());
            std::set<int> cores;
            for (const int cpu : plan.cpus) {
              EXPECT_TRUE(used_cpus.insert(cpu).second);
              cores.insert(core_of.at(cpu));
            }
            EXPECT_GE(static_cast<int>(cores.size()), plan.threads);
            if (ranks > topology.cores()) continue;
            for (const int core : cores) EXPECT_TRUE(used_cores.insert(core).second);
          }
        }
      }
    }
  }
}

// ---- Switches

TEST(TuningSwitches, FromTheEnvironment) {
  {
    const ScopedEnv bind("LOCKSTEP_BIND", std::nullopt), heap("LOCKSTEP_HEAP", std::nullopt),
        threads("LOCKSTEP_THREADS", std::nullopt);
    const auto switches = switches_from_environment();
    EXPECT_TRUE(switches.bind);
    EXPECT_TRUE(switches.heap);
    EXPECT_FALSE(switches.threads);
  }
  const ScopedEnv bind("LOCKSTEP_BIND", "0"), heap("LOCKSTEP_HEAP", "off"), threads("LOCKSTEP_THREADS", "0");
  const auto switches = switches_from_environment();
  EXPECT_FALSE(switches.bind);
  EXPECT_FALSE(switches.heap);
  EXPECT_EQ(switches.threads, 0);
}

TEST(TuningSwitches, WrongValuesAreNamed) {
  for (const char* name : {"LOCKSTEP_BIND", "LOCKSTEP_HEAP", "LOCKSTEP_THREADS"}) {
    const ScopedEnv wrong(name, "-3");
    try {
      switches_from_environment();
      ADD_FAILURE() << name << "=-3 was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

// ---- The worker's environment

std::map<std::string, std::string> as_map(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return {pairs.begin(), pairs.end()};
}

TEST_F(TuningPlan, EnvironmentCarriesThePlan) {
  const auto variables = as_map(environment_of({.cpus = {2, 3}, .threads = 2, .keep_heap = true}));
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(variables.at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(variables.at("OPENBLAS_THREAD_TIMEOUT"), "16");
  EXPECT_EQ(variables.at("MALLOC_MMAP_MAX_"), "0");
  EXPECT_TRUE(variables.count("MALLOC_TRIM_THRESHOLD_"));
  EXPECT_EQ(variables.at("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1");
  EXPECT_TRUE(environment_of({}).empty());
}

TEST_F(TuningPlan, EnvironmentOfOneThreadHasNoWaitPolicy) {
  const auto variables = as_map(environment_of({.threads = 1}));
  EXPECT_FALSE(variables.count("OMP_WAIT_POLICY"));
  EXPECT_FALSE(variables.count("OPENBLAS_THREAD_TIMEOUT"));
}

TEST_F(TuningPlan, EnvironmentKeepsTheUsersWaitPolicy) {
  const ScopedEnv policy("OMP_WAIT_POLICY", "active"), timeout("OPENBLAS_THREAD_TIMEOUT", "20");
  const auto variables = as_map(environment_of({.threads = 2}));
  EXPECT_FALSE(variables.count("OMP_WAIT_POLICY"));
  EXPECT_FALSE(variables.count("OPENBLAS_THREAD_TIMEOUT"));
}

TEST_F(TuningPlan, EnvironmentKeepsTheUsersVariables) {
  const ScopedEnv threads("OMP_NUM_THREADS", "7"), trim("MALLOC_TRIM_THRESHOLD_", "1000");
  const auto variables = as_map(environment_of({.cpus = {0}, .threads = 2, .keep_heap = true}));
  EXPECT_FALSE(variables.count("OMP_NUM_THREADS"));
  EXPECT_FALSE(variables.count("MALLOC_TRIM_THRESHOLD_"));
  EXPECT_TRUE(variables.count("MALLOC_MMAP_MAX_"));
}

TEST_F(TuningPlan, EnvironmentKnowsBothSpellingsOfTheHeapsSettings) {
  const Plan heap{.keep_heap = true};
  {
    const ScopedEnv threshold("MALLOC_MMAP_THRESHOLD_", "1000000");
    EXPECT_FALSE(as_map(environment_of(heap)).count("MALLOC_MMAP_MAX_"));
  }
  const ScopedEnv tunables("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.trim_threshold=1000");
  const auto variables = as_map(environment_of(heap));
  EXPECT_TRUE(variables.count("MALLOC_MMAP_MAX_"));
  EXPECT_FALSE(variables.count("MALLOC_TRIM_THRESHOLD_"));
  EXPECT_EQ(variables.at("GLIBC_TUNABLES"),
            "glibc.malloc.check=0:glibc.malloc.trim_threshold=1000:glibc.malloc.hugetlb=1");
  const ScopedEnv no_huge("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0");
  EXPECT_FALSE(as_map(environment_of(heap)).count("GLIBC_TUNABLES"));
}

// ---- This process

// Runs `body` in a forked child, where it may change affinity and allocator. Returns whether it returned
// true.
template <class Body>
bool in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(TuningBind, ThisThread) {
  const auto before = affinity_of();
  EXPECT_TRUE(
      in_child([&] { return bind_this_thread({before.back()}) && affinity_of() == Cpus{before.back()}; }));
  EXPECT_TRUE(in_child([&] { return bind_this_thread({}) && affinity_of() == before; }));
  EXPECT_TRUE(in_child([&] { return !bind_this_thread({30000}) && affinity_of() == before; }));
  EXPECT_TRUE(in_child([&] { return !bind_this_thread({1 << 20, -1}) && affinity_of() == before; }));
  EXPECT_EQ(affinity_of(), before);
}

TEST(TuningBind, EveryThreadOfThisProcess) {
  const Cpus wanted = {affinity_of().front()};
  EXPECT_TRUE(in_child([&] {
    std::atomic<bool> bound = false;
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        bound.wait(false);
        right += affinity_of() == wanted;
      });
    }
    const bool done = bind_this_process(wanted);
    threads.emplace_back([&] { right += affinity_of() == wanted; });
    bound = true;
    bound.notify_all();
    for (auto& thread : threads) thread.join();
    return done && right == 5;
  }));
}

TEST_F(TuningPlan, KeptHeapHoldsFreedMemory) {
  if (kOwnAllocator) GTEST_SKIP() << "the sanitizer's allocator is not glibc's";
  EXPECT_TRUE(in_child([] {
    keep_heap();
    constexpr size_t kBytes = 100 << 20;
    const size_t mapped = ::mallinfo2().hblks;
    void* volatile first = std::malloc(kBytes);
    const bool on_heap = ::mallinfo2().hblks == mapped;
    std::free(first);
    const size_t kept = ::mallinfo2().fordblks;
    void* volatile second = std::malloc(kBytes);
    const bool reused = first == second;
    std::free(second);
    return on_heap && kept >= kBytes && reused;
  }));
}

TEST_F(TuningPlan, KeptHeapRespectsTheUsersChoice) {
  if (kOwnAllocator) GTEST_SKIP() << "the sanitizer's allocator is not glibc's";
  EXPECT_TRUE(in_child([] {
    ::setenv("MALLOC_MMAP_THRESHOLD_", "1000000", 1);
    keep_heap();
    const size_t before = ::mallinfo2().hblks;
    void* volatile block = std::malloc(100 << 20);  // volatile, because the compiler would remove both calls
    const size_t after = ::mallinfo2().hblks;
    std::free(block);
    return after == before + 1;
  }));
}

TEST(TuningBlas, WithoutOpenBlasNothingIsSet) {
  // This test links no BLAS; tests that link LibTorch check a real OpenBLAS.
  EXPECT_EQ(loaded_blas().kind, BlasKind::Unknown);
  EXPECT_FALSE(set_blas_threads(1));
}

}  // namespace
}  // namespace lockstep::tuning
