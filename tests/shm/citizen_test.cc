// The backend as used by code that is written for c10d: several ranks in one process. Each rank has a thread
// of its own, or one thread makes the calls of all ranks and then waits for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/deadline.h"
#include "shm/local_ranks.h"
#include "shm/reference.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

enum class Drive { OneThread, ThreadForEachRank };

class Citizen : public ::testing::TestWithParam<Drive> {
 protected:
  // Makes every rank's call and completes it.
  void all(LocalRanks& ranks, const LocalRanks::Call& call) {
    if (GetParam() == Drive::OneThread) {
      for (const auto& work : ranks.start(call)) EXPECT_TRUE(work->wait());
    } else {
      ranks.in_threads([&](int rank, c10d_backend& backend) { EXPECT_TRUE(call(rank, backend)->wait()); });
    }
  }
};

void expect_filled(const at::Tensor& tensor, int value) {
  EXPECT_TRUE(same(tensor, filled(value, tensor.sizes()))) << tensor.flatten()[0].item() << " for " << value;
}

TEST_P(Citizen, BroadcastOfEveryTensorOfEveryRank) {
  LocalRanks ranks(3);
  for (int root = 0; root < 3; ++root) {
    for (int root_tensor = 0; root_tensor < 2; ++root_tensor) {
      std::vector<Tensors> tensors;
      for (int rank = 0; rank < 3; ++rank) tensors.push_back({filled(rank * 2), filled(rank * 2 + 1)});
      all(ranks, [&](int rank, c10d_backend& backend) {
        return broadcast(backend, tensors[rank], root, root_tensor);
      });
      for (const auto& list : tensors)
        for (const auto& tensor : list) expect_filled(tensor, root * 2 + root_tensor);
    }
  }
}

TEST_P(Citizen, AllReduceSumsAllTensorsOfAllRanksIntoAll) {
  LocalRanks ranks(3);
  std::vector<Tensors> tensors;
  for (int rank = 0; rank < 3; ++rank) tensors.push_back({filled(rank * 2), filled(rank * 2 + 1)});
  all(ranks, [&](int rank, c10d_backend& backend) { return all_reduce(backend, tensors[rank]); });
  for (const auto& list : tensors)
    for (const auto& tensor : list) expect_filled(tensor, 0 + 1 + 2 + 3 + 4 + 5);
}

TEST_P(Citizen, AllReduceCoalescedKeepsTensorsApart) {
  LocalRanks ranks(3);
  std::vector<Tensors> tensors;
  for (int rank = 0; rank < 3; ++rank) {
    tensors.push_back({filled(rank, {5}), filled(rank, {0}), filled(10 * rank, {3, 7}), filled(7, {})});
  }
  all(ranks, [&](int rank, c10d_backend& backend) { return all_reduce_coalesced(backend, tensors[rank]); });
  for (const auto& list : tensors) {
    expect_filled(list[0], 3);
    expect_filled(list[2], 30);
    expect_filled(list[3], 21);
  }
}

TEST_P(Citizen, ReduceToEveryRoot) {
  LocalRanks ranks(3);
  for (int root = 0; root < 3; ++root) {
    Tensors tensors = {filled(1), filled(2), filled(4)};
    all(ranks, [&](int rank, c10d_backend& backend) { return reduce(backend, {tensors[rank]}, root); });
    expect_filled(tensors[root], 7);
  }
}

TEST_P(Citizen, AllGatherOfSeveralTensors) {
  LocalRanks ranks(2);
  // outputs[rank][i]: one list for each input of the rank, each with all inputs of all ranks.
  std::vector<TensorLists> outputs(2);
  for (auto& lists : outputs) {
    for (int input = 0; input < 2; ++input) lists.push_back({filled(-1), filled(-1), filled(-1), filled(-1)});
  }
  all(ranks, [&](int rank, c10d_backend& backend) {
    return all_gather(backend, outputs[rank], {filled(rank * 2), filled(rank * 2 + 1)});
  });
  for (const auto& lists : outputs)
    for (const auto& list : lists)
      for (int i = 0; i < 4; ++i) expect_filled(list[i], i);
}

