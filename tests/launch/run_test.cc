// `lockstep run` on one node: environment, exit status, report, bad input, restarts.
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <set>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/port.h"
#include "harness.h"
#include "launch/limits.h"

namespace lockstep::launch::testing {
namespace {

using namespace std::chrono_literals;

class RunTest : public LaunchTest {
 protected:
  // The value that a rank printed for a variable; "(unset)" when it did not.
  static std::string value(const std::string& out, int rank, const std::string& name) {
    const auto begin = fmt::format("[rank {}] {}=", rank, name);
    for (const auto& line : lines_of(out)) {
      if (line.starts_with(begin)) return line.substr(begin.size());
    }
    return "(unset)";
  }
  // The limit of open files of a worker: the hard limit that it inherits, at most kMostWorkerFiles.
  static rlim_t most_files() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    return std::min<rlim_t>(files.rlim_max, kMostWorkerFiles);
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(RunTest, EachWorkerGetsTorchrunsEnvironment) {
  auto job = run({"--nproc-per-node", "4", "--max-restarts", "2", "--rdzv-id", "job7", "PROBE", "env"});
  ASSERT_EQ(job->wait(), 0) << job->err();
  const auto out = job->out();
  for (int rank = 0; rank < 4; ++rank) {
    const auto is = [&](const std::string& name, const std::string& wanted) {
      EXPECT_EQ(value(out, rank, name), wanted) << name << " of rank " << rank;
    };
    is("RANK", std::to_string(rank));
    is("LOCAL_RANK", std::to_string(rank));
    is("ROLE_RANK", std::to_string(rank));
    is("WORLD_SIZE", "4");
    is("LOCAL_WORLD_SIZE", "4");
    is("ROLE_WORLD_SIZE", "4");
    is("GROUP_RANK", "0");
    is("NODE_RANK", "0");
    is("GROUP_WORLD_SIZE", "1");
    is("ROLE_NAME", "default");
    is("MASTER_ADDR", "127.0.0.1");
    is("MASTER_PORT", value(out, 0, "MASTER_PORT"));
    is("TORCHELASTIC_RESTART_COUNT", "0");
    is("TORCHELASTIC_MAX_RESTARTS", "2");
    is("TORCHELASTIC_RUN_ID", "job7");
    is("TORCHELASTIC_USE_AGENT_STORE", "False");
    is("PYTHONUNBUFFERED", "1");
    is("LOCKSTEP_RUN", "1");
    EXPECT_NE(value(out, rank, "OMP_NUM_THREADS"), "(unset)");
    EXPECT_NE(value(out, rank, "LOCKSTEP_NOTE_FD"), "(unset)");
  }
  EXPECT_GT(std::stoi(value(out, 0, "MASTER_PORT")), 0);
}

// The kernel's autogroups divide the CPUs among sessions.
TEST_F(RunTest, EachWorkerHasASessionOfItsOwn) {
  auto job =
      run({"--nproc-per-node", "2", "sh", "-c", "echo pid=$$; read -r stat </proc/$$/stat; echo stat=$stat"});
  ASSERT_EQ(job->wait(), 0) << job->err();
  for (int rank = 0; rank < 2; ++rank) {
    const auto pid = value(job->out(), rank, "pid");
    // pid (name) state parent group session …
    std::istringstream stat(value(job->out(), rank, "stat"));
    std::string field;
    for (int i = 0; i < 6; ++i) stat >> field;
    EXPECT_EQ(field, pid) << job->out();
  }
}

TEST_F(RunTest, WhatTheUserHasSetStays) {
  auto job = run(
      {"--no-bind", "--no-heap", "PROBE", "env"},
      {.environment = {{"OMP_NUM_THREADS", "7"}, {"PYTHONUNBUFFERED", "x"}, {"RANK", "9"}, {"MINE", "a b"}}});
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(value(job->out(), 0, "OMP_NUM_THREADS"), "7");
  EXPECT_EQ(value(job->out(), 0, "PYTHONUNBUFFERED"), "x");
  EXPECT_EQ(value(job->out(), 0, "MINE"), "a b");
  EXPECT_EQ(value(job->out(), 0, "RANK"), "0");
  EXPECT_EQ(value(job->out(), 0, "LOCKSTEP_BIND"), "0");
  EXPECT_EQ(value(job->out(), 0, "LOCKSTEP_HEAP"), "0");
}

TEST_F(RunTest, ThreadsAreSetOrLeftUnchanged) {
  auto two = run({"--threads", "2", "PROBE", "env"});
  ASSERT_EQ(two->wait(), 0) << two->err();
  EXPECT_EQ(value(two->out(), 0, "OMP_NUM_THREADS"), "2");
  auto none = run({"--threads", "0", "PROBE", "env"});
  ASSERT_EQ(none->wait(), 0) << none->err();
  EXPECT_EQ(value(none->out(), 0, "OMP_NUM_THREADS"), "(unset)");
}

TEST_F(RunTest, ArgumentsReachTheProgramUntouched) {
  auto job = run(
      {"--nproc_per_node", "1", "--", "PROBE", "args", "--nproc-per-node", "5", "--", "-h", "", "a b", "*"});
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(
      job->out(),
      "[rank 0] <--nproc-per-node>\n[rank 0] <5>\n[rank 0] <-->\n[rank 0] <-h>\n[rank 0] <>\n[rank 0] <a b>\n"
      "[rank 0] <*>\n");
}

TEST_F(RunTest, TheFailedRankIsNamedAndItsStatusReturned) {
  auto job =
      run({"--nproc-per-node", "4", "PROBE", "say=ready", "r2:err=bad news", "r2:pid", "r2:exit=3", "hang"});
  EXPECT_EQ(job->wait(), 3);
  const auto err = job->err();
  EXPECT_TRUE(has(err, "lockstep run: rank 2 exited with status 3\n")) << err;
  EXPECT_TRUE(has(err, "  rank 2 of 4, local rank 2, host ")) << err;
  EXPECT_TRUE(has(err, fmt::format("pid {}\n", number_after(job->out(), "pid")))) << err;
  EXPECT_TRUE(has(err, "    | ready\n")) << err;
  EXPECT_TRUE(has(err, "    | bad news\n")) << err;
  EXPECT_TRUE(has(err, "  stopping the other ranks: 0-1, 3\n")) << err;
  EXPECT_TRUE(has(err, "\nhint: ")) << err;
}

TEST_F(RunTest, ASegmentationFault) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "r1:segv", "hang"});
  EXPECT_EQ(job->wait(), 139);
  EXPECT_TRUE(has(job->err(), "rank 1 was killed by signal 11 (Segmentation fault)")) << job->err();
}

