#include "launch/verdict.h"

#include <csignal>
#include <gtest/gtest.h>

#include "launch/environment.h"
#include "launch/report.h"

namespace lockstep::launch {
namespace {

Failure failure_of(int rank, const char* kind = nullptr) {
  Failure failure{.rank = rank, .wait_status = as_wait_status(1)};
  if (kind != nullptr) failure.note = base::Note{kind, "…"};
  return failure;
}

TEST(Verdict, TheFirstWithoutAConsequenceIsTheCause) {
  EXPECT_EQ(choose_cause({failure_of(3)}).rank, 3);
  EXPECT_EQ(choose_cause({failure_of(0), failure_of(1)}).rank, 0);
  EXPECT_EQ(choose_cause({failure_of(0, "PeerLostError"), failure_of(1)}).rank, 1);
  EXPECT_EQ(choose_cause({failure_of(0, "TimeoutError"), failure_of(2, "UsageError"), failure_of(1)}).rank,
            2);
}

TEST(Verdict, AmongConsequencesTheFirstSeen) {
  EXPECT_EQ(choose_cause({failure_of(2, "TimeoutError"), failure_of(1, "PeerLostError")}).rank, 2);
}

TEST(Verdict, PutsTheEndInWords) {
  EXPECT_EQ(describe_end(as_wait_status(3)), "exited with status 3");
  EXPECT_EQ(describe_end(SIGSEGV), "was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(exit_status(as_wait_status(3)), 3);
  EXPECT_EQ(exit_status(SIGKILL), 137);
  EXPECT_TRUE(succeeded(0));
  EXPECT_FALSE(succeeded(SIGTERM));
  EXPECT_NE(hint_for_end(SIGKILL).find("out-of-memory"), std::string::npos);
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
}

TEST(Report, SaysWhoHowAndWhatWasPrinted) {
  Failure failure{.rank = 2, .local_rank = 0, .host = "b", .pid = 77, .wait_status = SIGKILL};
  failure.note = base::Note{"MismatchError", "shapes differ\nhint: look"};
  failure.last_lines = {"one", "two"};
  EXPECT_EQ(failure_report(failure, {.world_size = 4, .stopping = {0, 1, 3}}),
            "lockstep run: rank 2 was killed by signal 9 (Killed)\n"
            "  rank 2 of 4, local rank 0, host b, pid 77\n"
            "  its error:\n"
            "    MismatchError: shapes differ\n"
            "    hint: look\n"
            "  its last lines:\n"
            "    | one\n"
            "    | two\n"
            "  stopping the other ranks: 0-1, 3\n"
            "hint: " +
                hint_for_end(SIGKILL) + "\n");
}

TEST(Report, RangesOfRanks) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({4}), "4");
  EXPECT_EQ(rank_ranges({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(Environment, MergeReplacesAndKeeps) {
  const std::vector<std::string> merged =
      merge({"A=1", "RANK=9", "B=x=y", "RANKS=2"}, {{"RANK", "0"}, {"C", ""}});
  EXPECT_EQ(merged, (std::vector<std::string>{"A=1", "B=x=y", "RANKS=2", "RANK=0", "C="}));
}

}  // namespace
}  // namespace lockstep::launch
