#include "launch/job.h"

#include <csignal>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Kind = Order::Kind;

// One worker per node.
Welcome nodes(std::vector<std::string> hosts, int max_restarts) {
  return {
      .nprocs = std::vector<int>(hosts.size(), 1), .hosts = std::move(hosts), .max_restarts = max_restarts};
}
Event failed(int rank, int status = 3, const char* note = nullptr, int attempt = 0) {
  RankEnd failure{.rank = rank, .wait_status = as_wait_status(status)};
  if (note != nullptr) failure.note = base::Note{note, "…"};
  return {.kind = Event::Kind::Failed, .attempt = attempt, .failure = failure};
}
Event finished(int attempt = 0) { return {.kind = Event::Kind::Finished, .attempt = attempt}; }
Event stopped(int attempt = 0) { return {.kind = Event::Kind::Stopped, .attempt = attempt}; }
Event interrupted(int signal) { return {.kind = Event::Kind::Interrupted, .signal = signal}; }

TEST(Job, SucceedsWhenAllNodesHaveFinished) {
  Job job(nodes({"a", "b"}, 0));
  EXPECT_EQ(job.begin().kind, Kind::Start);
  EXPECT_FALSE(job.on(0, finished()));
  const auto end = job.on(1, finished());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->kind, Kind::End);
  EXPECT_EQ(end->status, 0);
  EXPECT_TRUE(job.ended());
}

TEST(Job, AFailureStopsAllAndGivesItsStatus) {
  Job job(nodes({"a", "b"}, 0));
  const auto stop = job.on(1, failed(5));
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->kind, Kind::Stop);
  EXPECT_EQ(stop->signal, SIGTERM);
  EXPECT_EQ(stop->failure->rank, 5);
  EXPECT_FALSE(stop->restart);
  EXPECT_FALSE(job.on(1, finished()));
  EXPECT_FALSE(job.on(0, stopped()));
  const auto end = job.on(1, stopped());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->status, 3);
}

TEST(Job, AConsequenceWaitsForItsCause) {
  Job job(nodes({"a", "b"}, 0));
  EXPECT_FALSE(job.on(0, failed(0, 1, "PeerLostError")));
  EXPECT_TRUE(job.collecting());
  const auto stop = job.on(1, failed(2, 7));
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->failure->rank, 2);
}

TEST(Job, AConsequenceWithoutACauseIsReported) {
  Job job(nodes({"a"}, 0));
  EXPECT_FALSE(job.on(0, failed(1, 1, "TimeoutError")));
  EXPECT_FALSE(job.on(0, failed(0, 1, "TimeoutError")));
  const auto stop = job.on_collected();
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->failure->rank, 1);
  EXPECT_FALSE(job.on_collected());
}

TEST(Job, ABlamedRankThatEndedWithStatusZeroIsTheCulprit) {
  Job job({.nprocs = {2, 2}, .hosts = {"a", "b"}});
  EXPECT_FALSE(job.on(1, {.kind = Event::Kind::Left, .rank = 3, .pid = 77}));
  EXPECT_FALSE(job.on(1, {.kind = Event::Kind::Left, .rank = 0, .pid = 78}));  // not a rank of that node
  for (const int rank : {1, 2}) {
    auto event = failed(rank, 5, "PeerLostError");
    event.failure->note->culprits = {0, 3};
    EXPECT_FALSE(job.on(rank / 2, event));
  }
  const auto stop = job.on_collected();
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->failure->rank, 1);
  const Culprit culprit{.rank = 3, .local_rank = 1, .host = "b", .ended = true, .pid = 77};
  EXPECT_EQ(stop->failure->culprits, std::vector<Culprit>{culprit});
  EXPECT_FALSE(job.on(0, stopped()));
  EXPECT_EQ(job.on(1, stopped())->status, 5);
}

