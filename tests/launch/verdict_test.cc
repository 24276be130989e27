#include "launch/verdict.h"

#include <csignal>
#include <gtest/gtest.h>

#include "launch/environment.h"
#include "launch/report.h"

namespace lockstep::launch {
namespace {

RankEnd failure_of(int rank, const char* kind = nullptr) {
  RankEnd failure{.rank = rank, .wait_status = as_wait_status(1)};
  if (kind != nullptr) failure.note = base::Note{kind, "…"};
  return failure;
}

TEST(Verdict, TheFirstThatIsNoConsequenceIsTheCause) {
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
  // A blamed rank that has failed itself blames another.
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(1, {2})}), Ranks{2});
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(1, {0})}), Ranks{});
  EXPECT_EQ(blamed_ranks({blames(0, {1}), blames(2, {3})}), Ranks{});
  // A failure that is not a consequence is the cause.
  EXPECT_EQ(blamed_ranks({blames(0, {1}), failure_of(2)}), Ranks{});
}

TEST(Verdict, ANoteCarriesItsCulprits) {
  const base::Note note{"PeerLostError", "gone", {3, 0}};
  EXPECT_EQ(base::decode_note(base::encode_note(note)), note);
  const base::Note many{"PeerLostError", "gone", std::vector<int>(1000, 123456)};
  EXPECT_EQ(base::decode_note(base::encode_note(many))->culprits.size(), base::Note::kMostCulprits);
  // From a worker with another version of the library, or a hostile one: the rest of the note is used.
  for (const char* list : {"", ",\"culprits\":3", ",\"culprits\":[-1]", ",\"culprits\":[1.5]",
                           ",\"culprits\":[\"1\"]", ",\"culprits\":[99999999999999999999]"}) {
    const auto decoded = base::decode_note(std::string("{\"kind\":\"k\",\"message\":\"m\"") + list + "}");
    EXPECT_EQ(decoded, (base::Note{"k", "m", {}})) << list;
  }
}

TEST(Verdict, TheFirstNoteCountsAndALaterOneCanMarkItAsUntold) {
  const base::Note first{"PeerLostError", "gone", {3}};
  const base::Note untold{"PeerLostError", "gone", {}, true};
  const base::Note other{"UsageError", "something else", {}, true};
  EXPECT_EQ(base::decode_note(base::encode_note(untold)), untold);
  EXPECT_EQ(base::decode_note(base::encode_note(first) + base::encode_note(untold)),
            (base::Note{"PeerLostError", "gone", {3}, true}));
  EXPECT_EQ(base::decode_note(base::encode_note(first) + base::encode_note(other)), first);
  EXPECT_EQ(base::decode_note(base::encode_note(first) + "nonsense\n\n"), first);
  EXPECT_EQ(base::decode_note("{\"kind\":\"k\",\"message\":\"m\",\"untold\":1}"), (base::Note{"k", "m"}));
  EXPECT_FALSE(base::decode_note("nonsense\n" + base::encode_note(first)));
}

