// Who a process is, for each launcher's way of saying it.
#include "rendezvous/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include <lockstep/error.h>

#include "rendezvous/machines.h"
#include "rendezvous/meet.h"
#include "rendezvous/open_store.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Identity identity_in(const Variables& variables, NeedMaster need_master = NeedMaster::Yes) {
  return identify(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      need_master);
}

std::string refusal_of(const Variables& variables) {
  try {
    identity_in(variables);
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "taken as good";
  return {};
}

TEST(Identify, NothingIsAWorldOfOne) {
  const auto identity = identity_in({{"PATH", "/bin"}});
  EXPECT_EQ(identity.launcher, "none");
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.world_size, 1);
}

TEST(Identify, Torchrun) {
  const auto identity = identity_in({{"RANK", "5"},
                                     {"WORLD_SIZE", "8"},
                                     {"LOCAL_RANK", "1"},
                                     {"LOCAL_WORLD_SIZE", "4"},
                                     {"GROUP_RANK", "1"},
                                     {"GROUP_WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "node0"},
                                     {"MASTER_PORT", "29500"},
                                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"},
                                     {"TORCHELASTIC_RUN_ID", "abc"}});
  EXPECT_EQ(identity.launcher, "torchrun");
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.world_size, 8);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_world_size, 4);
  EXPECT_EQ(identity.node_rank, 1);
  EXPECT_EQ(identity.num_nodes, 2);
  EXPECT_EQ(identity.master_addr, "node0");
  EXPECT_EQ(identity.master_port, 29500);
  EXPECT_TRUE(identity.agent_hosts_store);
  EXPECT_EQ(identity.attempt, 2);
}

TEST(Identify, Slurm) {
  Variables variables = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "99"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                         {"SLURM_JOB_ID", "4242"},
                         {"SLURM_STEP_ID", "0"}};
  const auto identity = identity_in(variables);
  EXPECT_EQ(identity.launcher, "slurm");
  EXPECT_EQ(identity.rank, 3);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.node_rank, 1);
  EXPECT_EQ(identity.num_nodes, 2);
  EXPECT_EQ(identity.master_addr, "gpu07");
  EXPECT_GE(identity.master_port, 20000);
  EXPECT_LT(identity.master_port, 32000);
  // The same for all ranks of the step, another for the next step.
  variables["SLURM_PROCID"] = "0";
  EXPECT_EQ(identity_in(variables).master_port, identity.master_port);
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE(identity_in(variables).master_port, identity.master_port);
  // The user's word counts more.
  variables["MASTER_ADDR"] = "head";
  variables["MASTER_PORT"] = "1234";
  EXPECT_EQ(identity_in(variables).master_addr, "head");
  EXPECT_EQ(identity_in(variables).master_port, 1234);
}

TEST(Identify, SlurmOnOneNodeStaysOnLoopback) {
  const auto identity = identity_in({{"SLURM_PROCID", "0"},
                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                     {"SLURM_STEP_NUM_NODES", "1"},
                                     {"SLURM_STEP_NODELIST", "node1"},
                                     {"SLURM_JOB_ID", "1"}});
  EXPECT_EQ(identity.master_addr, "127.0.0.1");
  EXPECT_EQ(identity.local_world_size, 2);
}

TEST(Identify, AShellOfASlurmAllocationIsNoRank) {
  EXPECT_EQ(identity_in({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}).world_size, 1);
}

TEST(Identify, OpenMpi) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "3811"}};
  const auto identity = identity_in(variables);
  EXPECT_EQ(identity.launcher, "openmpi");
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 2);
  EXPECT_EQ(identity.master_addr, "127.0.0.1");
  // On several machines somebody must say where to meet.
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_THAT(refusal_of(variables), HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(identity_in(variables, NeedMaster::No).rank, 1);
}

