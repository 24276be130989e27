// What c10d asks of a backend since LibTorch 2.13: other members (reconfigure), the collectives on single
// tensors by their new names, and calls through a c10d::ProcessGroup with hooks. Skipped with earlier
// versions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/error.h>

#include "compat/backend.h"
#include "shm/local_ranks.h"
#include "shm/reference.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

#ifdef C10D_BACKEND_HAS_RECONFIGURE

using Handles = std::vector<c10d::ReconfigureHandle>;

void reconfigure(c10d_backend& backend, int64_t uuid, const Handles& handles,
                 std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
  c10d::ReconfigureOptions options;
  options.uuid = uuid;
  options.handles = handles;
  options.timeout = timeout;
  EXPECT_TRUE(backend.reconfigure(options)->wait());
}

Handles handles_of(LocalRanks& ranks, const std::vector<int>& chosen) {
  Handles handles;
  for (const int rank : chosen) handles.push_back(ranks[rank].get_reconfigure_handle());
  return handles;
}

// Every rank of the backend contributes 2^rank: the sum tells who took part.
void expect_members(c10d_backend& backend, int rank, int world) {
  EXPECT_EQ(backend.getRank(), rank);
  EXPECT_EQ(backend.getSize(), world);
  const auto tensor = filled(1 << rank, {100});
  EXPECT_TRUE(all_reduce(backend, {tensor})->wait());
  EXPECT_TRUE(same(tensor, filled((1 << world) - 1, {100}))) << tensor[0].item();
}

// For processes. Never destroyed: its destructor writes to the file. If a rank ended while another thread
// does that, the other ranks would read an incomplete record, at which LibTorch waits forever.
c10::intrusive_ptr<c10d::Store> file_store(const ScratchFolder& folder) {
  auto store = c10::make_intrusive<c10d::FileStore>((folder / "store").string(), -1);
  c10::intrusive_ptr<c10d::FileStore>(store).release();
  return store;
}

TEST(Reconfigure, ShrinksAndGrowsAndReorders) {
  LocalRanks ranks(3);
  const auto two = handles_of(ranks, {2, 0});
  const auto three = handles_of(ranks, {1, 2, 0});
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    EXPECT_TRUE(backend.supportsReconfigure());
    expect_members(backend, rank, 3);
    if (rank != 1) {
      reconfigure(backend, 10, two);
      expect_members(backend, rank == 2 ? 0 : 1, 2);
      EXPECT_EQ(backend.getSequenceNumberForGroup(), 2);  // the generation's own: reconfigure and the sum
    }
    reconfigure(backend, 11, three);
    expect_members(backend, (rank + 2) % 3, 3);
    const int next = (backend.getRank() + 1) % 3, previous = (backend.getRank() + 2) % 3;
    std::vector<at::Tensor> sent = {filled(backend.getRank())}, received = {filled(-1)};
    const auto sending = backend.send(sent, next, 0);
    EXPECT_TRUE(backend.recv(received, previous, 0)->wait());
    EXPECT_TRUE(sending->wait());
    EXPECT_TRUE(same(received[0], filled(previous)));
  });
}

TEST(Reconfigure, RanksWithoutAnOrderAgreeOnOne) {
  LocalRanks ranks(3);
  const auto handles = handles_of(ranks, {0, 1, 2});
  std::atomic<int> seen{0};
  ranks.in_threads([&](int, c10d_backend& backend) {
    c10d::ReconfigureOptions options;
    options.uuid = 1;
    options.handles = std::unordered_set<c10d::ReconfigureHandle>(handles.begin(), handles.end());
    EXPECT_TRUE(backend.reconfigure(options)->wait());
    seen += 1 << backend.getRank();
    expect_members(backend, backend.getRank(), 3);
  });
  EXPECT_EQ(seen, 0b111);
}

TEST(Reconfigure, EachAloneAndTogetherAgain) {
  LocalRanks ranks(2);
  const auto both = handles_of(ranks, {0, 1});
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    reconfigure(backend, 20 + rank, {both[rank]});
    expect_members(backend, 0, 1);
    reconfigure(backend, 22, both);
    expect_members(backend, rank, 2);
  });
}

TEST(Reconfigure, WorksUnderWayContinue) {
  LocalRanks ranks(2);
  const auto both = handles_of(ranks, {0, 1});
  const auto given = filled(1, {1000}), later = filled(2, {1000});
  const auto old = all_reduce(ranks[0], {given});
  std::thread other([&] {
    const auto its = all_reduce(ranks[1], {later});
    reconfigure(ranks[1], 1, both);
    EXPECT_TRUE(its->wait());
  });
  reconfigure(ranks[0], 1, both);
  EXPECT_TRUE(old->wait());
  other.join();
  EXPECT_TRUE(same(given, filled(3, {1000})));
  EXPECT_TRUE(same(later, filled(3, {1000})));
}

