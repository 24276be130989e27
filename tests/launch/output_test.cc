// How `lockstep run` handles the output of the workers.
#include <csignal>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

#include "harness.h"

namespace lockstep::launch::testing {
namespace {

using namespace std::chrono_literals;
using Out = StartOptions::Out;

class OutputTest : public LaunchTest {
 protected:
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(OutputTest, StreamsStayApartAndCarryTheRank) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "say=to out", "err=to err"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(count(job->out(), "[rank 0] to out\n"), 1U) << job->out();
  EXPECT_EQ(count(job->out(), "[rank 1] to out\n"), 1U) << job->out();
  EXPECT_EQ(count(job->err(), "[rank 0] to err\n"), 1U) << job->err();
  EXPECT_EQ(count(job->err(), "[rank 1] to err\n"), 1U) << job->err();
  EXPECT_FALSE(has(job->out() + job->err(), "\x1b"));
}

TEST_F(OutputTest, NoLineIsTornOrLost) {
  constexpr int kLines = 2000;
  auto job = run({"--nproc-per-node", "4", "PROBE", fmt::format("lines={}", kLines)});
  ASSERT_EQ(job->wait(), 0);
  std::vector<int> next(4, 0);
  for (const auto& line : lines_of(job->out())) {
    int prefix = -1, number = -1, rank = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] line %d of rank %d ", &prefix, &number, &rank), 3) << line;
    ASSERT_EQ(prefix, rank);
    ASSERT_TRUE(line.ends_with(" end")) << line;
    ASSERT_EQ(number, next[static_cast<size_t>(rank)]++);
  }
  EXPECT_EQ(next, std::vector<int>(4, kLines));
}

TEST_F(OutputTest, ColourOnATerminalOnly) {
  auto coloured = run({"--nproc-per-node", "2", "PROBE", "say=hello"},
                      {.environment = {{"TERM", "xterm"}}, .out = Out::Terminal});
  ASSERT_EQ(coloured->wait(), 0);
  EXPECT_TRUE(has(coloured->out(), "\x1b[36m[rank 0]\x1b[0m hello")) << coloured->out();
  auto plain = run({"PROBE", "say=hello"},
                   {.environment = {{"TERM", "xterm"}, {"NO_COLOR", "1"}}, .out = Out::Terminal});
  ASSERT_EQ(plain->wait(), 0);
  EXPECT_TRUE(has(plain->out(), "[rank 0] hello")) << plain->out();
  EXPECT_FALSE(has(plain->out(), "\x1b"));
}

TEST_F(OutputTest, AnUnfinishedLineIsShownSoon) {
  auto job = run({"PROBE", "raw=waiting for input", "hang"});
  EXPECT_TRUE(job->wait_for_text("[rank 0] waiting for input"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
}

TEST_F(OutputTest, LongLinesAndAllBytesPass) {
  auto job = run({"PROBE", "longline=1000000", "bytes", "raw=no newline at the end"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(count(job->out(), "y"), 1000001U);  // "bytes" prints one as well
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto newline = all.find('\n');
  EXPECT_TRUE(has(job->out(), all.substr(newline + 1))) << "bytes after the newline";
  EXPECT_TRUE(has(job->out(), "no newline at the end"));
}

TEST_F(OutputTest, AFilePerRank) {
  const auto logs = path("deep/logs");
  auto job = run({"--nproc-per-node", "2", "--log-dir", logs, "PROBE", "say=one", "err=two"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_TRUE(has(job->out(), "[rank 1] one\n"));
  for (int rank = 0; rank < 2; ++rank) {
    const auto text = read_whole(fmt::format("{}/rank_{}.log", logs, rank));
    EXPECT_TRUE(text == "one\ntwo\n" || text == "two\none\n") << text;
  }
  auto again = run({"--nproc-per-node", "2", "--log-dir", logs, "PROBE", "say=three"});
  ASSERT_EQ(again->wait(), 0);
  const auto text = read_whole(logs + "/rank_0.log");
  EXPECT_TRUE(has(text, "=== lockstep run: attempt 1, ")) << text;
  EXPECT_TRUE(text.ends_with("three\n")) << text;
}

TEST_F(OutputTest, TeeChoosesWhatIsShown) {
  auto none = run({"-n", "1", "--log-dir", path("a"), "--tee", "0", "PROBE", "say=one", "err=two"});
  ASSERT_EQ(none->wait(), 0);
  EXPECT_EQ(none->out() + none->err(), "");
  auto errors = run({"-n", "1", "--log-dir", path("a"), "--tee", "2", "PROBE", "say=one", "err=two"});
  ASSERT_EQ(errors->wait(), 0);
  EXPECT_EQ(errors->out(), "");
  EXPECT_EQ(errors->err(), "[rank 0] two\n");
  auto by_rank =
      run({"--nproc-per-node", "2", "--log-dir", path("a"), "--tee", "1:1", "PROBE", "say=one", "err=two"});
  ASSERT_EQ(by_rank->wait(), 0);
  EXPECT_EQ(by_rank->out(), "[rank 1] one\n");
  EXPECT_EQ(by_rank->err(), "");
  // Without a log there would be no output at all.
  auto no_log = run({"--tee", "0", "PROBE", "say=one"});
  ASSERT_EQ(no_log->wait(), 0);
  EXPECT_EQ(no_log->out(), "[rank 0] one\n");
}

TEST_F(OutputTest, ALogFolderThatCannotBeWrittenStopsTheStart) {
  std::ofstream(path("file")) << "";
  auto job = run({"--log-dir", path("file") + "/logs", "PROBE", "say=started"});
  EXPECT_EQ(job->wait(), 1);
  EXPECT_TRUE(has(job->err(), "cannot write log files to " + path("file"))) << job->err();
  EXPECT_EQ(job->out(), "");
}

TEST_F(OutputTest, AFullDiskIsAWarning) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  std::filesystem::create_symlink("/dev/full", path("rank_0.log"));
  auto job = run({"--log-dir", folder_.string(), "PROBE", "lines=500", "say=last"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(count(job->err(), "No space left on device"), 1U) << job->err();
  EXPECT_TRUE(has(job->out(), "[rank 0] last\n"));
}

TEST_F(OutputTest, AClosedStdoutDoesNotEndTheJob) {
  auto job = run({"--log-dir", folder_.string(), "PROBE", "lines=5000", "say=last"}, {.out = Out::Closed});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(count(job->err(), "stdout is closed"), 1U) << job->err();
  EXPECT_TRUE(read_whole(path("rank_0.log")).ends_with("last\n"));
}

TEST_F(OutputTest, SignalsAreHandledWhileNobodyReads) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "flood"}, {.out = Out::NobodyReads});
  const pid_t agent = agent_of(*job);
  // The pipe is full once both workers, the two processes besides the guard and the agent, block in their
  // writes.
  ASSERT_TRUE(eventually([&] {
    int blocked = 0;
    for (const pid_t pid : marked()) {
      const auto where = read_whole(fmt::format("/proc/{}/wchan", pid));
      if (pid != agent && pid != job->pid() && (where.find("pipe") != std::string::npos || where == "0"))
        ++blocked;
    }
    return blocked == 2;
  }));
  job->signal(SIGTERM);
  // The workers end at once; the agent waits briefly for a reader of the remaining output.
  EXPECT_TRUE(eventually([&] { return marked().size() <= 2; }));
  EXPECT_EQ(job->wait(), 143);
}

TEST_F(OutputTest, TheReasonPrecedesTheOutputOfTheStoppedRanks) {
  auto job = run({"--nproc-per-node", "2", "PROBE", "r0:leave=TERM", "r0:touch=" + path("ready"),
                  "r1:await=" + path("ready"), "r1:exit=3", "hang"},
                 {.out = Out::Terminal});
  EXPECT_EQ(job->wait(), 3);
  const auto out = job->out();
  EXPECT_LT(out.find("rank 1 exited with status 3"), out.find("got TERM")) << out;
  EXPECT_TRUE(has(out, "got TERM")) << out;
}

TEST_F(OutputTest, LargeOutputArrivesCompletely) {
  auto job = run({"PROBE", "lines=20000", "say=last"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(lines_of(job->out()).size(), 20001U);
}

}  // namespace
}  // namespace lockstep::launch::testing
