// Corner cases of the engine: callbacks that make calls, tensors that share memory, several calls that end at
// once.
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>

#include <ATen/core/ivalue.h>

#include "shm/calls.h"
#include "shm/local_ranks.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST(Corners, ACallbackMayWaitForAnotherCallOfTheGroup) {
  LocalRanks ranks(2);
  const auto a = all_reduce(ranks[0], {filled(1)});
  const auto b = all_reduce(ranks[0], {filled(2)});
  std::promise<bool> waited;
  a->getFuture()->addCallback([&](c10::ivalue::Future&) { waited.set_value(b->wait(10s)); });
  const auto c = all_reduce(ranks[1], {filled(1)});
  const auto d = all_reduce(ranks[1], {filled(2)});
  auto result = waited.get_future();
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_TRUE(result.get());
  for (const auto& work : {a, b, c, d}) EXPECT_TRUE(work->wait());
}

TEST(Corners, ACallbackMayWaitForTheFutureOfAnotherCall) {
  LocalRanks ranks(2);
  const auto a = all_reduce(ranks[0], {filled(1)});
  const auto b = all_reduce(ranks[0], {filled(2)});
  const auto b_future = b->getFuture();
  std::promise<void> waited;
  a->getFuture()->addCallback([&](c10::ivalue::Future&) {
    b_future->wait();
    waited.set_value();
  });
  const auto c = all_reduce(ranks[1], {filled(1)});
  const auto d = all_reduce(ranks[1], {filled(2)});
  EXPECT_EQ(waited.get_future().wait_for(10s), std::future_status::ready);
  for (const auto& work : {a, b, c, d}) EXPECT_TRUE(work->wait());
}

// A callback that throws poisons the group, but the call itself succeeds.
TEST(Corners, ACallbackThatThrowsAnything) {
  for (const bool anything : {false, true}) {
    LocalRanks ranks(2);
    const auto first = all_reduce(ranks[0], {filled(1)});
    first->getFuture()->addCallback([&](c10::ivalue::Future&) {
      if (anything) throw 42;
      throw std::runtime_error("the callback is broken");
    });
    const auto second = all_reduce(ranks[1], {filled(1)});
    EXPECT_TRUE(first->wait(20s));
    EXPECT_TRUE(second->wait(20s));
    const auto said = anything ? "not a std::exception" : "the callback is broken";
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(error_of([&] { ranks[rank].barrier()->wait(20s); }), ::testing::HasSubstr(said));
    }
  }
}

TEST(Corners, ACallMayBeMadeUnderALockThatACallbackWants) {
  LocalRanks ranks(2);
  std::mutex mutex;
  std::promise<void> called;
  const auto a = all_reduce(ranks[0], {filled(1)});
  a->getFuture()->addCallback([&](c10::ivalue::Future&) {
    const std::lock_guard lock(mutex);
    called.set_value();
  });
  WorkPtr b, c;
  {
    const std::lock_guard lock(mutex);
    b = all_reduce(ranks[1], {filled(1)});
    c = all_reduce(ranks[0], {filled(2)});  // may find that `a` is complete
    a->isCompleted();
  }
  EXPECT_EQ(called.get_future().wait_for(10s), std::future_status::ready);
  const auto d = all_reduce(ranks[1], {filled(2)});
  for (const auto& work : {a, b, c, d}) EXPECT_TRUE(work->wait());
}

TEST(Corners, AFutureIsCompleteWhenTheWaitIsOver) {
  LocalRanks ranks(2);
  for (int i = 0; i < 200; ++i) {
    const auto works =
        ranks.start([](int, c10d_backend& backend) { return all_reduce(backend, {filled(1)}); });
    const auto future = works[0]->getFuture();
    for (const auto& work : works) EXPECT_TRUE(work->wait());
    EXPECT_TRUE(future->completed());
  }
}

TEST(Corners, AMessageThatDoesNotFitDoesNotLoseTheOneBefore) {
  LocalRanks ranks(2, 5s);
  const auto good = filled(0);
  const auto first = recv(ranks[0], {good}, 1, 1);
  const auto second = recv(ranks[0], {filled(0, 7)}, 1, 2);
  const auto one = send(ranks[1], {filled(1)}, 0, 1);
  const auto two = send(ranks[1], {filled(2)}, 0, 2);
  try {
    first->wait(10s);  // received, or ended by the error of the other message, but not lost
  } catch (const MismatchError&) {
  }
  EXPECT_TRUE(first->isCompleted());
  EXPECT_THROW(second->wait(), MismatchError);
}