TEST_P(Citizen, AllGatherInItsOtherForms) {
  LocalRanks ranks(3);
  Tensors flat = {filled(-1, {3, 5}), filled(-1, {3, 5}), filled(-1, {15})};
  all(ranks, [&](int rank, c10d_backend& backend) {
    return all_gather_base(backend, flat[rank], filled(rank, {5}));
  });
  for (const auto& tensor : flat)
    for (int i = 0; i < 3; ++i) expect_filled(tensor.view({3, 5})[i], i);

  std::vector<TensorLists> lists(3);
  for (auto& list : lists)
    for (int i = 0; i < 3; ++i) list.push_back({filled(-1, {2}), filled(-1, {3, 3})});
  all(ranks, [&](int rank, c10d_backend& backend) {
    return all_gather_coalesced(backend, lists[rank], {filled(rank, {2}), filled(rank + 10, {3, 3})});
  });
  for (const auto& list : lists) {
    for (int i = 0; i < 3; ++i) {
      expect_filled(list[i][0], i);
      expect_filled(list[i][1], i + 10);
    }
  }
}

TEST_P(Citizen, GatherAndScatterAtEveryRoot) {
  LocalRanks ranks(3);
  for (int root = 0; root < 3; ++root) {
    Tensors gathered = {filled(-1), filled(-1), filled(-1)};
    all(ranks, [&](int rank, c10d_backend& backend) {
      return gather(backend, rank == root ? TensorLists{gathered} : TensorLists{}, {filled(rank)}, root);
    });
    for (int i = 0; i < 3; ++i) expect_filled(gathered[i], i);

    Tensors received = {filled(-1), filled(-1), filled(-1)};
    all(ranks, [&](int rank, c10d_backend& backend) {
      return scatter(backend, {received[rank]},
                     rank == root ? TensorLists{{filled(10), filled(11), filled(12)}} : TensorLists{}, root);
    });
    for (int i = 0; i < 3; ++i) expect_filled(received[i], 10 + i);
  }
}

TEST_P(Citizen, ReduceScatterInBothForms) {
  LocalRanks ranks(3);
  Tensors outputs = {filled(-1), filled(-1), filled(-1)};
  all(ranks, [&](int rank, c10d_backend& backend) {
    return reduce_scatter(backend, {outputs[rank]}, {{filled(rank), filled(rank + 10), filled(rank + 20)}});
  });
  for (int i = 0; i < 3; ++i) expect_filled(outputs[i], 3 + 30 * i);

  outputs = {filled(-1, {5}), filled(-1, {5}), filled(-1, {5})};
  all(ranks, [&](int rank, c10d_backend& backend) {
    const auto input = at::stack({filled(rank, {5}), filled(rank + 10, {5}), filled(rank + 20, {5})});
    return reduce_scatter_base(backend, outputs[rank], input);
  });
  for (int i = 0; i < 3; ++i) expect_filled(outputs[i], 3 + 30 * i);
}

// Data that shows which rank sends it to which.
at::Tensor letter(int from, int to, int64_t count) { return filled(from * 10 + to, {count}); }

TEST_P(Citizen, AllToAllOfTensorsOfAnySize) {
  LocalRanks ranks(3);
  std::vector<Tensors> inputs(3), outputs(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (int other = 0; other < 3; ++other) {
      inputs[rank].push_back(letter(rank, other, rank + 2 * other));
      outputs[rank].push_back(filled(-1, {other + 2 * rank}));
    }
  }
  all(ranks,
      [&](int rank, c10d_backend& backend) { return all_to_all(backend, outputs[rank], inputs[rank]); });
  for (int rank = 0; rank < 3; ++rank)
    for (int other = 0; other < 3; ++other) expect_filled(outputs[rank][other], other * 10 + rank);
}

TEST_P(Citizen, AllToAllWithSplits) {
  LocalRanks ranks(3);
  const std::vector<std::vector<Splits>> cases = {{{}, {}, {}},                       // equal
                                                  {{2, 2, 1}, {3, 1, 4}, {5, 9, 2}},  // uneven
                                                  {{0, 3, 0}, {0, 0, 0}, {4, 0, 1}},  // nothing for some
                                                  {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}};
  for (const auto& given : cases) {
    Tensors inputs, outputs, wanted;
    std::vector<Splits> taken(3);
    for (int rank = 0; rank < 3; ++rank) {
      const auto share = [&](int from, int to) { return given[from].empty() ? 4 : given[from][to]; };
      Tensors sent, received;
      for (int other = 0; other < 3; ++other) {
        sent.push_back(letter(rank, other, share(rank, other)));
        received.push_back(letter(other, rank, share(other, rank)));
        if (!given[rank].empty()) taken[rank].push_back(share(other, rank));
      }
      inputs.push_back(at::cat(sent));
      wanted.push_back(at::cat(received));
      outputs.push_back(at::full_like(wanted.back(), -1));
    }
    all(ranks, [&](int rank, c10d_backend& backend) {
      return all_to_all_base(backend, outputs[rank], inputs[rank], taken[rank], given[rank]);
    });
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(same(outputs[rank], wanted[rank]));
  }
}

