// Which CUDA device each rank gets, which backend a group gets, and how many workers `gpu` starts. None of it
// needs a device.
#include "nccl/devices.h"

#include <fstream>

#include "groups/make_group.h"
#include "launch/limits.h"
#include "nccl/engine.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using rendezvous::RankFacts;
using ::testing::HasSubstr;
using Devices = std::vector<std::string>;

// The facts of ranks on these machines, which see these devices.
std::vector<RankFacts> ranks_that_see(const std::vector<std::pair<std::string, Devices>>& machines) {
  std::vector<RankFacts> ranks;
  for (const auto& [machine, devices] : machines) {
    RankFacts facts{.rank = static_cast<int>(ranks.size()),
                    .world_size = static_cast<int>(machines.size()),
                    .host = "host-" + machine,
                    .machine = machine};
    facts.cuda_devices = devices;
    ranks.push_back(std::move(facts));
  }
  return ranks;
}

std::vector<int> devices_of(const std::vector<RankFacts>& ranks) {
  std::vector<int> devices;
  for (const auto& rank : ranks) devices.push_back(rank.cuda_device);
  return devices;
}

std::string why_not(std::vector<RankFacts> ranks) {
  const auto too_few = nccl::assign_devices(ranks);
  for (const auto& rank : ranks) EXPECT_EQ(rank.cuda_device, -1);
  return too_few ? too_few->evidence + "\nhint: " + too_few->hint : "assigned";
}

const Devices kTwo{"A", "B"}, kThree{"A", "B", "C"};

TEST(CudaDevices, RanksOfAMachineDivideThemInOrder) {
  auto ranks = ranks_that_see({{"m", kThree}, {"n", kTwo}, {"m", kThree}, {"n", kTwo}, {"m", kThree}});
  EXPECT_FALSE(nccl::assign_devices(ranks));
  EXPECT_EQ(devices_of(ranks), (std::vector<int>{0, 0, 1, 1, 2}));
}

TEST(CudaDevices, ALauncherMayShowEachRankItsOwn) {
  auto ranks = ranks_that_see({{"m", {"A"}}, {"m", {"B"}}, {"m", {"C", "D"}}});
  EXPECT_FALSE(nccl::assign_devices(ranks));
  EXPECT_EQ(devices_of(ranks), (std::vector<int>{0, 0, 0}));
}

TEST(CudaDevices, AreKeptOnceTheyAreAssigned) {
  auto ranks = ranks_that_see({{"m", kThree}, {"m", kThree}, {"m", kThree}});
  nccl::assign_devices(ranks);
  std::vector<RankFacts> some{ranks[1], ranks[2]};  // as in a subgroup
  EXPECT_FALSE(nccl::assign_devices(some));
  EXPECT_EQ(devices_of(some), (std::vector<int>{1, 2}));
}

TEST(CudaDevices, TooManyRanks) {
  const auto message = why_not(ranks_that_see({{"m", kTwo}, {"m", kTwo}, {"m", kTwo}}));
  EXPECT_THAT(message, HasSubstr("3 ranks on host host-m share 2 CUDA devices"));
  EXPECT_THAT(message, HasSubstr("lockstep run --nproc-per-node gpu"));
}

TEST(CudaDevices, ARankWithoutOne) {
  EXPECT_THAT(why_not(ranks_that_see({{"m", kTwo}, {"n", {}}})),
              HasSubstr("rank 1 (pid 0, host host-n) sees no"));
}