TEST_F(RunTest, AKilledWorker) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "r1:pid", "hang"});
  ASSERT_TRUE(job->wait_for_text("[rank 1] pid"));
  ::kill(number_after(job->out(), "pid"), SIGKILL);
  EXPECT_EQ(job->wait(), 137);
  EXPECT_TRUE(has(job->err(), "rank 1 was killed by signal 9 (Killed)")) << job->err();
  EXPECT_TRUE(has(job->err(), "out-of-memory")) << job->err();
}

TEST_F(RunTest, TheCauseIsReportedNotItsConsequence) {
  // Rank 0 notices the loss of rank 1 and ends first; rank 1 ends a little later.
  const auto gone = path("gone");
  auto job = run({"--nproc-per-node", "3", "PROBE", "r0:note=PeerLostError,rank 1 is gone",
                  "r0:touch=" + gone, "r0:exit=1", "r1:await=" + gone, "r1:sleep=50",
                  "r1:note=MismatchError,shapes differ", "r1:exit=5", "hang"});
  EXPECT_EQ(job->wait(), 5);
  EXPECT_TRUE(has(job->err(), "lockstep run: rank 1 exited with status 5\n")) << job->err();
  EXPECT_TRUE(has(job->err(), "    MismatchError: shapes differ\n")) << job->err();
  EXPECT_FALSE(has(job->err(), "lockstep run: rank 0")) << job->err();
}

TEST_F(RunTest, AConsequenceAloneIsReported) {
  auto job = run(
      {"--nproc-per-node", "2", "PROBE", "r0:note=TimeoutError,rank 1 did not answer", "r0:exit=1", "hang"});
  EXPECT_EQ(job->wait(), 1);
  EXPECT_TRUE(has(job->err(), "TimeoutError: rank 1 did not answer")) << job->err();
}