// Splits count rows, not elements.
TEST_P(Citizen, AllToAllOfRows) {
  LocalRanks ranks(2);
  Tensors inputs = {filled(1, {3, 5}), filled(2, {3, 5})}, outputs = {filled(-1, {4, 5}), filled(-1, {2, 5})};
  const std::vector<Splits> given = {{2, 1}, {2, 1}}, taken = {{2, 2}, {1, 1}};
  all(ranks, [&](int rank, c10d_backend& backend) {
    return all_to_all_base(backend, outputs[rank], inputs[rank], taken[rank], given[rank]);
  });
  expect_filled(outputs[0].narrow(0, 0, 2), 1);
  expect_filled(outputs[0].narrow(0, 2, 2), 2);
  expect_filled(outputs[1].narrow(0, 0, 1), 1);
  expect_filled(outputs[1].narrow(0, 1, 1), 2);
}

// All have one size and dtype. The number and the indices of the elements depend on the seed.
at::Tensor sparse_data(int seed, int sparse_dims, int dense_dims, at::ScalarType dtype) {
  const int64_t count = seed % 4;  // 0: no elements at all
  std::vector<int64_t> sizes(sparse_dims, 6), value_sizes = {count};
  for (int i = 0; i < dense_dims; ++i) {
    sizes.push_back(3);
    value_sizes.push_back(3);
  }
  // Indices may repeat, so the tensor is not coalesced.
  const auto indices = at::arange(count).mul(seed).remainder(3).expand({sparse_dims, count}).clone();
  const auto values = at::arange(c10::multiply_integers(value_sizes)).add(seed).view(value_sizes).to(dtype);
  return at::sparse_coo_tensor(indices, values, sizes);
}

TEST_P(Citizen, AllReduceOfSparseTensors) {
  LocalRanks ranks(3);
  for (const int each : {1, 2}) {
    for (const auto& [sparse_dims, dense_dims] : std::vector<std::pair<int, int>>{{1, 0}, {3, 0}, {1, 2}}) {
      for (const auto dtype : {at::kFloat, at::kLong}) {
        std::vector<Tensors> tensors(3);
        auto expected = sparse_data(0, sparse_dims, dense_dims, dtype).to_dense();
        for (int seed = 0; seed < 3 * each; ++seed) {
          tensors[seed / each].push_back(sparse_data(seed, sparse_dims, dense_dims, dtype));
          expected = expected + tensors[seed / each].back().to_dense();
        }
        all(ranks, [&](int rank, c10d_backend& backend) { return all_reduce(backend, tensors[rank]); });
        for (const auto& list : tensors) {
          for (const auto& tensor : list) {
            EXPECT_TRUE(tensor.is_sparse() && tensor.is_coalesced());
            EXPECT_TRUE(same(tensor.to_dense(), expected));
          }
        }
      }
    }
  }
  // Between other calls, and when no rank has any elements.
  std::vector<Tensors> none;
  std::vector<at::Tensor> dense;
  for (int rank = 0; rank < 3; ++rank) {
    none.push_back({sparse_data(0, 1, 1, at::kFloat)});
    dense.push_back(filled(rank));
  }
  std::vector<WorkPtr> works;
  for (int rank = 0; rank < 3; ++rank) {
    works.push_back(all_reduce(ranks[rank], none[rank]));
    works.push_back(all_reduce(ranks[rank], {dense[rank]}));
  }
  for (const auto& work : works) EXPECT_TRUE(work->wait());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(none[rank][0]._nnz(), 0);
    expect_filled(dense[rank], 3);
  }
}

TEST(CitizenSparse, TensorsThatCannotBeAddedAreAMismatch) {
  const auto one = sparse_data(1, 1, 0, at::kFloat);
  const std::vector<at::Tensor> others = {
      at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}), {7}),
      sparse_data(1, 1, 1, at::kFloat), sparse_data(1, 1, 0, at::kDouble), at::ones({6})};
  for (const auto& other : others) {
    LocalRanks ranks(2);
    const auto first = all_reduce(ranks[0], {one.clone()});
    const auto second = all_reduce(ranks[1], {other.clone()});
    EXPECT_THROW(first->wait(20s), MismatchError);
    EXPECT_THROW(second->wait(20s), MismatchError);
  }
}

