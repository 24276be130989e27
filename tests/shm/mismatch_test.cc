// If ranks make different calls, every rank gets an error that shows both calls. There are no hangs and no
// wrong results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "shm/kinds.h"
#include "shm/local_ranks.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using Call = std::function<WorkPtr(c10d_backend& backend)>;

struct Disagreement {
  std::string name;
  Call most, one;                  // `one` is rank 1's call
  std::vector<std::string> words;  // from both calls, as regular expressions
};

void PrintTo(const Disagreement& disagreement, std::ostream* out) { *out << disagreement.name; }

at::Tensor some(int64_t count = 100, at::ScalarType dtype = at::kFloat) { return at::ones({count}, dtype); }

std::vector<Disagreement> disagreements() {
  const Call reduces = [](c10d_backend& backend) { return all_reduce(backend, {some()}); };
  return {
      {"Kind",
       reduces,
       [](c10d_backend& backend) { return broadcast(backend, {some()}); },
       {"all_?reduce", "broadcast"}},
      {"KindWithoutTensor",
       reduces,
       [](c10d_backend& backend) { return backend.barrier(); },
       {"all_?reduce", "barrier"}},
      {"Dtype",
       reduces,
       [](c10d_backend& backend) { return all_reduce(backend, {some(100, at::kDouble)}); },
       {"[Ff]loat", "[Dd]ouble"}},
      // The same number of bytes, so only the dtype differs.
      {"DtypeOfOneSize",
       reduces,
       [](c10d_backend& backend) { return all_reduce(backend, {some(100, at::kInt)}); },
       {"[Ff]loat", "[Ii]nt"}},
      {"Size",
       reduces,
       [](c10d_backend& backend) { return all_reduce(backend, {some(101)}); },
       {"100", "101"}},
      {"LargeSize",
       [](c10d_backend& backend) { return all_reduce(backend, {some(1'000'000)}); },
       [](c10d_backend& backend) { return all_reduce(backend, {some(999'999)}); },
       {"1000000", "999999"}},
      {"NoElements",
       reduces,
       [](c10d_backend& backend) { return all_reduce(backend, {some(0)}); },
       {"100", "of 0"}},
      {"SizeOfAllGather",
       [](c10d_backend& backend) { return all_gather_base(backend, some(300), some()); },
       [](c10d_backend& backend) { return all_gather_base(backend, some(600), some(200)); },
       {"100", "200"}},
      {"Operation",
       reduces,
       [](c10d_backend& backend) { return all_reduce(backend, {some()}, ReduceOp::Max); },
       {"[Ss](um|UM)", "[Mm](ax|AX)"}},
      {"Root",
       [](c10d_backend& backend) { return broadcast(backend, {some()}, 0); },
       [](c10d_backend& backend) { return broadcast(backend, {some()}, 2); },
       {"root"}},
      // Rank 1 has skipped a call, so all its later calls are shifted by one.
      {"Sequence",
       [](c10d_backend& backend) {
         backend.barrier();
         return all_reduce(backend, {some()});
       },
       reduces,
       {"barrier", "all_?reduce"}},
  };
}

class Mismatch : public ::testing::TestWithParam<Disagreement> {};

TEST_P(Mismatch, IsToldToEveryRankWithBothCalls) {
  LocalRanks ranks(3, 60s);
  ranks.in_threads([](int, c10d_backend& backend) {
    EXPECT_TRUE(all_reduce(backend, {some()})->wait());  // the ranks agree so far
  });
  const auto begin = std::chrono::steady_clock::now();
  ranks.in_threads([](int rank, c10d_backend& backend) {
    std::string first;
    try {
      const auto& call = rank == 1 ? GetParam().one : GetParam().most;
      call(backend)->wait();
      ADD_FAILURE() << "rank " << rank << " was told nothing";
    } catch (const MismatchError& error) {
      first = error.what();
    }
    for (const auto& words : GetParam().words) EXPECT_THAT(first, ContainsRegex(words)) << "rank " << rank;
    EXPECT_THAT(first, HasSubstr("rank 1"));
    EXPECT_THAT(first, HasSubstr("hint:"));
    // The error is repeated, although the ranks agree now.
    EXPECT_EQ(error_of([&] { all_reduce(backend, {some()})->wait(); }), first);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

INSTANTIATE_TEST_SUITE_P(Of, Mismatch, ::testing::ValuesIn(disagreements()),
                         [](const auto& param) { return param.param.name; });

TEST(MismatchInDetail, SplitsThatDoNotFit) {
  LocalRanks ranks(2, 60s);
  ranks.in_threads([](int rank, c10d_backend& backend) {
    // Rank 0 gives rank 1 two rows; rank 1 expects three.
    const auto taken = rank == 0 ? Splits{2, 2} : Splits{3, 1};
    const auto exchange = [&] { all_to_all_base(backend, some(4), some(4), taken, {2, 2})->wait(); };
    if (rank == 1) {
      EXPECT_THROW(exchange(), MismatchError);
    } else {
      // What rank 0 itself takes part in fits, so its error may come in the next call.
      EXPECT_THROW((exchange(), backend.barrier()->wait()), MismatchError);
    }
  });
}

TEST(MismatchInDetail, AMessageThatDoesNotFit) {
  LocalRanks ranks(2, 60s);
  const auto sending = send(ranks[0], {some(10)}, 1);
  const auto receiving = recv(ranks[1], {some(20)}, 0);
  EXPECT_THROW(receiving->wait(), MismatchError);
  EXPECT_THROW(sending->wait(), Error);
}

TEST(MismatchInDetail, TravelsThroughFutures) {
  LocalRanks ranks(2, 60s);
  const auto first = all_reduce(ranks[0], {some()});
  std::atomic<bool> told{false};
  first->getFuture()->addCallback([&](c10::ivalue::Future& done) { told = done.hasError(); });
  const auto second = ranks[1].barrier();
  EXPECT_TRUE(eventually([&] { return told.load() && second->isCompleted(); }));
  EXPECT_FALSE(first->isSuccess());
  EXPECT_THAT(first->getFuture()->tryRetrieveErrorMessage(), HasSubstr("barrier"));
}

// With processes and ProcessGroup. Each case has a group of its own; other groups are not affected.
TEST(MismatchInDetail, GroupsOfProcesses) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const bool odd_one = group.rank() == 1;
    const std::vector<std::function<void(ProcessGroup&)>> cases = {
        [&](ProcessGroup& some_group) {
          auto tensor = some();
          odd_one ? some_group.barrier() : some_group.all_reduce(tensor);
        },
        [&](ProcessGroup& some_group) {
          auto tensor = some(odd_one ? 7 : 8);
          some_group.all_reduce(tensor);
        },
        [&](ProcessGroup& some_group) {
          auto tensor = some(8, odd_one ? at::kLong : at::kDouble);
          some_group.all_reduce(tensor);
        },
        [&](ProcessGroup& some_group) {
          auto tensor = some();
          some_group.all_reduce(tensor, odd_one ? ReduceOp::Min : ReduceOp::Avg);
        },
        [&](ProcessGroup& some_group) {
          auto tensor = some();
          some_group.broadcast(tensor, odd_one ? 1 : 0);
        },
        [&](ProcessGroup& some_group) {
          auto tensor = some(9);
          odd_one ? some_group.reduce(tensor, 0) : some_group.all_reduce(tensor);
        }};
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      const auto doomed = group.new_group({0, 1, 2});
      std::string first;
      try {
        cases[i](*doomed);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const MismatchError& error) {
        first = error.what();
      }
      EXPECT_THAT(first, HasSubstr("hint:"));
      EXPECT_EQ(error_of([&] { doomed->barrier(); }), first);
      auto tensor = some();
      group.all_reduce(tensor);
      EXPECT_EQ(tensor[0].item<int>(), 3);
    }
  });
}

// A call with a tensor without elements counts like any other. Otherwise later calls of the ranks would be
// paired incorrectly.
TEST(MismatchInDetail, TensorsWithoutElementsTakePart) {
  run_ranks(3, "shm", [](ProcessGroup& group) {
    const bool odd_one = group.rank() == 1;
    const int64_t count = odd_one ? 0 : 100;
    for (const auto& kind : all_kinds()) {
      if (kind.name == "barrier") continue;
      SCOPED_TRACE(kind.name);
      const auto doomed = group.new_group({0, 1, 2});
      EXPECT_THROW(
          {
            kind.run(*doomed, count);
            doomed->barrier();  // a rank that only gives data gets its error here
          },
          MismatchError);
    }
    const std::vector<std::function<void(ProcessGroup&)>> blocking = {
        [&](ProcessGroup& doomed) {
          auto tensor = some(count);
          doomed.all_reduce(tensor);
        },
        [&](ProcessGroup& doomed) {
          auto tensor = some(count);
          doomed.broadcast(tensor, 0);
        },
        [&](ProcessGroup& doomed) {
          auto output = some(3 * count);
          doomed.all_gather_into_tensor(output, some(count));
        },
        [&](ProcessGroup& doomed) {
          auto output = some(count);
          doomed.reduce_scatter_tensor(output, some(3 * count));
        }};
    for (const auto& call : blocking) {
      const auto doomed = group.new_group({0, 1, 2});
      EXPECT_THROW((call(*doomed), doomed->barrier()), MismatchError);
    }
    // The same total number of elements, in another order.
    const auto doomed = group.new_group({0, 1, 2});
    auto none = some(0), all = some();
    EXPECT_THROW((doomed->all_reduce(odd_one ? all : none), doomed->all_reduce(odd_one ? none : all)),
                 MismatchError);
    EXPECT_EQ(all.sum().item<int>(), 100);
  });
}

}  // namespace
}  // namespace lockstep::testing