TEST(Verdict, DescribesTheEnd) {
  EXPECT_EQ(end_clause(as_wait_status(3)), "exited with status 3");
  EXPECT_EQ(end_clause(SIGSEGV), "was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(exit_status(as_wait_status(3)), 3);
  EXPECT_EQ(exit_status(SIGKILL), 137);
  EXPECT_TRUE(succeeded(0));
  EXPECT_FALSE(succeeded(SIGTERM));
  EXPECT_NE(hint_for_end(SIGKILL).find("out-of-memory"), std::string::npos);
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
}

TEST(Report, StatesTheRankItsEndAndItsLastLines) {
  RankEnd failure{.rank = 2, .local_rank = 0, .host = "b", .pid = 77, .wait_status = SIGKILL};
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
  RankEnd failure{.rank = 0, .host = "a", .pid = 70, .wait_status = as_wait_status(1)};
  failure.note = base::Note{"PeerLostError", "rank 3 has ended\nhint: look", {3}};
  failure.culprits = {{.rank = 3, .local_rank = 1, .host = "b", .ended = true, .pid = 77}};
  EXPECT_EQ(
      failure_report(failure, {.world_size = 4, .several_nodes = true, .stopping = {1, 2}}),
      "lockstep run: rank 3 ended with status 0 while the others were still working: it made fewer steps\n"
      "  rank 3 of 4, local rank 1, host b, pid 77\n"
      "  rank 0 exited with status 1 because of it (host a, pid 70)\n"
      "  its error:\n"
      "    PeerLostError: rank 3 has ended\n"
      "    hint: look\n"
      "  it printed nothing\n"
      "  stopping the ranks that are left here: 1-2\n");
}

TEST(Report, AnUncaughtErrorIsFirstAndAppearsOnce) {
  RankEnd failure{.rank = 1, .host = "a", .pid = 70, .wait_status = as_wait_status(1)};
  failure.note = base::Note{"UsageError", "no such batch\nhint: take another", {}, true};
  EXPECT_EQ(failure_report(failure, {.world_size = 2, .stopping = {0}}),
            "lockstep run: rank 1 failed: UsageError: no such batch\n"
            "  hint: take another\n"
            "  rank 1 of 2, local rank 0, host a, pid 70\n"
            "  stopping the other ranks: 0\n");
  // No hint is added if the error has none.
  failure.note->message = "no such batch";
  failure.last_lines = {"step 3"};
  EXPECT_EQ(failure_report(failure, {.world_size = 2}),
            "lockstep run: rank 1 failed: UsageError: no such batch\n"
            "  rank 1 of 2, local rank 0, host a, pid 70\n"
            "  its last lines:\n"
            "    | step 3\n");
}

TEST(Report, NoCoreDumpForOneOfOurErrors) {
  RankEnd failure{.rank = 1, .host = "a", .pid = 70, .wait_status = SIGABRT};
  EXPECT_NE(failure_report(failure, {}).find("core dump"), std::string::npos);
  failure.last_lines = {"terminate called after throwing an instance of 'lockstep::UsageError'",
                        "  what():  no such batch"};
  EXPECT_EQ(failure_report(failure, {}).find("core dump"), std::string::npos);
  failure.last_lines.front() = "terminate called after throwing an instance of 'std::bad_alloc'";
  EXPECT_NE(failure_report(failure, {}).find("core dump"), std::string::npos);
}

TEST(Report, AnErrorThatTheProgramHasPrintedIsNotRepeated) {
  RankEnd failure{.rank = 1, .host = "a", .pid = 70, .wait_status = as_wait_status(1)};
  failure.note = base::Note{"MismatchError", "shapes differ\nhint: look"};
  failure.last_lines = {"train: MismatchError: shapes differ", "hint: look"};
  const auto report = failure_report(failure, {});
  EXPECT_EQ(report.find("shapes differ"), report.rfind("shapes differ")) << report;
}

TEST(Report, ARankThatLeftMadeFewerSteps) {
  RankEnd failure{.rank = 0, .host = "a", .pid = 70, .wait_status = as_wait_status(1)};
  failure.note = base::Note{"PeerLostError", "rank 3 has ended", {3}};
  failure.culprits = {{.rank = 3, .host = "b", .ended = true, .pid = 77}};
  const auto report = failure_report(failure, {.world_size = 4});
  EXPECT_NE(report.find("working: it made fewer steps\n"), std::string::npos) << report;
  EXPECT_NE(
      report.find("\nhint: it made fewer steps: decide together when to stop (all_agree), or use Join\n"),
      std::string::npos)
      << report;
}

TEST(Report, ControlCharactersAndForgedLinesDoNotReachTheTerminal) {
  RankEnd failure{.rank = 0, .host = "a", .wait_status = as_wait_status(1)};
  failure.note = base::Note{"Error", "\x1b[2J\nlockstep run: forged"};
  failure.last_lines = {"\x1b]0;title\x07", "a\rlockstep run: forged"};
  const auto report = failure_report(failure, {});
  EXPECT_EQ(report.find_first_of("\x1b\x07\r"), std::string::npos) << report;
  EXPECT_EQ(report.find("\nlockstep run:"), std::string::npos) << report;
}

TEST(Environment, MergeReplacesAndKeeps) {
  const std::vector<std::string> merged =
      merge({"A=1", "RANK=9", "B=x=y", "RANKS=2"}, {{"RANK", "0"}, {"C", ""}});
  EXPECT_EQ(merged, (std::vector<std::string>{"A=1", "B=x=y", "RANKS=2", "RANK=0", "C="}));
}

}  // namespace
}  // namespace lockstep::launch
