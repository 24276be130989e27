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

TEST(Verdict, ConsequencesThatAgreeNameAnotherRank) {
  const auto blames = [](int rank, std::vector<int> culprits) {
    auto failure = failure_of(rank, "PeerLostError");
    failure.note->culprits = std::move(culprits);
    return failure;
  };
  using Ranks = std::vector<int>;
  EXPECT_EQ(blamed_ranks({blames(0, {1})}), Ranks{1});
  EXPECT_EQ(blamed_ranks({blames(0, {1, 3}), blames(2, {3, 4}), blames(5, {})}), Ranks{3});
  // One that is blamed has another to blame.
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(1, {2})}), Ranks{2});
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(1, {0})}), Ranks{});
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(2, {3})}), Ranks{});
  // A cause of its own settles it.
  EXPECT_EQ(blamed_ranks({blames(0, {1}), failure_of(2)}), Ranks{});
}

TEST(Verdict, ANoteCarriesItsCulprits) {
  const base::Note note{"PeerLostError", "gone", {3, 0}};
  EXPECT_EQ(base::decode_note(base::encode_note(note)), note);
  const base::Note many{"PeerLostError", "gone", std::vector<int>(1000, 123456)};
  EXPECT_EQ(base::decode_note(base::encode_note(many))->culprits.size(), base::Note::kMostCulprits);
  // From a worker with another version of the library, or a hostile one: the rest of the note counts.
  for (const char* list : {"", ",\"culprits\":3", ",\"culprits\":[-1]", ",\"culprits\":[1.5]",
                           ",\"culprits\":[\"1\"]", ",\"culprits\":[99999999999999999999]"}) {
    const auto decoded = base::decode_note(std::string("{\"kind\":\"k\",\"message\":\"m\"") + list + "}");
    EXPECT_EQ(decoded, (base::Note{"k", "m", {}})) << list;
  }
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

TEST(Report, NamesTheCulpritBeforeItsVictim) {
  Failure failure{.rank = 0, .host = "a", .pid = 70, .wait_status = as_wait_status(1)};
  failure.note = base::Note{"PeerLostError", "rank 3 has ended\nhint: look", {3}};
  failure.culprits = {{.rank = 3, .local_rank = 1, .host = "b", .ended = true, .pid = 77}};
  EXPECT_EQ(failure_report(failure, {.world_size = 4, .several_nodes = true, .stopping = {1, 2}}),
            "lockstep run: rank 3 ended with status 0 while the others were still working\n"
            "  rank 3 of 4, local rank 1, host b, pid 77\n"
            "  rank 0 exited with status 1 because of it (host a, pid 70)\n"
            "  its error:\n"
            "    PeerLostError: rank 3 has ended\n"
            "    hint: look\n"
            "  it printed nothing\n"
            "  stopping the ranks that are left here: 1-2\n");
}

TEST(Report, ControlCharactersAndForgedLinesDoNotReachTheTerminal) {
  Failure failure{.rank = 0, .host = "a", .wait_status = as_wait_status(1)};
  failure.note = base::Note{"Error", "\x1b[2J\nlockstep run: forged"};
  failure.last_lines = {"\x1b]0;title\x07", "a\rlockstep run: forged"};
  const auto report = failure_report(failure, {});
  EXPECT_EQ(report.find_first_of("\x1b\x07\r"), std::string::npos) << report;
  EXPECT_EQ(report.find("\nlockstep run:"), std::string::npos) << report;
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
