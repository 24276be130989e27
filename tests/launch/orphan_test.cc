// No process survives the launcher, whichever of its two processes is killed.
#include <csignal>
#include <fmt/format.h>

#include "harness.h"

namespace lockstep::launch::testing {
namespace {

using namespace std::chrono_literals;

class OrphanTest : public LaunchTest {
 protected:
  // Starts two workers that ignore SIGTERM, each with a child in its own session. Returns all four pids.
  std::vector<pid_t> start_stubborn() {
    job_ = run({"--nproc-per-node", "2", "PROBE", "ignore=TERM", "pid", "grandchild", "say=ready", "hang"});
    if (!job_->wait_for_text("[rank 0] ready") || !job_->wait_for_text("[rank 1] ready")) return {};
    std::vector<pid_t> pids;
    for (const auto& line : lines_of(job_->out())) {
      if (const pid_t pid = number_after(line, "pid")) pids.push_back(pid);
      if (const pid_t pid = number_after(line, "grandchild")) pids.push_back(pid);
    }
    return pids;
  }
  static bool all_gone(const std::vector<pid_t>& pids) {
    return eventually([&] { return std::none_of(pids.begin(), pids.end(), alive); }, 10s);
  }
  std::unique_ptr<Process> job_;
};

TEST_F(OrphanTest, GuardKilled) {
  const auto pids = start_stubborn();
  ASSERT_EQ(pids.size(), 4U);
  const pid_t agent = agent_of(*job_);
  job_->signal(SIGKILL);
  EXPECT_EQ(job_->wait(), 137);
  EXPECT_TRUE(all_gone(pids));
  EXPECT_TRUE(all_gone({agent}));
}

TEST_F(OrphanTest, AgentKilled) {
  const auto pids = start_stubborn();
  ASSERT_EQ(pids.size(), 4U);
  const pid_t agent = agent_of(*job_);
  ASSERT_GT(agent, 0);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job_->wait(), 137);
  EXPECT_TRUE(all_gone(pids));
  EXPECT_NE(job_->err().find(fmt::format("the agent of this job (pid {}) was killed by signal 9", agent)),
            std::string::npos)
      << job_->err();
}

TEST_F(OrphanTest, BothKilledAtOnce) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "ignore=TERM", "pid", "say=ready", "hang"});
  ASSERT_TRUE(job->wait_for_text("[rank 0] ready") && job->wait_for_text("[rank 1] ready"));
  const pid_t agent = agent_of(*job);
  ::kill(agent, SIGSTOP);  // so that it cannot react to the end of the guard
  job->signal(SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job->wait(), 137);
  EXPECT_TRUE(eventually([&] { return marked().empty(); }, 10s));
}

TEST_F(OrphanTest, WhatAWorkerLeavesBehindIsEnded) {
  auto job = run({"PROBE", "grandchild"});
  EXPECT_EQ(job->wait(), 0);
  const pid_t grandchild = number_after(job->out(), "grandchild");
  ASSERT_GT(grandchild, 0);
  EXPECT_FALSE(alive(grandchild));
}

TEST_F(OrphanTest, ALeftoverThatIgnoresSigtermIsKilled) {
  auto job = run({"PROBE", "ignore=TERM", "grandchild"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_FALSE(alive(number_after(job->out(), "grandchild")));
}

TEST_F(OrphanTest, NothingIsLeftAfterARestart) {
  auto job = run({"--max-restarts", "1", "PROBE", "grandchild", "t0:exit=1", "say=second"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(count(job->out(), "grandchild "), 2U);
}

TEST_F(OrphanTest, GuardKilledWhileTheOutputIsBlocked) {
  auto job = run({"PROBE", "flood"}, {.out = StartOptions::Out::NobodyReads});
  ASSERT_GT(agent_of(*job), 0);
  ASSERT_TRUE(eventually([&] { return marked().size() == 3; }));
  job->signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return marked().empty(); }, 10s));
}

}  // namespace
}  // namespace lockstep::launch::testing