TEST(Reconfigure, RanksThatAreLeftBehindGetAnError) {
  LocalRanks ranks(3);
  const auto two = handles_of(ranks, {0, 1});
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    expect_members(backend, rank, 3);
    if (rank < 2) {
      reconfigure(backend, 1, two);
      expect_members(backend, rank, 2);
    } else {
      EXPECT_THAT(error_of([&] { all_reduce(backend, {filled(1)})->wait(); }), HasSubstr("has ended"));
    }
  });
}

TEST(Reconfigure, RefusesWhatCannotBeMeant) {
  LocalRanks ranks(1);
  auto& backend = ranks[0];
  const auto own = backend.get_reconfigure_handle();
  EXPECT_EQ(own, backend.get_reconfigure_handle());
  const auto refusal = [&](int64_t uuid, const Handles& handles) {
    return error_of([&] { reconfigure(backend, uuid, handles); });
  };
  EXPECT_THAT(refusal(1, {}), AllOf(HasSubstr("not among the 0"), HasSubstr("hint:")));
  EXPECT_THAT(refusal(1, {"another"}), HasSubstr("not among the 1"));
  EXPECT_THAT(refusal(1, {own, own}), HasSubstr("given twice"));
  expect_members(backend, 0, 1);
  reconfigure(backend, 1, {own});
  EXPECT_THAT(refusal(1, {own}), AllOf(HasSubstr("uuid 1 was already used"), HasSubstr("hint:")));
  expect_members(backend, 0, 1);
}

TEST(Reconfigure, AfterATimeoutTheBackendIsAsBefore) {
  LocalRanks ranks(2);
  const auto both = handles_of(ranks, {0, 1});
  EXPECT_THAT(error_of([&] { reconfigure(ranks[0], 1, both, 50ms); }), HasSubstr("missing: rank 1"));
  // Who comes later hears that, and does not wait for a rank that has given up.
  EXPECT_THAT(error_of([&] { reconfigure(ranks[1], 1, both, 1s); }), HasSubstr("missing: rank 1"));
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    expect_members(backend, rank, 2);
    reconfigure(backend, 2, {both[1], both[0]});
    expect_members(backend, 1 - rank, 2);
  });
}

TEST(Reconfigure, DifferentListsAreAMismatch) {
  LocalRanks ranks(2);
  const auto both = handles_of(ranks, {0, 1});
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    const auto list = rank == 0 ? both : Handles{both[1], both[0]};
    EXPECT_THROW(reconfigure(backend, 1, list), MismatchError);
    expect_members(backend, rank, 2);
  });
}

TEST(Reconfigure, ABackendThatWaitsForItsMembers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d_backend>> backends;
  Handles handles;
  for (int rank = 0; rank < 2; ++rank) {
    backends.push_back(make_unconnected_c10d_backend("auto", store, rank, 2, 20s));
    handles.push_back(backends[rank]->get_reconfigure_handle());
    EXPECT_EQ(backends[rank]->getRank(), rank);
    EXPECT_EQ(backends[rank]->getSize(), 2);
    EXPECT_THAT(error_of([&] { all_reduce(*backends[rank], {filled(1)})->wait(); }),
                AllOf(HasSubstr("not connected"), HasSubstr("hint: call reconfigure()")));
  }
  std::thread other([&] {
    reconfigure(*backends[1], 1, handles);
    expect_members(*backends[1], 1, 2);
  });
  reconfigure(*backends[0], 1, handles);
  expect_members(*backends[0], 0, 2);
  other.join();
  EXPECT_TRUE(eventually([&] { return store->getNumKeys() == 0; }))
      << store->getNumKeys() << " keys are left";
  EXPECT_THROW(make_unconnected_c10d_backend("gloo", store, 0, 2, 20s), UsageError);
}

TEST(Reconfigure, RanksOnSeveralMachinesAreRefused) {
  const ScratchFolder folder;
  expect_success(start_ranks(2,
                             [&](int rank) {
                               const auto backend =
                                   make_c10d_backend("auto", file_store(folder), rank, 2, 60s);
                               EXPECT_FALSE(backend->supportsReconfigure());
                               const auto own = backend->get_reconfigure_handle();
                               EXPECT_THAT(error_of([&] { reconfigure(*backend, 1, {own}); }),
                                           AllOf(HasSubstr("on several machines"), HasSubstr("hint:")));
                               expect_members(*backend, rank, 2);
                             },
                             {.environment = on_machines("ab")}));
}

// Processes: rank 1 is killed, the others go on without it, and then with one that comes later.
TEST(Reconfigure, SurvivorsContinueWithANewcomer) {
  const ScratchFolder folder;
  const auto outcomes = start_ranks(4, [&](int rank) {
    const auto store = file_store(folder);
    const bool newcomer = rank == 3;
    const auto backend = newcomer ? make_unconnected_c10d_backend("shm", store, 0, 1, 60s)
                                  : make_c10d_backend("shm", store, rank, 3, 60s, true);
    const auto key = [](int of) { return "handle " + std::to_string(of); };
    const auto own = backend->get_reconfigure_handle();
    store->set(key(rank), std::vector<uint8_t>(own.begin(), own.end()));
    const auto handle = [&](int of) {
      const auto bytes = store->get(key(of));
      return std::string(bytes.begin(), bytes.end());
    };
    if (!newcomer) {
      expect_members(*backend, rank, 3);
      if (rank == 1) ::kill(::getpid(), SIGKILL);
      EXPECT_THROW(all_reduce(*backend, {filled(1)})->wait(), PeerLostError);
      reconfigure(*backend, 1, {handle(0), handle(2)});
      expect_members(*backend, rank / 2, 2);
    }
    reconfigure(*backend, 2, {handle(3), handle(0), handle(2)});
    expect_members(*backend, newcomer ? 0 : 1 + rank / 2, 3);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_status, outcome.rank == 1 ? -1 : 0) << outcome.describe();
  }
}

