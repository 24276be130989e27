// Jobs of several nodes that succeed and that fail: several `lockstep run` on this machine, over loopback.
#include "nodes.h"

#include <csignal>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep::launch::testing {
namespace {

TEST_F(NodesTest, RanksAndEnvironmentWithDifferentNumbersOfWorkers) {
  auto second = node(1, 2, {"--nproc-per-node", "1", "PROBE", "env"});
  auto first = node(0, 2, {"--nproc-per-node", "2", "--max-restarts", "4", "PROBE", "env"});
  ASSERT_EQ(first->wait(), 0) << first->err();
  ASSERT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->err() + second->err(), "");
  for (const char* line :
       {"[rank 0] RANK=0\n", "[rank 1] RANK=1\n", "[rank 1] LOCAL_RANK=1\n", "[rank 0] WORLD_SIZE=3\n",
        "[rank 0] LOCAL_WORLD_SIZE=2\n", "[rank 0] GROUP_RANK=0\n", "[rank 0] GROUP_WORLD_SIZE=2\n"}) {
    EXPECT_TRUE(has(first->out(), line)) << line << first->out();
  }
  for (const std::string& line :
       {std::string("[rank 2] RANK=2\n"), std::string("[rank 2] LOCAL_RANK=0\n"),
        std::string("[rank 2] WORLD_SIZE=3\n"), std::string("[rank 2] LOCAL_WORLD_SIZE=1\n"),
        std::string("[rank 2] GROUP_RANK=1\n"), std::string("[rank 2] NODE_RANK=1\n"),
        std::string("[rank 2] MASTER_ADDR=127.0.0.1\n"), "[rank 2] MASTER_PORT=" + port() + "\n",
        std::string("[rank 2] TORCHELASTIC_MAX_RESTARTS=4\n")}) {
    EXPECT_TRUE(has(second->out(), line)) << line << second->out();
  }
}