TEST(Corners, ABarrierMeansThatAllBeforeItIsDone) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = group.empty({1 << 20}, at::kFloat);
    for (int i = 1; i <= 50; ++i) {
      tensor.fill_(group.rank() == 0 ? i : -1);
      auto work = group.broadcast_async(tensor, 0);
      group.barrier();
      // The root may change its tensor now; the other rank must not see that.
      if (group.rank() == 0) tensor.fill_(-2);
      work.wait();
      if (group.rank() == 1) {
        ASSERT_EQ(tensor.ne(i).sum().item<int64_t>(), 0);
      }
    }
  });
}

// The input is a part of the output: the part of this rank, or that of another rank.
TEST(Corners, AllGatherOfAPartOfItsOwnOutput) {
  for (const int64_t count : {10, 100000}) {
    for (const int shift : {0, 1}) {
      LocalRanks ranks(2);
      std::vector<at::Tensor> outputs = {filled(-1, 2 * count), filled(-1, 2 * count)};
      const auto works = ranks.start([&](int rank, c10d_backend& backend) {
        auto part = outputs[rank].narrow(0, (rank + shift) % 2 * count, count);
        part.fill_(rank + 1);
        return all_gather_base(backend, outputs[rank], part);
      });
      for (const auto& work : works) EXPECT_TRUE(work->wait());
      for (const auto& output : outputs)
        EXPECT_TRUE(same(output, at::cat({filled(1, count), filled(2, count)}))) << count << " " << shift;
    }
  }
}

TEST(Corners, ReduceScatterIntoItsOwnInput) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    for (const bool registered : {false, true}) {
      for (const int64_t count : {10, 100000}) {
        for (const int part : {0, 1}) {
          const auto options = at::TensorOptions(at::kFloat);
          auto input = registered ? group.empty({2 * count}, options) : at::empty({2 * count}, options);
          input.narrow(0, 0, count).fill_(group.rank() + 1);
          input.narrow(0, count, count).fill_(10 * (group.rank() + 1));
          auto output = input.narrow(0, part * count, count);
          group.reduce_scatter_tensor(output, input);
          EXPECT_TRUE(same(output, filled(group.rank() == 0 ? 3 : 30, count))) << registered << count << part;
        }
      }
    }
  });
}

TEST(Corners, AnAverageCountsTheTensorsOfARank) {
  LocalRanks ranks(2);
  std::vector<Tensors> tensors = {{filled(1), filled(3)}, {filled(5), filled(7)}};
  const auto works = ranks.start(
      [&](int rank, c10d_backend& backend) { return all_reduce(backend, tensors[rank], ReduceOp::Avg); });
  for (const auto& work : works) EXPECT_TRUE(work->wait());
  for (const auto& list : tensors)
    for (const auto& tensor : list) EXPECT_TRUE(same(tensor, filled(4)));
}

TEST(Corners, AReceiverFromAnybodyLearnsThatNobodyIsLeft) {
  if (!local_ranks_share_memory()) GTEST_SKIP() << "this backend cannot receive from any rank";
  LocalRanks ranks(2, 60s);
  for (const auto& work : ranks.start([](int, c10d_backend& backend) { return backend.barrier(); }))
    EXPECT_TRUE(work->wait());
  Tensors into = {filled(0)};
  const auto receiving = ranks[0].recvAnysource(into, 0);
  ranks.destroy(1);
  EXPECT_THROW(receiving->wait(10s), PeerLostError);
}

TEST(Corners, ReceivingIntoEveryOtherElement) {
  LocalRanks ranks(2);
  const auto whole = filled(0, 200);
  const auto receiving = recv(ranks[0], {whole.slice(0, 0, 200, 2)}, 1, 0);
  const auto sending = send(ranks[1], {filled(3)}, 0, 0);
  EXPECT_TRUE(receiving->wait());
  EXPECT_TRUE(sending->wait());
  EXPECT_TRUE(same(whole.slice(0, 0, 200, 2).contiguous(), filled(3)));
  EXPECT_TRUE(same(whole.slice(0, 1, 200, 2).contiguous(), filled(0)));
}

TEST(Corners, AMessageSentBeforeAnybodyCameArrivesAfterItsSenderLeft) {
  auto ranks = std::make_unique<LocalRanks>(2);
  const auto into = filled(0);
  const auto sending = send((*ranks)[0], {filled(5)}, 1, 0);
  ranks->destroy(0);
  const auto receiving = recv((*ranks)[1], {into}, 0, 0);
  EXPECT_TRUE(receiving->wait());
  EXPECT_TRUE(same(into, filled(5)));
}

}  // namespace
}  // namespace lockstep::testing