TEST(Job, RestartsAsOftenAsAllowed) {
  Job job(nodes({"a", "b"}, 1));
  EXPECT_TRUE(job.on(0, failed(0))->restart);
  EXPECT_FALSE(job.on(0, stopped()));
  const auto start = job.on(1, stopped());
  ASSERT_TRUE(start);
  EXPECT_EQ(start->kind, Kind::Start);
  EXPECT_EQ(start->attempt, 1);
  // An event that a node sent before the restart reached it is ignored.
  EXPECT_FALSE(job.on(1, failed(3, 3, nullptr, 0)));
  const auto stop = job.on(1, failed(3, 4, nullptr, 1));
  ASSERT_TRUE(stop);
  EXPECT_FALSE(stop->restart);
  EXPECT_FALSE(job.on(0, stopped(1)));
  EXPECT_EQ(job.on(1, stopped(1))->status, 4);
}

TEST(Job, AProgramThatCannotStartIsNotTriedAgain) {
  Job job(nodes({"a"}, 5));
  auto event = failed(0, 127);
  event.failure->not_started = "no such file";
  EXPECT_FALSE(job.on(0, event)->restart);
  EXPECT_EQ(job.on(0, stopped())->status, 127);
}

TEST(Job, ASignalOfTheUserIsFinal) {
  Job job(nodes({"a", "b"}, 5));
  const auto stop = job.on(1, interrupted(SIGINT));
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->signal, SIGINT);
  EXPECT_NE(stop->reason.find("SIGINT on node 1 (b)"), std::string::npos);
  EXPECT_FALSE(job.on(0, failed(0)));
  const auto again = job.on(1, interrupted(SIGKILL));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->signal, SIGKILL);
  EXPECT_FALSE(job.on(0, stopped()));
  EXPECT_EQ(job.on(1, stopped())->status, 130);
}

TEST(Job, ASignalDuringARestartEndsIt) {
  Job job(nodes({"a"}, 5));
  EXPECT_TRUE(job.on(0, failed(0))->restart);
  EXPECT_TRUE(job.on(0, interrupted(SIGTERM)));
  EXPECT_EQ(job.on(0, stopped())->status, 143);
}

TEST(Job, ALostNodeIsFinal) {
  Job job(nodes({"a", "b", "c"}, 5));
  const auto stop = job.on_lost(2, "why");
  ASSERT_TRUE(stop);
  EXPECT_NE(stop->reason.find("node 2 (c) is lost"), std::string::npos);
  EXPECT_FALSE(job.on(0, stopped()));
  EXPECT_EQ(job.on(1, stopped())->status, 1);
}

TEST(Job, ANodeLostWhileStoppingDoesNotDelayTheOthers) {
  Job job(nodes({"a", "b"}, 5));
  EXPECT_TRUE(job.on(0, failed(0))->restart);
  EXPECT_FALSE(job.on(0, stopped()));
  const auto end = job.on_lost(1, "why");
  ASSERT_TRUE(end);
  EXPECT_EQ(end->kind, Kind::End);
  EXPECT_EQ(end->status, 3);
}

TEST(Job, NodesThatDoNotStopInTimeAreLost) {
  Job job(nodes({"a", "b", "c"}, 5));
  EXPECT_FALSE(job.on_overdue());
  EXPECT_TRUE(job.on(0, failed(0))->restart);
  EXPECT_FALSE(job.on(0, stopped()));
  const auto end = job.on_overdue();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->kind, Kind::End);
  EXPECT_EQ(end->status, 3);
  EXPECT_NE(end->reason.find("node 1 (b), 2 (c) did not stop in time"), std::string::npos) << end->reason;
  EXPECT_TRUE(job.ended());
}

TEST(Job, AFailedRankWithStatusZeroStillFails) {
  Job job(nodes({"a"}, 0));
  EXPECT_TRUE(job.on(0, failed(0, 0)));
  EXPECT_EQ(job.on(0, stopped())->status, 1);
}

}  // namespace
}  // namespace lockstep::launch
