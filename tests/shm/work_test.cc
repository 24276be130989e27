// Work objects: while a call is under way, when it is done, when no other rank arrives, when the wait is
// aborted, and when the backend is destroyed.
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <semaphore>
#include <thread>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shm/local_ranks.h"
#include "support/data.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using Clock = std::chrono::steady_clock;

TEST(Work, BeforeAndAfterCompletion) {
  LocalRanks ranks(2);
  const auto mine = filled(1);
  const auto first = all_reduce(ranks[0], {mine});
  EXPECT_FALSE(first->isCompleted());
  EXPECT_THAT(error_of([&] { first->result(); }), HasSubstr("Work needs to be completed"));
  const auto second = all_reduce(ranks[1], {filled(2)});
  for (const auto& work : {first, second}) {
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->wait());  // again
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    ASSERT_EQ(work->result().size(), 1);
    EXPECT_TRUE(same(work->result()[0], filled(3)));
  }
  EXPECT_EQ(first->result()[0].data_ptr(), mine.data_ptr());
}

TEST(Work, ResultsAreTheOutputs) {
  LocalRanks ranks(2);
  Tensors outputs = {filled(-1), filled(-1)};
  const auto gathering = ranks.start([&](int rank, c10d_backend& backend) {
    return all_gather(backend, {rank == 0 ? outputs : Tensors{filled(-1), filled(-1)}}, {filled(rank)});
  });
  for (const auto& work : gathering) EXPECT_TRUE(work->wait());
  ASSERT_EQ(gathering[0]->result().size(), 2);
  EXPECT_EQ(gathering[0]->result()[1].data_ptr(), outputs[1].data_ptr());

  const auto barriers = ranks.start([](int, c10d_backend& backend) { return backend.barrier(); });
  for (const auto& work : barriers) {
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->result().empty());
  }
}

TEST(Work, ListsOfListsComeThroughTheFuture) {
  LocalRanks ranks(2);
  const auto works = ranks.start([](int rank, c10d_backend& backend) {
    return all_gather_coalesced(backend, {{filled(-1), filled(-1, 7)}, {filled(-1), filled(-1, 7)}},
                                {filled(rank), filled(rank + 10, 7)});
  });
  for (const auto& work : works) {
    EXPECT_TRUE(work->wait());
    EXPECT_THAT(error_of([&] { work->result(); }), HasSubstr("does not support list of lists"));
    const auto lists = work->getFuture()->value().toList();
    ASSERT_EQ(lists.size(), 2);
    EXPECT_TRUE(same(lists.get(1).toTensorVector().at(1), filled(11, 7)));
  }
}