TEST_P(Citizen, NothingAtAll) {
  LocalRanks ranks(2);
  const auto none = at::empty({0});
  all(ranks, [&](int, c10d_backend& backend) { return all_reduce(backend, {none}); });
  all(ranks, [&](int, c10d_backend& backend) { return broadcast(backend, {none}); });
  all(ranks, [&](int, c10d_backend& backend) { return all_gather(backend, {{none, none}}, {none}); });
  all(ranks, [&](int rank, c10d_backend& backend) {
    return rank == 0 ? send(backend, {none}, 1) : recv(backend, {none}, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Driven, Citizen, ::testing::Values(Drive::OneThread, Drive::ThreadForEachRank),
                         [](const auto& drive) {
                           return drive.param == Drive::OneThread ? "ByOneThread" : "ByThreads";
                         });

TEST(CitizenPointToPoint, TagsAreReceivedInAnyOrder) {
  LocalRanks ranks(2);
  Tensors received = {filled(-1), filled(-1), filled(-1)};
  std::vector<WorkPtr> works;
  for (int tag = 0; tag < 3; ++tag) works.push_back(send(ranks[0], {filled(tag)}, 1, tag));
  for (const int tag : {2, 0, 1}) works.push_back(recv(ranks[1], {received[tag]}, 0, tag));
  for (const auto& work : works) EXPECT_TRUE(work->wait());
  for (int tag = 0; tag < 3; ++tag) expect_filled(received[tag], tag);
}

TEST(CitizenPointToPoint, EqualTagsKeepTheirOrder) {
  LocalRanks ranks(2);
  Tensors received = {filled(-1), filled(-1), filled(-1)};
  std::vector<WorkPtr> works;
  works.push_back(recv(ranks[1], {received[0]}, 0, 5));  // the receive is posted before the send
  for (int i = 0; i < 3; ++i) works.push_back(send(ranks[0], {filled(i)}, 1, 5));
  for (int i = 1; i < 3; ++i) works.push_back(recv(ranks[1], {received[i]}, 0, 5));
  for (const auto& work : works) EXPECT_TRUE(work->wait());
  for (int i = 0; i < 3; ++i) expect_filled(received[i], i);
}

TEST(CitizenPointToPoint, CollectivesPassSendsThatWait) {
  LocalRanks ranks(2);
  const auto sending = send(ranks[0], {filled(3)}, 1, 9);
  for (const auto& work : ranks.start([&](int, c10d_backend& backend) { return backend.barrier(); }))
    EXPECT_TRUE(work->wait());
  const auto received = filled(-1);
  EXPECT_TRUE(recv(ranks[1], {received}, 0, 9)->wait());
  EXPECT_TRUE(sending->wait());
  expect_filled(received, 3);
}

TEST(CitizenPointToPoint, AReceiveFromAnybodySaysFromWhom) {
  LocalRanks ranks(3);
  if (!local_ranks_share_memory()) {
    EXPECT_THAT(error_of([&] { recv_from_any(ranks[0], {filled(-1)}); }),
                HasSubstr("a receive from any rank is not possible in a group on several machines"));
    return;
  }
  Tensors received = {filled(-1), filled(-1)};
  const auto first = recv_from_any(ranks[0], {received[0]}, 4);
  const auto second = recv_from_any(ranks[0], {received[1]}, 4);
  const auto other_tag = send(ranks[1], {filled(99)}, 0, 5);
  const auto sending = {send(ranks[2], {filled(2)}, 0, 4), send(ranks[1], {filled(1)}, 0, 4)};
  for (const auto& work : {first, second}) EXPECT_TRUE(work->wait());
  for (const auto& work : sending) EXPECT_TRUE(work->wait());
  expect_filled(received[0], first->sourceRank());
  expect_filled(received[1], second->sourceRank());
  EXPECT_EQ((std::set<int>{first->sourceRank(), second->sourceRank()}), (std::set<int>{1, 2}));

  const auto named = recv(ranks[0], {received[0]}, 1, 5);
  EXPECT_TRUE(named->wait());
  EXPECT_TRUE(other_tag->wait());
  EXPECT_EQ(named->sourceRank(), 1);
  expect_filled(received[0], 99);
}

TEST(CitizenBarrier, HoldsEverybodyBackAndComesAfterEarlierCalls) {
  LocalRanks ranks(3);
  std::vector<WorkPtr> earlier, barriers;
  Tensors tensors = {filled(1, {100'000}), filled(2, {100'000}), filled(3, {100'000})};
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& work : barriers) EXPECT_FALSE(work->isCompleted());
    earlier.push_back(all_reduce(ranks[rank], {tensors[rank]}));
    barriers.push_back(ranks[rank].barrier());
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(barriers[rank]->wait());
    EXPECT_TRUE(earlier[rank]->isCompleted());
    expect_filled(tensors[rank], 6);
  }
}

TEST(CitizenBarrier, MonitoredPassesWhenAllCome) {
  LocalRanks ranks(3);
  for (const bool wait_for_all : {false, true}) {
    ranks.in_threads([&](int, c10d_backend& backend) { backend.monitoredBarrier({}, wait_for_all); });
  }
}

// The `absent` ranks do not call the barrier, or leave the group. Returns the errors of the others, which
// must be in time.
std::map<int, std::string> monitored_without(const std::set<int>& absent, int world, bool wait_for_all,
                                             bool leave = false) {
  LocalRanks ranks(world, 2s);
  ranks.in_threads([&](int, c10d_backend& backend) { backend.barrier()->wait(); });
  if (leave) {
    for (const int rank : absent) ranks.destroy(rank);
  }
  std::map<int, std::string> told;
  std::mutex mutex;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    if (absent.count(rank) != 0) continue;
    threads.emplace_back([&, rank] {
      c10d::BarrierOptions options;
      options.timeout = 500ms;
      const auto text = error_of([&] { ranks[rank].monitoredBarrier(options, wait_for_all); });
      // The group is poisoned.
      EXPECT_FALSE(error_of([&] { ranks[rank].barrier()->wait(); }).empty());
      const std::lock_guard lock(mutex);
      told[rank] = text;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 7s);
  return told;
}

TEST(CitizenBarrier, MonitoredNamesTheRankThatIsMissing) {
  for (const bool leave : {false, true}) {
    const auto told = monitored_without({1}, 3, false, leave);
    EXPECT_THAT(told.at(0), HasSubstr("Rank 1 failed to pass monitoredBarrier in 500 ms"));
    EXPECT_THAT(told.at(2),
                HasSubstr("Rank 2 successfully reached monitoredBarrier, but received errors while "
                          "waiting for send/recv from rank 0"));
  }
}

TEST(CitizenBarrier, MonitoredNamesAllRanksThatAreMissing) {
  for (const bool leave : {false, true}) {
    const auto told = monitored_without({1, 3}, 4, true, leave);
    EXPECT_THAT(told.at(0), HasSubstr("Ranks 1, 3 failed to pass monitoredBarrier in 500 ms"));
  }
}

TEST(CitizenBarrier, MonitoredWithoutRankZero) {
  EXPECT_THAT(monitored_without({0}, 2, false).at(1),
              HasSubstr("Rank 1 successfully reached monitoredBarrier"));
}

TEST(CitizenBarrier, MonitoredWithoutAnyTime) {
  LocalRanks ranks(2);
  c10d::BarrierOptions options;
  options.timeout = 0ms;
  EXPECT_THAT(error_of([&] { ranks[0].monitoredBarrier(options, false); }),
              HasSubstr("Rank 0 timed out in monitoredBarrier"));
}

TEST(CitizenIdentity, NameRankAndSize) {
  LocalRanks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank].getBackendName(), backend_of_local_ranks());
    EXPECT_EQ(ranks[rank].getRank(), rank);
    EXPECT_EQ(ranks[rank].getSize(), 3);
  }
}

TEST(CitizenIdentity, SequenceNumbersAreThereFromTheStartAndAgree) {
  LocalRanks ranks(3);
  const auto agreed = [&] {
    const auto number = ranks[0].getSequenceNumberForGroup();
    for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(ranks[rank].getSequenceNumberForGroup(), number);
    return number;
  };
  const auto first = agreed();
  for (int i = 0; i < 3; ++i) {
    const auto works =
        ranks.start([](int, c10d_backend& backend) { return all_reduce(backend, {filled(1)}); });
    for (const auto& work : works) EXPECT_TRUE(work->wait());
  }
  EXPECT_EQ(agreed(), first + 3);
  // Messages do not concern all ranks, so they must not count.
  const auto sending = send(ranks[0], {filled(1)}, 1);
  EXPECT_TRUE(recv(ranks[1], {filled(0)}, 0)->wait());
  EXPECT_TRUE(sending->wait());
  EXPECT_EQ(agreed(), first + 3);

  for (int rank = 0; rank < 3; ++rank) ranks[rank].setSequenceNumberForGroup();
  agreed();
}

}  // namespace
}  // namespace lockstep::testing
