// Signals to `lockstep run`: forwarding, grace period, exit status.
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

namespace lockstep::launch::testing {
namespace {

using namespace std::chrono_literals;

class SignalTest : public LaunchTest {
 protected:
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  static bool ready(Process& job, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!job.wait_for_text(fmt::format("[rank {}] ready", rank))) return false;
    }
    return true;
  }
};

TEST_F(SignalTest, WorkersMayFinishAfterSigterm) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "leave=TERM", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 2));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_EQ(count(job->out(), "got TERM"), 2U) << job->out();
  EXPECT_TRUE(has(job->err(), "lockstep run: SIGTERM: stopping rank 0-1; they have 30 s\n")) << job->err();
  EXPECT_FALSE(has(job->err(), "exited with")) << job->err();
}

TEST_F(SignalTest, SigintReachesEachWorkerOnce) {
  auto job = run({"--nproc-per-node", "2", "--grace-period", "1", "PROBE", "tell=INT", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 2));
  job->signal(SIGINT);
  EXPECT_EQ(job->wait(), 130);
  EXPECT_EQ(count(job->out(), "got INT"), 2U) << job->out();
  EXPECT_TRUE(has(job->err(), "did not end within 1 s: killed")) << job->err();
}

TEST_F(SignalTest, CtrlCAtATerminalReachesEachWorkerOnce) {
  // As a shell does: send the signal to the whole process group of the command.
  auto job = start({"/usr/bin/setsid", "--wait", LOCKSTEP_BINARY, "run", "--grace-period", "1", PROBE_BINARY,
                    "tell=INT", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  // Find the guard, which like the worker leads a session now.
  pid_t guard = 0;
  for (const pid_t pid : marked()) {
    std::error_code gone;
    const auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), gone);
    if (::getsid(pid) == pid && program == std::filesystem::canonical(LOCKSTEP_BINARY)) guard = pid;
  }
  ASSERT_GT(guard, 0);
  ::kill(-guard, SIGINT);
  job->wait();
  EXPECT_EQ(count(job->out(), "got INT"), 1U) << job->out();
}

TEST_F(SignalTest, AWorkerThatIgnoresSigtermIsKilledAfterTheGracePeriod) {
  auto job = run({"--grace-period", "0.3", "PROBE", "ignore=TERM", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_TRUE(has(job->err(), "rank 0 did not end within 0.3 s: killed")) << job->err();
}

TEST_F(SignalTest, TheGracePeriodAlsoHoldsAfterAFailure) {
  auto job = run({"--nproc-per-node", "2", "--grace-period", "0.3", "PROBE", "ignore=TERM", "say=ready",
                  "r1:await=" + path("go"), "r1:exit=9", "hang"});
  ASSERT_TRUE(ready(*job, 2));
  std::filesystem::create_directory(path("go"));
  EXPECT_EQ(job->wait(), 9);
  EXPECT_TRUE(has(job->err(), "rank 0 did not end within 0.3 s: killed")) << job->err();
}

TEST_F(SignalTest, ASecondCtrlCKillsAtOnce) {
  auto job = run({"PROBE", "ignore=INT", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGINT);
  ASSERT_TRUE(job->wait_for_text("Ctrl-C again kills them"));
  // Repeat it until it is old enough to count as a second signal.
  eventually([&] {
    job->signal(SIGINT);
    return !job->running();
  });
  EXPECT_EQ(job->wait(), 130);
  EXPECT_TRUE(has(job->err(), "SIGINT again: killing the workers")) << job->err();
}

TEST_F(SignalTest, ASecondCtrlCDoesNotWaitForWhatTheWorkersLeave) {
  // The grandchild would print that it received SIGTERM.
  auto job = run({"PROBE", "tell=TERM", "grandchild", "ignore=INT", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGINT);
  ASSERT_TRUE(job->wait_for_text("Ctrl-C again kills them"));
  eventually([&] {
    job->signal(SIGINT);
    return !job->running();
  });
  EXPECT_EQ(job->wait(), 130);
  EXPECT_FALSE(has(job->out(), "got TERM")) << job->out();
}

TEST_F(SignalTest, ASecondCtrlCEndsTheWaitForWhatTheWorkersLeft) {
  auto job = run({"PROBE", "tell=TERM", "grandchild", "leave=INT", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGINT);
  // The worker has ended, and the grandchild has received SIGTERM.
  ASSERT_TRUE(job->wait_for_text("got TERM"));
  eventually([&] {
    job->signal(SIGINT);
    return !job->running();
  });
  EXPECT_EQ(job->wait(), 130);
  EXPECT_TRUE(has(job->err(), "SIGINT again: killing the workers")) << job->err();
}

TEST_F(SignalTest, UserSignalsAreOnlyForwarded) {
  auto job =
      run({"--nproc-per-node", "2", "PROBE", "tell=USR1", "tell=USR2", "say=ready", "await=" + path("go")});
  ASSERT_TRUE(ready(*job, 2));
  job->signal(SIGUSR1);
  ASSERT_TRUE(job->wait_for_text("[rank 0] got USR1") && job->wait_for_text("[rank 1] got USR1"));
  job->signal(SIGUSR2);
  ASSERT_TRUE(job->wait_for_text("[rank 0] got USR2") && job->wait_for_text("[rank 1] got USR2"));
  std::filesystem::create_directory(path("go"));
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(count(job->out(), "got USR1"), 2U);
  EXPECT_EQ(job->err(), "");
}

TEST_F(SignalTest, NoRestartAfterASignalOfTheUser) {
  auto job = run({"--max-restarts", "3", "PROBE", "say=ready", "hang"});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_EQ(count(job->out(), "ready"), 1U);
}

TEST_F(SignalTest, CtrlZStopsTheWorkersAndFgContinuesThem) {
  auto job = run({"PROBE", "pid", "say=ready", "await=" + path("go")});
  ASSERT_TRUE(ready(*job, 1));
  const pid_t worker = number_after(job->out(), "pid");
  const auto state = [](pid_t pid) {
    const auto stat = read_whole(fmt::format("/proc/{}/stat", pid));
    return stat[stat.rfind(')') + 2];
  };
  job->signal(SIGTSTP);
  EXPECT_TRUE(eventually([&] { return state(worker) == 'T' && state(job->pid()) == 'T'; }));
  job->signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return state(worker) != 'T'; }));
  std::filesystem::create_directory(path("go"));
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(SignalTest, AWorkersScriptAndItsProgramBothGetTheSignal) {
  auto job = run({"/bin/sh", "-c", fmt::format("{} leave=TERM say=ready hang; exit 0", PROBE_BINARY)});
  ASSERT_TRUE(ready(*job, 1));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_TRUE(has(job->out(), "got TERM")) << job->out();
}

}  // namespace
}  // namespace lockstep::launch::testing