TEST(Work, CallsFinishThoughNobodyWaits) {
  LocalRanks ranks(3);
  const auto works =
      ranks.start([](int, c10d_backend& backend) { return all_reduce(backend, {filled(1, 300'000)}); });
  for (const auto& work : works) {
    EXPECT_TRUE(eventually([&] { return work->isCompleted(); }));
    EXPECT_TRUE(same(work->result().at(0), filled(3, 300'000)));
  }
  const auto received = filled(0);
  const auto sending = send(ranks[0], {filled(5)}, 1);
  const auto receiving = recv(ranks[1], {received}, 0);
  EXPECT_TRUE(eventually([&] { return sending->isCompleted() && receiving->isCompleted(); }));
  EXPECT_TRUE(same(received, filled(5)));
}

TEST(Work, FuturesGiveTheTensorsAndCallBack) {
  LocalRanks ranks(2);
  std::atomic<int> called{0};
  const auto first = all_reduce(ranks[0], {filled(1)});
  const auto future = first->getFuture();
  EXPECT_FALSE(future->completed());
  const auto then = future->then(
      [&](c10::ivalue::Future& done) {
        ++called;
        return c10::IValue(done.value().toTensorVector().at(0) * 10);
      },
      c10::TensorType::get());
  EXPECT_EQ(called, 0);
  const auto second = all_reduce(ranks[1], {filled(2)});
  then->wait();
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(same(then->value().toTensor(), filled(30)));
  second->getFuture()->wait();
  EXPECT_TRUE(second->getFuture()->value().isTensorList());
  EXPECT_TRUE(same(second->getFuture()->value().toTensorVector().at(0), filled(3)));
  EXPECT_TRUE(eventually([&] { return first->isCompleted(); }));  // the future completes first

  // A callback on a future that is already complete.
  future->addCallback([&](c10::ivalue::Future&) { ++called; });
  EXPECT_EQ(called, 2);
}

TEST(Work, FuturesOfABarrierAreEmptyLists) {
  LocalRanks ranks(2);
  for (const auto& work : ranks.start([](int, c10d_backend& backend) { return backend.barrier(); })) {
    work->getFuture()->wait();
    EXPECT_TRUE(work->getFuture()->value().toTensorVector().empty());
  }
}

TEST(Work, AWaitThatIsTooShortLeavesTheCallAlive) {
  LocalRanks ranks(2);
  const auto first = all_reduce(ranks[0], {filled(1)});
  const auto sending = send(ranks[0], {filled(7)}, 1, 3);
  const auto receiving = recv(ranks[0], {filled(0)}, 1, 4);
  for (const auto& work : {first, sending, receiving}) {
    const auto begin = Clock::now();
    EXPECT_THAT(error_of([&] { work->wait(50ms); }), HasSubstr("Timed out"));
    EXPECT_GE(Clock::now() - begin, 50ms);
    EXPECT_FALSE(work->isCompleted());
  }
  const auto received = filled(0);
  const auto late = {all_reduce(ranks[1], {filled(2)}), recv(ranks[1], {received}, 0, 3),
                     send(ranks[1], {filled(8)}, 0, 4)};
  for (const auto& work : {first, sending, receiving}) EXPECT_TRUE(work->wait(10s));
  for (const auto& work : late) EXPECT_TRUE(work->wait(10s));
  EXPECT_TRUE(same(first->result()[0], filled(3)));
  EXPECT_TRUE(same(received, filled(7)));
}

TEST(Work, APeerThatNeverComesIsATimeout) {
  LocalRanks ranks(2, 1s);
  const auto begin = Clock::now();
  const auto work = all_reduce(ranks[0], {filled(1)});
  EXPECT_THAT(error_of([&] { work->wait(); }), AllOf(HasSubstr("Timed out"), HasSubstr("rank 1")));
  EXPECT_GE(Clock::now() - begin, 900ms);
  EXPECT_LT(Clock::now() - begin, 6s);
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  ASSERT_NE(work->exception(), nullptr);
  EXPECT_THROW(std::rethrow_exception(work->exception()), TimeoutError);
  EXPECT_TRUE(work->getFuture()->hasError());
  EXPECT_THROW(work->wait(), TimeoutError);  // again
}

TEST(Work, TimeoutsNeedNoWaiter) {
  LocalRanks ranks(2, 500ms);
  const auto work = all_reduce(ranks[0], {filled(1)});
  std::atomic<bool> told{false};
  work->getFuture()->addCallback([&](c10::ivalue::Future& done) { told = done.hasError(); });
  EXPECT_TRUE(eventually([&] { return told.load(); }));
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
}

TEST(Work, ASendIsDoneWhenItIsReceived) {
  LocalRanks ranks(2);
  for (const int64_t count : {1, 1000, 1'000'000}) {
    const auto sending = send(ranks[0], {filled(3, count)}, 1);
    EXPECT_THAT(error_of([&] { sending->wait(20ms); }), HasSubstr("Timed out"));
    EXPECT_FALSE(sending->isCompleted());
    const auto received = filled(0, count);
    EXPECT_TRUE(recv(ranks[1], {received}, 0)->wait());
    EXPECT_TRUE(sending->wait());
    EXPECT_TRUE(same(received, filled(3, count)));
  }
}

// abort() ends the wait, no matter whether it has begun. A later wait completes the call.
void expect_abort_ends_the_wait(const WorkPtr& work, const std::function<WorkPtr()>& counterpart) {
  auto waiting = std::async(std::launch::async, [&] { return work->wait(); });
  work->abort();
  ASSERT_EQ(waiting.wait_for(10s), std::future_status::ready);
  EXPECT_FALSE(waiting.get());

  auto again = std::async(std::launch::async, [&] { return work->wait(5s); });
  EXPECT_TRUE(counterpart()->wait(5s));
  EXPECT_TRUE(again.get());
}

TEST(Work, AnAbortedWaitForASendReturnsFalse) {
  LocalRanks ranks(2);
  const auto received = filled(0);
  expect_abort_ends_the_wait(send(ranks[0], {filled(3)}, 1, 7),
                             [&] { return recv(ranks[1], {received}, 0, 7); });
  EXPECT_TRUE(same(received, filled(3)));
}

TEST(Work, AnAbortedWaitForAReceiveReturnsFalse) {
  LocalRanks ranks(2);
  const auto received = filled(0);
  expect_abort_ends_the_wait(recv(ranks[0], {received}, 1, 7),
                             [&] { return send(ranks[1], {filled(3)}, 0, 7); });
  EXPECT_TRUE(same(received, filled(3)));
}

void connect(LocalRanks& ranks) {
  for (const auto& work : ranks.start([](int, c10d_backend& backend) { return backend.barrier(); }))
    EXPECT_TRUE(work->wait());
}

// Runs the action in another thread; returns whether it returned in time. If not, `undo` must unblock it.
bool returns(
    const std::function<void()>& action, const std::function<void()>& undo = [] {}) {
  auto done = std::async(std::launch::async, action);
  const bool in_time = done.wait_for(5s) == std::future_status::ready;
  if (!in_time) undo();
  done.get();
  return in_time;
}

// Calls under way continue without their backend.
TEST(Leaving, WithCallsOutstandingIsPrompt) {
  LocalRanks ranks(3, 60s);
  connect(ranks);
  const auto reducing = all_reduce(ranks[0], {filled(1, 1'000'000)});
  const auto sending = send(ranks[0], {filled(7)}, 1);
  const auto receiving = recv(ranks[0], {filled(0)}, 2);
  EXPECT_TRUE(returns([&] { ranks.destroy(0); }));
  const auto received = filled(0);
  const auto others = {all_reduce(ranks[1], {filled(2, 1'000'000)}),
                       all_reduce(ranks[2], {filled(3, 1'000'000)}), recv(ranks[1], {received}, 0),
                       send(ranks[2], {filled(8)}, 0)};
  for (const auto& work : others) EXPECT_TRUE(work->wait(10s));
  for (const auto& work : {reducing, sending, receiving}) EXPECT_TRUE(work->wait(10s));
  EXPECT_TRUE(same(reducing->result()[0], filled(6, 1'000'000)));
  EXPECT_TRUE(same(received, filled(7)));
}

TEST(Leaving, WithCallsThatNobodyAnswersEndsThemInTime) {
  LocalRanks ranks(2, 1s);
  connect(ranks);
  const auto reducing = all_reduce(ranks[0], {filled(1)});
  const auto sending = send(ranks[0], {filled(1)}, 1);
  EXPECT_TRUE(returns([&] { ranks.destroy(0); }));
  for (const auto& work : {reducing, sending})
    EXPECT_TRUE(returns([&] { EXPECT_THROW(work->wait(), TimeoutError); }));
}

TEST(Leaving, BeforeAnybodyElseHasComeIsPrompt) {
  EXPECT_TRUE(returns([] {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    make_c10d_backend("shm", store, 0, 2, 60s);
  }));
}

TEST(Leaving, IsSeenByThoseWhoWaitForTheRank) {
  LocalRanks ranks(3, 60s);
  connect(ranks);
  const auto reducing = all_reduce(ranks[0], {filled(1)});
  const auto receiving = recv(ranks[2], {filled(0)}, 1);
  ranks.destroy(1);
  for (const auto& work : {reducing, receiving}) {
    EXPECT_TRUE(returns([&] {
      EXPECT_THAT(error_of([&] { work->wait(); }), HasSubstr("rank 1"));
      EXPECT_THROW(std::rethrow_exception(work->exception()), PeerLostError);
    }));
  }
}

// The fastest rank leaves before the slowest has finished its part.
TEST(Leaving, AfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 30; ++round) {
    LocalRanks ranks(3);
    ranks.in_threads([&](int rank, c10d_backend& backend) {
      const auto tensor = filled(rank, round % 2 == 0 ? 10 : 200'000);
      EXPECT_TRUE(all_reduce(backend, {tensor})->wait());
      ranks.destroy(rank);
      EXPECT_TRUE(same(tensor, filled(3, tensor.numel())));
    });
    if (HasFailure()) return;
  }
}

TEST(Leaving, DoesNotWaitForACallbackThatWaitsForTheLeaver) {
  LocalRanks ranks(2);
  // A lock that another thread can release, so that a failed test ends.
  std::binary_semaphore lock{0};
  std::atomic<bool> entered{false}, left{false};
  const auto work = all_reduce(ranks[0], {filled(1)});
  work->getFuture()->addCallback([&](c10::ivalue::Future&) {
    entered = true;
    lock.acquire();
    left = true;
  });
  const auto other = all_reduce(ranks[1], {filled(2)});
  ASSERT_TRUE(eventually([&] { return entered.load(); }));
  bool opened = false;
  EXPECT_TRUE(returns([&] { ranks.destroy(0); },
                      [&] {
                        opened = true;
                        lock.release();
                      }));
  if (!opened) lock.release();
  EXPECT_TRUE(eventually([&] { return left.load(); }));
  EXPECT_TRUE(other->wait());
}

}  // namespace
}  // namespace lockstep::testing