TEST(CudaDevices, OneForTwoRanks) {
  const auto message = why_not(ranks_that_see({{"m", {"A", "B"}}, {"m", {"A"}}}));
  EXPECT_THAT(message,
              HasSubstr("rank 0 (pid 0, host host-m) and rank 1 (pid 0, host host-m) would use the same"));
  EXPECT_THAT(message, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(CudaDevices, TravelWithTheFactsOfARank) {
  const auto facts = ranks_that_see({{"m", kThree}}).front();
  EXPECT_EQ(rendezvous::decode_facts(rendezvous::encode_facts(facts)).cuda_devices, kThree);
}

// ---- Backends

TEST(ChosenBackend, HasNcclIfEveryRankHasADevice) {
  auto ranks = ranks_that_see({{"m", kTwo}, {"m", kTwo}});
  const auto backend = groups::choose_backend("auto", ranks);
  EXPECT_EQ(backend.nccl, nccl::has_nccl());
  EXPECT_EQ(backend.name(), nccl::has_nccl() ? "shm+nccl" : "shm");
  EXPECT_EQ(groups::device_of(ranks[1]), nccl::has_nccl() ? c10::Device("cuda:1") : c10::Device("cpu"));
}

TEST(ChosenBackend, HasNoneWithoutDevicesAndSaysWhy) {
  auto ranks = ranks_that_see({{"m", {}}, {"m", {}}});
  const auto backend = groups::choose_backend("auto", ranks);
  EXPECT_EQ(backend.name(), "shm");
  EXPECT_THAT(backend.no_cuda.evidence, HasSubstr(nccl::has_nccl() ? "sees no CUDA device" : "without NCCL"));
  EXPECT_EQ(groups::device_of(ranks[0]), c10::Device("cpu"));
}

TEST(ChosenBackend, OthersCarryNoCudaTensors) {
  auto ranks = ranks_that_see({{"m", kTwo}, {"m", kTwo}});
  const auto backend = groups::choose_backend("shm", ranks);
  EXPECT_FALSE(backend.nccl);
  EXPECT_EQ(backend.no_cuda.evidence, "backend \"shm\" was requested");
}

TEST(ChosenBackend, NcclMustHaveDevices) {
  auto ranks = ranks_that_see({{"m", kTwo}, {"m", kTwo}, {"m", kTwo}});
  const auto message = message_of<UsageError>([&] { groups::choose_backend("nccl", ranks); });
  EXPECT_THAT(message, HasSubstr("backend \"nccl\" cannot connect these ranks: "));
  EXPECT_THAT(message, HasSubstr(nccl::has_nccl() ? "3 ranks on host host-m share 2" : "without NCCL"));
}

TEST(ChosenBackend, NcclIsRefusedIfLibTorchHasNone) {
  if (nccl::has_nccl()) {
    EXPECT_EQ(groups::wanted_backend("nccl"), "nccl");
    return;
  }
  EXPECT_TRUE(nccl::visible_devices().empty());
  EXPECT_THAT(message_of<UsageError>([] { groups::wanted_backend("nccl"); }),
              HasSubstr("backend \"nccl\" is not available: this LibTorch was built without NCCL"));
}

// ---- The number of workers

TEST(CountedGpus, AreCountedByTheirDeviceFiles) {
  const ScratchFolder dev;
  EXPECT_EQ(launch::count_gpus(dev / "missing", std::nullopt), 0);
  EXPECT_EQ(launch::count_gpus(dev.path(), std::nullopt), 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) {
    std::ofstream(dev / name).put('\n');
  }
  EXPECT_EQ(launch::count_gpus(dev.path(), std::nullopt), 3);
}

TEST(CountedGpus, CudaVisibleDevicesLimitsThem) {
  const ScratchFolder dev;
  for (const char* name : {"nvidia0", "nvidia1"}) std::ofstream(dev / name).put('\n');
  const auto count = [&](const char* visible) { return launch::count_gpus(dev.path(), visible); };
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("-1"), 0);
  EXPECT_EQ(count("NoDevFiles"), 0);
  EXPECT_EQ(count("1"), 1);
  EXPECT_EQ(count("1,0"), 2);
  EXPECT_EQ(count("0,-1,1"), 1);  // up to the first that is none
  EXPECT_EQ(count("0,2"), 1);
  EXPECT_EQ(count("0,0"), 0);  // CUDA accepts none then
  EXPECT_EQ(count("GPU-1b2c,GPU-3d4e"), 2);
  EXPECT_EQ(count("GPU-1,GPU-2,GPU-3"), 2);  // there are only two
  EXPECT_EQ(count("MIG-1b2c"), 1);
}

}  // namespace
}  // namespace lockstep::testing