TEST(Identify, MpirunInsideASlurmJobIsOpenMpi) {
  const auto identity = identity_in({{"SLURM_PROCID", "0"},
                                     {"SLURM_STEP_NUM_TASKS", "1"},
                                     {"OMPI_COMM_WORLD_RANK", "3"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(identity.launcher, "openmpi");
  EXPECT_EQ(identity.rank, 3);
}

TEST(Identify, Pmi) {
  const auto identity =
      identity_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}});
  EXPECT_EQ(identity.launcher, "pmi");
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 3);
  EXPECT_EQ(identity.local_rank, 1);
}

TEST(Identify, TheOrderIsTorchrunSlurmOpenMpiPmi) {
  Variables variables = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(identity_in(variables).launcher, "pmi");
  variables.insert({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(identity_in(variables).launcher, "openmpi");
  variables.insert({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(identity_in(variables).launcher, "slurm");
  variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(identity_in(variables).launcher, "torchrun");
}

TEST(Identify, HalfAnAnswerIsRefusedByName) {
  EXPECT_THAT(refusal_of({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refusal_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}),
              HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(refusal_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=2"));
  EXPECT_THAT(refusal_of({{"RANK", "1.5"}, {"WORLD_SIZE", "2"}}), HasSubstr("\"1.5\""));
  EXPECT_THAT(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}), HasSubstr("WORLD_SIZE"));
  // An empty value is no value.
  EXPECT_EQ(identity_in({{"RANK", ""}, {"WORLD_SIZE", ""}}).launcher, "none");
}

TEST(FirstSlurmHost, ReadsTheListsThatSlurmWrites) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("node7,node9"), "node7");
  EXPECT_EQ(first_slurm_host("node[003-010,012],login1"), "node003");
  EXPECT_EQ(first_slurm_host("node[12,14]"), "node12");
  EXPECT_EQ(first_slurm_host("rack[1-2]-gpu,x"), "rack1-gpu");
  EXPECT_EQ(first_slurm_host("node["), "node");
  EXPECT_EQ(first_slurm_host(""), "");
}

TEST(MeetingPoint, IPv6) {
  const auto point = meeting_point("tcp://[fd00::1]:29500", {});
  EXPECT_EQ(point.host, "fd00::1");
  EXPECT_EQ(point.port, 29500);
  EXPECT_EQ(point.describe(), "store at [fd00::1]:29500");
  EXPECT_FALSE(point.one_machine);
  EXPECT_TRUE(meeting_point("tcp://[::1]:29500", {}).one_machine);
  EXPECT_THROW(meeting_point("tcp://[fd00::1]", {}), UsageError);
}

TEST(PlacementOf, CountsMachinesInTheOrderOfTheirRanks) {
  std::vector<RankFacts> ranks(5);
  for (int i = 0; i < 5; ++i) ranks[i].machine = i % 2 == 0 ? "a" : "b";
  const auto placement = placement_of(3, ranks);
  EXPECT_EQ(placement.local_rank, 1);
  EXPECT_EQ(placement.local_world_size, 2);
  EXPECT_EQ(placement.node_rank, 1);
  EXPECT_EQ(placement.num_nodes, 2);
}

TEST(RankFacts, SurviveTheStore) {
  auto facts = facts_of_this_process(2, 5);
  facts.network.rails = {{.v4 = {"eth0", "10.0.0.7", true}}};
  const auto read = decode_facts(encode_facts(facts));
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.world_size, 5);
  EXPECT_EQ(read.machine, facts.machine);
  EXPECT_EQ(read.cpus, facts.cpus);
  ASSERT_EQ(read.network.rails.size(), 1u);
  EXPECT_EQ(read.network.rails[0].v4.address, "10.0.0.7");
  EXPECT_THROW(decode_facts("GET / HTTP/1.1"), MismatchError);
  EXPECT_THROW(decode_facts("{\"lockstep\": 99}"), MismatchError);
}

}  // namespace
}  // namespace lockstep::rendezvous