TEST_F(RunTest, ARankThatLeavesTheOthersIsNamedNotTheOthers) {
  const auto left = path("left");
  auto job = run({"--nproc-per-node", "3", "PROBE", "r1:say=enough", "r1:pid", "r1:touch=" + left,
                  "r1:exit=0", "await=" + left, "sleep=50", "r0:err=it is gone",
                  "r0:blame=PeerLostError,1,all_reduce failed: rank 1 has ended", "r0:exit=4", "hang"});
  EXPECT_EQ(job->wait(), 4);
  const auto err = job->err();
  EXPECT_TRUE(
      err.starts_with("lockstep run: rank 1 ended with status 0 while the others were still working: ") ||
      has(err, "\nlockstep run: rank 1 ended with status 0 while the others were still working: "))
      << err;
  EXPECT_FALSE(has(err, "lockstep run: rank 0")) << err;
  EXPECT_TRUE(has(err, fmt::format("pid {}\n", number_after(job->out(), "pid")))) << err;
  EXPECT_TRUE(has(err, "  rank 0 exited with status 4 because of it (host ")) << err;
  EXPECT_TRUE(has(err, "    PeerLostError: all_reduce failed: rank 1 has ended\n")) << err;
  EXPECT_TRUE(has(err, "    | it is gone\n")) << err;
  EXPECT_TRUE(has(err, "  stopping the ranks that are left: 2\n")) << err;
}

TEST_F(RunTest, AnUncaughtErrorIsPrintedOnce) {
  const auto logs = path("logs");
  auto job =
      run({"-n", "2", "--log-dir", logs, "PROBE", "r1:say=about to fail", "r1:throw=no such batch", "hang"});
  EXPECT_EQ(job->wait(), 1);
  const auto err = job->err();
  EXPECT_TRUE(err.starts_with("lockstep run: rank 1 failed: UsageError: no such batch\n")) << err;
  EXPECT_EQ(count(err, "no such batch"), 1U) << err;
  for (const char* word : {"core dump", "terminate", "hint"}) EXPECT_FALSE(has(err, word)) << err;
  EXPECT_EQ(read_whole(logs + "/rank_1.log"), "about to fail\nUsageError: no such batch\n");
  // If all ranks throw the same error, it is printed once.
  auto all = run({"-n", "3", "PROBE", "throw=no such batch"});
  EXPECT_EQ(all->wait(), 1);
  EXPECT_EQ(count(all->err(), "no such batch"), 1U) << all->err();
}

TEST_F(RunTest, AnUncaughtForeignExceptionIsLeftToTheProgram) {
  auto job = run({"-n", "1", "PROBE", "throwother=what is this"});
  EXPECT_EQ(job->wait(), 128 + SIGABRT);
  EXPECT_TRUE(has(job->err(), "[rank 0]   what():  what is this\n")) << job->err();
  EXPECT_TRUE(has(job->err(), "core dump")) << job->err();
}

TEST_F(RunTest, WithoutALauncherTheProcessPrintsItsError) {
  auto alone = start({PROBE_BINARY, "say=about to fail", "throw=no such batch"});
  EXPECT_EQ(alone->wait(), 1);
  EXPECT_EQ(alone->err(), "lockstep error: UsageError: no such batch\n");
  EXPECT_EQ(alone->out(), "about to fail\n");
  // Also under the launcher, if the note that it reads contains another error.
  auto second = run({"-n", "1", "PROBE", "note=MismatchError,caught", "throw=no such batch"});
  EXPECT_EQ(second->wait(), 1);
  EXPECT_EQ(count(second->err(), "[rank 0] lockstep error: UsageError: no such batch\n"), 1U)
      << second->err();
}