TEST_F(NodesTest, TheStoresPortIsFreeForRankZero) {
  // Rank 0 listens on MASTER_PORT, as the store does, while the agents are connected through the same port.
  const std::string python =
      "import os,socket; s=socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, "
      "socket.SO_REUSEADDR, 1); s.bind(('::', int(os.environ['MASTER_PORT']))); s.listen(); "
      "print('listening')";
  if (::access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "no python3 here";
  auto first = node(0, 2, {"/usr/bin/python3", "-c", python});
  auto second = node(1, 2, {"PROBE", "say=there"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_TRUE(has(first->out(), "listening"));
}

TEST_F(NodesTest, AFailureOnOneNodeEndsAllWithItsStatus) {
  auto first = node(0, 2, {"--nproc-per-node", "2", "PROBE", "say=ready", "hang"});
  auto second = node(1, 2, {"--nproc-per-node", "2", "PROBE", "r3:err=broken", "r3:exit=7", "hang"});
  EXPECT_EQ(first->wait(), 7);
  EXPECT_EQ(second->wait(), 7);
  for (const auto* side : {&first, &second}) {
    const auto err = (*side)->err();
    EXPECT_TRUE(has(err, "lockstep run: rank 3 exited with status 7\n")) << err;
    EXPECT_TRUE(has(err, "rank 3 of 4, local rank 1, host ")) << err;
    EXPECT_TRUE(has(err, "    | broken\n")) << err;
  }
  EXPECT_TRUE(has(first->err(), "stopping the other ranks here: 0-1")) << first->err();
}

TEST_F(NodesTest, TheCauseIsFoundAcrossNodes) {
  auto first = node(0, 2, {"PROBE", "note=PeerLostError,rank 1 is gone", "touch=" + path("gone"), "exit=1"});
  auto second = node(1, 2, {"PROBE", "await=" + path("gone"), "sleep=50", "segv"});
  EXPECT_EQ(first->wait(), 139) << first->err();
  EXPECT_EQ(second->wait(), 139) << second->err();
  EXPECT_TRUE(has(first->err(), "rank 1 was killed by signal 11")) << first->err();
}

TEST_F(NodesTest, RestartAcrossNodes) {
  auto first = node(0, 2, {"--max-restarts", "1", "PROBE", "env", "t0:hang", "say=again"});
  auto second = node(1, 2, {"PROBE", "env", "t0:exit=5", "say=again"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  for (const auto* side : {&first, &second}) {
    EXPECT_TRUE(has((*side)->out(), "TORCHELASTIC_RESTART_COUNT=1\n")) << (*side)->out();
    EXPECT_EQ(count((*side)->out(), "again\n"), 1U);
    EXPECT_TRUE(has((*side)->err(), "restart 1 of 1\n")) << (*side)->err();
  }
}

TEST_F(NodesTest, CtrlCOnOneNodeStopsAll) {
  auto first = node(0, 2, {"PROBE", "leave=INT", "say=ready", "hang"});
  auto second = node(1, 2, {"PROBE", "leave=INT", "say=ready", "hang"});
  ASSERT_TRUE(first->wait_for_text("ready") && second->wait_for_text("ready"));
  second->signal(SIGINT);
  EXPECT_EQ(second->wait(), 130);
  EXPECT_EQ(first->wait(), 130);
  EXPECT_EQ(count(first->out(), "got INT"), 1U);
  EXPECT_EQ(count(second->out(), "got INT"), 1U);
  EXPECT_TRUE(has(first->err(), "SIGINT on node 1")) << first->err();
}

TEST_F(NodesTest, ALostNodeIsNamed) {
  auto first = node(0, 2, {"PROBE", "say=ready", "hang"});
  auto second = node(1, 2, {"PROBE", "say=ready", "hang"});
  ASSERT_TRUE(first->wait_for_text("ready") && second->wait_for_text("ready"));
  const pid_t agent = agent_of(*second);
  second->signal(SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(first->wait(), 1);
  EXPECT_TRUE(has(first->err(), "node 1 (")) << first->err();
  EXPECT_TRUE(has(first->err(), ") is lost")) << first->err();
  EXPECT_EQ(second->wait(), 137);
}

TEST_F(NodesTest, LosingNodeZeroStopsTheOthers) {
  auto first = node(0, 2, {"PROBE", "say=ready", "hang"});
  auto second = node(1, 2, {"PROBE", "say=ready", "hang"});
  ASSERT_TRUE(first->wait_for_text("ready") && second->wait_for_text("ready"));
  const pid_t agent = agent_of(*first);
  first->signal(SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(second->wait(), 1);
  EXPECT_TRUE(has(second->err(), "node 0 (")) << second->err();
  EXPECT_TRUE(has(second->err(), ") is lost")) << second->err();
  EXPECT_EQ(first->wait(), 137);
}

TEST_F(NodesTest, MissingNodesAreNamed) {
  auto first = node(0, 4, {"--timeout", "1.5", "PROBE", "say=started"});
  auto third = node(2, 4, {"--timeout", "3", "PROBE", "say=started"});
  EXPECT_EQ(first->wait(), 1);
  EXPECT_EQ(third->wait(), 1);
  for (const auto* side : {&first, &third}) {
    EXPECT_TRUE(has((*side)->err(), "not all nodes arrived within 1.5 s")) << (*side)->err();
    EXPECT_TRUE(has((*side)->err(), "missing: node 1, 3; here: node 0 on ")) << (*side)->err();
  }
  EXPECT_EQ(first->out() + third->out(), "");
}

TEST_F(NodesTest, NodeZeroThatNeverStarts) {
  auto second = node(1, 2, {"--timeout", "0.5", "PROBE"});
  EXPECT_EQ(second->wait(), 1);
  EXPECT_TRUE(has(second->err(), "cannot reach 127.0.0.1:" + port() + " within 0.5 s")) << second->err();
}

TEST_F(NodesTest, ASecondNodeWithTheSameRankIsRefused) {
  auto first = node(0, 3, {"PROBE", "say=fine"});
  auto second = node(1, 3, {"PROBE", "say=fine"});
  auto double_of_second = node(1, 3, {"PROBE", "say=fine"});
  // Either of the two may have joined first.
  ASSERT_TRUE(eventually([&] { return !second->running() || !double_of_second->running(); }));
  auto& refused = second->running() ? double_of_second : second;
  auto& accepted = second->running() ? second : double_of_second;
  EXPECT_EQ(refused->wait(), 2);
  EXPECT_TRUE(has(refused->err(), "node rank 1 is taken")) << refused->err();
  auto third = node(2, 3, {"PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(accepted->wait(), 0) << accepted->err();
  EXPECT_EQ(third->wait(), 0) << third->err();
}

TEST_F(NodesTest, NodesOfAnotherJobOrSizeAreRefused) {
  auto first = node(0, 2, {"--rdzv-id", "mine", "PROBE", "say=fine"});
  auto other_job = node(1, 2, {"--rdzv-id", "yours", "PROBE"});
  EXPECT_EQ(other_job->wait(), 2);
  EXPECT_TRUE(has(other_job->err(), "it belongs to job \"yours\", this is job \"mine\"")) << other_job->err();
  auto other_size = node(1, 3, {"--rdzv-id", "mine", "PROBE"});
  EXPECT_EQ(other_size->wait(), 2);
  EXPECT_TRUE(has(other_size->err(), "it has --nnodes 3, node 0 has --nnodes 2")) << other_size->err();
  auto second = node(1, 2, {"--rdzv-id", "mine", "PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(NodesTest, APortHeldByAnotherProgramIsNamed) {
  const base::Fd listener = base::listen_on(base::Reach::Everyone, reservation_.port());
  auto first = node(0, 2, {"PROBE"});
  EXPECT_EQ(first->wait(), 1);
  EXPECT_TRUE(has(first->err(), "cannot open TCP port " + port())) << first->err();
  auto second = node(1, 2, {"--timeout", "0.5", "PROBE"});
  EXPECT_EQ(second->wait(), 1);
  EXPECT_TRUE(has(second->err(), "found no agent of this job at 127.0.0.1:" + port())) << second->err();
  EXPECT_TRUE(has(second->err(), "does not answer")) << second->err();
}

TEST_F(NodesTest, RanksByArrival) {
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 3; ++i) nodes.push_back(arriving(3, {"PROBE", "env"}));
  std::string all;
  for (auto& process : nodes) {
    EXPECT_EQ(process->wait(), 0) << process->err();
    all += process->out();
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count(all, fmt::format("[rank {0}] RANK={0}\n", rank)), 1U) << all;
    EXPECT_EQ(count(all, fmt::format("[rank {0}] NODE_RANK={0}\n", rank)), 1U) << all;
  }
  EXPECT_EQ(count(all, "MASTER_PORT=" + port() + "\n"), 3U);
}

TEST_F(NodesTest, AProgramThatIsMissingOnOneNodeEndsAll) {
  auto first = node(0, 2, {"PROBE", "say=started"});
  auto second = node(1, 2, {path("missing")});
  EXPECT_EQ(second->wait(), 127);
  EXPECT_EQ(first->wait(), 127);
  EXPECT_TRUE(has(second->err(), "cannot start \"" + path("missing") + "\"")) << second->err();
  EXPECT_TRUE(has(first->err(), "node 1 (")) << first->err();
  EXPECT_TRUE(has(first->err(), "cannot take part: cannot start")) << first->err();
  EXPECT_EQ(first->out(), "");
}

TEST_F(NodesTest, CtrlCWhileWaitingForTheOthers) {
  auto first = node(0, 2, {"PROBE"});
  auto lonely =
      run({"--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", "1", "PROBE"});
  ASSERT_GT(agent_of(*first), 0);
  ASSERT_GT(agent_of(*lonely), 0);
  first->signal(SIGINT);
  lonely->signal(SIGTERM);
  EXPECT_EQ(first->wait(), 130);
  EXPECT_EQ(lonely->wait(), 143);
}

TEST_F(NodesTest, ANodeThatDisconnectsBeforeTheStartMayJoinAgain) {
  auto first = node(0, 3, {"PROBE", "say=fine"});
  { const auto early = member({.nnodes = 3, .node_rank = 1, .host = "early"}); }
  EXPECT_TRUE(first->wait_for_text("node 1 (early) disconnected before the job started"));
  auto second = node(1, 3, {"PROBE", "say=fine"});
  auto third = node(2, 3, {"PROBE", "say=fine"});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(third->wait(), 0) << third->err();
}

TEST_F(NodesTest, ANodeThatSendsAnInvalidLineIsLost) {
  auto first = node(0, 2, {"PROBE", "say=ready", "hang"});
  const auto strange = member({.nnodes = 2, .node_rank = 1, .host = "strange"});
  ASSERT_TRUE(first->wait_for_text("ready"));
  strange->send("{}");
  EXPECT_EQ(first->wait(), 1);
  EXPECT_TRUE(has(first->err(), "node 1 (strange) is lost: it sent a line that is not part of the protocol"))
      << first->err();
}

}  // namespace
}  // namespace lockstep::launch::testing