TEST(Reconfigure, TheNewNamesOfCollectivesOnSingleTensors) {
  LocalRanks ranks(3);
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    auto all = filled(-1, {3, 2}), mine = filled(rank, {2});
    EXPECT_TRUE(backend.all_gather_single(all, mine)->wait());
    auto parts = all.clone(), part = filled(-1, {2});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same(all[i], filled(i, {2})));
    EXPECT_TRUE(backend.reduce_scatter_single(part, parts)->wait());
    EXPECT_TRUE(same(part, filled(3 * rank, {2})));
    auto from = filled(rank, {3}), to = filled(-1, {3});
    Splits none;
    EXPECT_TRUE(backend.all_to_all_single(to, from, none, none)->wait());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(to[i].item<float>(), i);
  });
}

TEST(Reconfigure, GatherOfSingleTensors) {
  LocalRanks ranks(3);
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    c10d::GatherOptions options;
    for (int root = 0; root < 3; ++root) {
      options.rootRank = root;
      auto mine = filled(rank, {2}), nothing = at::empty({0});
      // Rows of a wider tensor, and this rank's own row as its input.
      auto wide = filled(-1, {3, 5});
      auto all = wide.narrow(1, 1, 2);
      EXPECT_TRUE(backend.gather_single(rank == root ? all : nothing, mine, options)->wait());
      auto flat = filled(-1, {6});
      flat.narrow(0, 2 * rank, 2).fill_(rank);
      auto own = flat.narrow(0, 2 * rank, 2);
      EXPECT_TRUE(backend.gather_single(rank == root ? flat : nothing, own, options)->wait());
      for (int i = 0; i < 3 && rank == root; ++i) {
        EXPECT_TRUE(same(all[i], filled(i, {2})));
        EXPECT_TRUE(same(flat.narrow(0, 2 * i, 2), filled(i, {2})));
        EXPECT_EQ(wide[i][0].item<float>(), -1);
      }
    }
    auto mine = filled(rank, {2}), small = filled(-1, {5});
    options.rootRank = rank;
    EXPECT_THAT(error_of([&] { backend.gather_single(small, mine, options); }),
                HasSubstr("world_size times"));
  });
}

// A group as Python makes it: hooks and operations go through the dispatcher to the backend.
TEST(Reconfigure, HooksOfAProcessGroup) {
  LocalRanks ranks(2);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ranks.in_threads([&](int rank, c10d_backend& backend) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::intrusive_ptr<c10d_backend>::unsafe_reclaim_from_nonowning(&backend));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    std::vector<c10d::HookOpName> before;
    int after = 0;
    group->registerPreHook(1, [&](const c10d::PreHookArgs& call) { before.push_back(call.name); });
    group->registerPostHook(1, [&](const c10d::PostHookArgs& call) { after += call.work != nullptr; });
    auto all = filled(-1, {2, 3}), mine = filled(rank, {3}), part = filled(-1, {3}),
         moved = filled(-1, {2, 3});
    EXPECT_TRUE(group->all_gather_single(all, mine)->wait());
    EXPECT_TRUE(group->reduce_scatter_single(part, all)->wait());
    Splits none;
    EXPECT_TRUE(group->all_to_all_single(moved, all, none, none)->wait());
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(same(all[i], filled(i, {3})));
      EXPECT_TRUE(same(moved[i], filled(rank, {3})));
    }
    EXPECT_TRUE(same(part, filled(2 * rank, {3})));
    EXPECT_THAT(before, ::testing::ElementsAre(c10d::HookOpName::ALLGATHER, c10d::HookOpName::REDUCE_SCATTER,
                                               c10d::HookOpName::ALLTOALL));
    EXPECT_EQ(after, 3);

    // Rank and size of the group are those of its backend.
    EXPECT_TRUE(group->supportsReconfigure());
    c10d::ReconfigureOptions alone;
    alone.uuid = rank;
    alone.handles = Handles{group->get_reconfigure_handle()};
    EXPECT_TRUE(group->reconfigure(alone)->wait());
    EXPECT_EQ(group->getRank(), 0);
    EXPECT_EQ(group->getSize(), 1);
  });
}

#else

TEST(Reconfigure, IsRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(make_unconnected_c10d_backend("shm", store, 0, 1, 20s), UsageError);
  GTEST_SKIP() << "c10d of LibTorch " << TORCH_VERSION << " has no reconfigure()";
}

#endif

}  // namespace
}  // namespace lockstep::testing