TEST_F(RunTest, OneRankByDefaultIsAnnounced) {
  const std::string line = "lockstep run: starting 1 rank; -n N (--nproc-per-node N) starts N";
  auto job = run({"PROBE", "say=hello"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_TRUE(job->err().starts_with(line)) << job->err();
  EXPECT_EQ(lines_of(job->err()).size(), 1U);
  for (const Words& words : {Words{"-n", "1", "PROBE"}, Words{"-np", "2", "PROBE"}}) {
    auto told = run(words);
    EXPECT_EQ(told->wait(), 0);
    EXPECT_EQ(told->err(), "");
  }
  auto preset = run({"PROBE"}, {.environment = {{"PET_NPROC_PER_NODE", "1"}}});
  EXPECT_EQ(preset->wait(), 0);
  EXPECT_EQ(preset->err(), "");
}

TEST_F(RunTest, ARankThatDoesNotAnswerIsNamedNotTheOthers) {
  const auto stopped = path("stopped");
  auto job = run({"--nproc-per-node", "3", "PROBE", "r1:touch=" + stopped, "r1:stop", "await=" + stopped,
                  "r0:blame=TimeoutError,1,no answer", "r2:blame=TimeoutError,1,no answer", "exit=1"});
  EXPECT_EQ(job->wait(), 1);
  EXPECT_TRUE(has(job->err(), "lockstep run: rank 1 did not answer\n")) << job->err();
  EXPECT_TRUE(has(job->err(), "  rank 1 of 3, local rank 1, host ")) << job->err();
  EXPECT_TRUE(has(job->err(), "exited with status 1 because of it")) << job->err();
}

TEST_F(RunTest, ARankThatLeavesTheOthersCountsAsAFailureForRestarts) {
  const auto left = path("left");
  auto job = run({"--nproc-per-node", "2", "--max-restarts", "1", "PROBE", "t1:say=again", "t1:exit=0",
                  "r1:touch=" + left, "r1:exit=0", "await=" + left, "sleep=50",
                  "blame=PeerLostError,1,rank 1 has ended", "exit=1"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_TRUE(has(job->err(), "lockstep run: rank 1 ended with status 0")) << job->err();
  EXPECT_TRUE(has(job->err(), "restart 1 of 1 follows")) << job->err();
  EXPECT_EQ(count(job->out(), "again"), 2U) << job->out();
}

TEST_F(RunTest, EachJobHasATokenOfItsOwnUnlessTheUserGaveOne) {
  auto one = run({"--nproc-per-node", "2", "PROBE", "env"});
  auto two = run({"PROBE", "env"});
  auto given = run({"PROBE", "env"}, {.environment = {{"LOCKSTEP_TOKEN", "given by the user"}}});
  ASSERT_EQ(one->wait(), 0) << one->err();
  ASSERT_EQ(two->wait(), 0) << two->err();
  ASSERT_EQ(given->wait(), 0) << given->err();
  const auto token = value(one->out(), 0, "LOCKSTEP_TOKEN");
  EXPECT_GE(token.size(), 32U);
  EXPECT_EQ(value(one->out(), 1, "LOCKSTEP_TOKEN"), token);
  EXPECT_NE(value(two->out(), 0, "LOCKSTEP_TOKEN"), token);
  EXPECT_EQ(value(given->out(), 0, "LOCKSTEP_TOKEN"), "given by the user");
}

TEST_F(RunTest, ATokenThatIsNotSecretIsRefused) {
  const auto expect = [&](const Words& words, const StartOptions& options, const std::string& part) {
    auto job = run(words, options);
    EXPECT_EQ(job->wait(), 2);
    EXPECT_TRUE(has(job->err(), part)) << job->err();
    EXPECT_EQ(job->out(), "");
  };
  expect({"PROBE", "env"}, {.environment = {{"LOCKSTEP_TOKEN", "short"}}}, "too short to be a secret");
  std::ofstream(path("open")) << std::string(32, 'x');
  ::chmod(path("open").c_str(), 0644);
  expect({"--token-file", path("open"), "PROBE", "env"}, {}, "other users may read or write it");
  expect({"--token-file", path("missing"), "PROBE", "env"}, {}, "No such file or directory");
}

TEST_F(RunTest, ManyNotesDoNotBlockAWorker) {
  std::vector<std::string> words{"PROBE"};
  for (int i = 0; i < 60; ++i) words.push_back("note=UsageError," + std::string(3000, 'x'));
  auto job = run(words);
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(RunTest, ProgramsThatCannotBeStarted) {
  std::ofstream(path("plain.txt")) << "text";
  std::ofstream(path("bad_interpreter")) << "#!/no/such/interpreter\n";
  ::chmod(path("bad_interpreter").c_str(), 0755);
  const auto expect = [&](const std::string& program, int status, const std::string& words) {
    auto job = run({"--nproc-per-node", "3", program});
    EXPECT_EQ(job->wait(), status) << program;
    EXPECT_TRUE(has(job->err(), "lockstep run: cannot start \"" + program + "\"")) << job->err();
    EXPECT_TRUE(has(job->err(), words)) << job->err();
    EXPECT_EQ(count(job->err(), "cannot start"), 1U) << job->err();
    EXPECT_EQ(job->out(), "");
  };
  expect(path("missing"), 127, "No such file or directory");
  expect("no-such-program-anywhere", 127, "no program of this name in PATH");
  expect(path("plain.txt"), 126, "chmod +x");
  expect(folder_.string(), 126, "Is a directory");
  expect(path("bad_interpreter"), 126, "interpreter");
}

TEST_F(RunTest, AScriptWithoutAnInterpreterLineIsRunByTheShell) {
  std::ofstream(path("script")) << "echo rank $RANK says $1\n";
  ::chmod(path("script").c_str(), 0755);
  auto job = run({path("script"), "hi"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->out(), "[rank 0] rank 0 says hi\n");
}

TEST_F(RunTest, UsageErrorsExitWith2) {
  for (const Words& words :
       {Words{}, Words{"--nproc-per-node", "0", "PROBE"}, Words{"--nproc-per-node", "-1", "PROBE"},
        Words{"--nproc-per-node", "abc", "PROBE"}, Words{"--nproc-per-node", "1000000", "PROBE"},
        Words{"--unknown", "PROBE"}, Words{"--nnodes", "1:2", "PROBE"}}) {
    auto job = run(words);
    EXPECT_EQ(job->wait(), 2);
    EXPECT_TRUE(job->err().starts_with("lockstep run: ")) << job->err();
    EXPECT_TRUE(has(job->err(), "\nhint: ")) << job->err();
    EXPECT_EQ(job->out(), "");
  }
  auto bad_switch = run({"PROBE"}, {.environment = {{"LOCKSTEP_BIND", "maybe"}}});
  EXPECT_EQ(bad_switch->wait(), 2);
  EXPECT_TRUE(has(bad_switch->err(), "LOCKSTEP_BIND")) << bad_switch->err();
}

TEST_F(RunTest, TheOtherCommandsOfTheBinary) {
  auto help = start({LOCKSTEP_BINARY, "--help"});
  EXPECT_EQ(help->wait(), 0);
  EXPECT_TRUE(has(help->out(), "run ")) << help->out();
  auto version = start({LOCKSTEP_BINARY, "--version"});
  EXPECT_EQ(version->wait(), 0);
  EXPECT_TRUE(version->out().starts_with("lockstep ")) << version->out();
  auto nothing = start({LOCKSTEP_BINARY});
  EXPECT_EQ(nothing->wait(), 2);
  auto unknown = start({LOCKSTEP_BINARY, "rnu"});
  EXPECT_EQ(unknown->wait(), 2);
  EXPECT_TRUE(has(unknown->err(), "did you mean lockstep run?")) << unknown->err();
}

TEST_F(RunTest, RestartsWithTheCountInTheEnvironment) {
  auto job = run({"--nproc-per-node", "2", "--max-restarts", "2", "PROBE", "env", "t0:r1:exit=4",
                  "t1:r0:segv", "t0:hang", "t1:hang", "say=third time"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(count(job->out(), "third time"), 2U);
  for (const char* attempt : {"0", "1", "2"}) {
    EXPECT_TRUE(has(job->out(), fmt::format("TORCHELASTIC_RESTART_COUNT={}\n", attempt)));
  }
  const auto err = job->err();
  EXPECT_TRUE(has(err, "rank 1 exited with status 4")) << err;
  EXPECT_TRUE(has(err, "restart 1 of 2 follows")) << err;
  EXPECT_TRUE(has(err, "lockstep run: restart 1 of 2\n")) << err;
  EXPECT_TRUE(has(err, "lockstep run: restart 2 of 2\n")) << err;
}

TEST_F(RunTest, AfterTheLastRestartTheFailureIsFinal) {
  auto job = run({"--max-restarts", "2", "PROBE", "say=here", "exit=6"});
  EXPECT_EQ(job->wait(), 6);
  EXPECT_EQ(count(job->out(), "here"), 3U);
  EXPECT_TRUE(has(job->err(), "after 2 restart(s) this is final")) << job->err();
}

TEST_F(RunTest, TwoJobsAtOnceGetDifferentPorts) {
  const auto go = path("go");
  auto one = run({"PROBE", "env", "await=" + go});
  auto two = run({"PROBE", "env", "await=" + go});
  ASSERT_TRUE(one->wait_for_text("WORLD_SIZE"));
  ASSERT_TRUE(two->wait_for_text("WORLD_SIZE"));
  EXPECT_NE(value(one->out(), 0, "MASTER_PORT"), value(two->out(), 0, "MASTER_PORT"));
  std::ofstream(go) << "";
  EXPECT_EQ(one->wait(), 0);
  EXPECT_EQ(two->wait(), 0);
}

TEST_F(RunTest, APortCanBeNamed) {
  const base::PortReservation reservation(base::Reach::ThisMachine);
  auto job = run({"--master-port", std::to_string(reservation.port()), "PROBE", "env"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(value(job->out(), 0, "MASTER_PORT"), std::to_string(reservation.port()));
}

TEST_F(RunTest, APortThatIsTakenIsNamed) {
  const base::Fd listener = base::listen_on(base::Reach::ThisMachine, 0);
  const auto port = std::to_string(base::local_port(listener));
  auto job = run({"--master-port", port, "PROBE", "say=started"});
  EXPECT_EQ(job->wait(), 1);
  EXPECT_TRUE(has(job->err(), "cannot open TCP port " + port)) << job->err();
  EXPECT_EQ(job->out(), "");
}

TEST_F(RunTest, ManyWorkersWithFewOpenFilesAllowed) {
  auto job = start({"/bin/sh", "-c",
                    std::string("ulimit -Sn 100; exec ") + LOCKSTEP_BINARY + " run --nproc-per-node 48 " +
                        PROBE_BINARY + " openfiles"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(count(job->out(), fmt::format("open files {}\n", most_files())), 48U) << job->out();
  auto too_few = start({"/bin/sh", "-c",
                        std::string("ulimit -n 100; exec ") + LOCKSTEP_BINARY + " run --nproc-per-node 48 " +
                            PROBE_BINARY + " openfiles"});
  EXPECT_EQ(too_few->wait(), 2);
  EXPECT_TRUE(has(too_few->err(), "ulimit -n")) << too_few->err();
}

TEST_F(RunTest, AWorkerMayOpenAsManyFilesAsTheHardLimitAllows) {
  const auto job_with = [&](const std::string& limits) {
    return start(
        {"/bin/sh", "-c", limits + "; exec " + LOCKSTEP_BINARY + " run " + PROBE_BINARY + " openfiles"});
  };
  if (most_files() < 200) GTEST_SKIP() << "the hard limit of open files is too low here";
  auto raised = job_with("ulimit -Sn 100; ulimit -Hn 200");
  EXPECT_EQ(raised->wait(), 0) << raised->err();
  EXPECT_EQ(raised->out(), "[rank 0] open files 200\n");
  auto untouched = job_with("ulimit -n 150");
  EXPECT_EQ(untouched->wait(), 0) << untouched->err();
  EXPECT_EQ(untouched->out(), "[rank 0] open files 150\n");
}

TEST_F(RunTest, WithoutStandardFiles) {
  auto job = start({"/bin/sh", "-c",
                    std::string("exec ") + LOCKSTEP_BINARY + " run --log-dir " + folder_.string() + " " +
                        PROBE_BINARY + " say=hello err=there <&- >&- 2>&-"});
  EXPECT_EQ(job->wait(), 0);
  const auto log = read_whole(path("rank_0.log"));
  EXPECT_TRUE(has(log, "hello\n")) << log;
  EXPECT_TRUE(has(log, "there\n")) << log;
}

}  // namespace
}  // namespace lockstep::launch::testing
