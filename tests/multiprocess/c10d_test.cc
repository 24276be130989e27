// lockstep's c10d backends over a store of LibTorch, as make_c10d_backend makes them, in real processes:
// which one "auto" is, groups over them, and how they live and end. tests/shm/ tests their calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/c10d.h>

#include "base/deadline.h"
#include "c10d_face/sparse.h"
#include "comm/group.h"
#include "comm/work.h"
#include "groups/make_group.h"
#include "rendezvous/identity.h"
#include "rendezvous/open_store.h"
#include "shm/calls.h"
#include "support/message_of.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d_backend>;

// In every rank: a store that all of them share. Never destroyed: its destructor writes to the file, and a
// rank that ends meanwhile would leave an incomplete record, at which the others wait forever.
StorePtr store_in(const ScratchFolder& folder, int world) {
  auto store = c10::make_intrusive<c10d::FileStore>((folder / "store").string(), world);
  StorePtr(store).release();
  return store;
}

// Ranks that make a backend and run the body.
class C10d {
 public:
  // "aab": three ranks on two machines.
  explicit C10d(std::string machines) : machines_(std::move(machines)) {}

  std::vector<RankOutcome> run(const std::string& name,
                               const std::function<void(BackendPtr backend, StorePtr store)>& body) const {
    const ScratchFolder folder;
    const int world = static_cast<int>(machines_.size());
    return start_ranks(world,
                       [&](int rank) {
                         auto store = store_in(folder, world);
                         auto backend =
                             make_c10d_backend(name, c10::make_intrusive<c10d::PrefixStore>("backend", store),
                                               rank, world, 20s);
                         body(std::move(backend), std::move(store));
                       },
                       {.environment = on_machines(machines_)});
  }

 private:
  const std::string machines_;
};

void expect_sum(c10d_backend& backend) {
  const auto tensor = at::full({1000}, backend.getRank() + 1);
  EXPECT_TRUE(all_reduce(backend, {tensor})->wait());
  EXPECT_EQ(tensor.ne(backend.getSize() * (backend.getSize() + 1) / 2).sum().item<int>(), 0);
}

TEST(C10dByName, IsWhatTheRanksCanUse) {
  struct Case {
    const char *machines, *name, *becomes;
  };
  for (const auto& c : {Case{"aa", "auto", "shm"}, Case{"aa", "hybrid", "shm"}, Case{"ab", "auto", "hybrid"},
                        Case{"abb", "hybrid", "hybrid"}, Case{"ab", "gloo", "gloo"}}) {
    expect_success(C10d(c.machines).run(c.name, [&](const BackendPtr& backend, const StorePtr&) {
      EXPECT_EQ(backend->getBackendName(), c.becomes);
      expect_sum(*backend);
    }));
  }
}

TEST(C10dByName, ShmOnSeveralMachinesIsRefused) {
  const ScratchFolder folder;
  expect_success(start_ranks(2,
                             [&](int rank) {
                               EXPECT_THROW(make_c10d_backend("shm", store_in(folder, 2), rank, 2, 20s, true),
                                            UsageError);
                             },
                             {.environment = on_machines("ab")}));
}

// Over MPI, if LOCKSTEP_LINK says so: mpirun starts it, too (tests/mpi/groups).
TEST(C10dByName, OverTheStoreOfTheJob) {
  expect_success(start_ranks(2,
                             [](int rank) {
                               const auto identity = rendezvous::identify(rendezvous::NeedMaster::Yes);
                               const auto store =
                                   rendezvous::open_store(rendezvous::meeting_point("env://", identity),
                                                          identity, base::Deadline::in(20s));
                               const auto backend =
                                   make_c10d_backend("auto", store->under("c10d"), rank, 2, 20s);
                               EXPECT_EQ(backend->getBackendName(), "hybrid");
                               expect_sum(*backend);
                             },
                             {.environment = on_machines("ab")}));
}

TEST(C10dByName, TheLinkBetweenMachinesIsThatOfTheEnvironment) {
  const ScratchFolder folder;
  const auto join = [&](int rank) { make_c10d_backend("auto", store_in(folder, 2), rank, 2, 20s); };
  expect_success(start_ranks(2, [&](int rank) { EXPECT_THROW(join(rank), MismatchError); },
                             {.environment = [](int rank) {
                               return Environment{{"LOCKSTEP_LINK", rank == 0 ? "gloo" : "mpi"}};
                             }}));
  expect_success(
      start_ranks(2, [&](int rank) { EXPECT_THROW(join(rank), UsageError); }, {.environment = [](int) {
                    return Environment{{"LOCKSTEP_LINK", "carrier-pigeon"}};
                  }}));
}

TEST(C10dByName, WhoComesTooLateHearsThatTheOthersHaveGivenUp) {
  expect_success(start_ranks(1, [](int) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto fail_to_join = [&](int rank, std::chrono::milliseconds timeout) {
      return message_of<TimeoutError>([&] { make_c10d_backend("shm", store, rank, 2, timeout, true); });
    };
    EXPECT_THAT(fail_to_join(0, 100ms), HasSubstr("missing: rank 1"));
    EXPECT_THAT(fail_to_join(1, 20s), HasSubstr("missing: rank 1"));
  }));
}

// Rank 1 makes only the first half of the call, in which the ranks learn each other's sizes.
TEST(C10dByName, ASparseAllReduceHasOneTimeoutForBothHalves) {
  expect_success(C10d("ab").run("auto", [](const BackendPtr& backend, const StorePtr& store) {
    std::vector<at::Tensor> tensors{at::ones({2, 2}).to_sparse()};
    expect_sum(*backend);
    if (backend->getRank() == 1) {
      c10d_face::SparseSum sum(tensors, 1, 2);
      auto first = sum.exchange_facts();
      comm::run(*groups::group_behind(*backend), first);
      store->get("rank 0 has waited");
      return;
    }
    c10d::AllreduceOptions options;
    options.timeout = 3s;
    const auto message = message_of<TimeoutError>([&] { backend->allreduce(tensors, options)->wait(); });
    EXPECT_THAT(message, AllOf(HasSubstr("no answer within"), Not(HasSubstr("within 20.0 s"))));
    store->set("rank 0 has waited", std::vector<uint8_t>{1});
  }));
}

TEST(C10dByName, MonitoredBarriersLeaveNothingInTheStore) {
  expect_success(C10d("ab").run("auto", [](const BackendPtr& backend, const StorePtr& store) {
    backend->monitoredBarrier({}, false);
    const auto before = store->getNumKeys();
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds; ++round) backend->monitoredBarrier({}, false);
    // The other rank may not have erased its last one yet. A rank that waits for long says so in the store.
    EXPECT_LT(store->getNumKeys(), before + kRounds / 2);
    backend->barrier()->wait();
  }));
}

class C10dLife : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const std::function<void(BackendPtr backend, StorePtr store)>& body) const {
    expect_success(C10d(GetParam()).run("auto", body));
  }
};

INSTANTIATE_TEST_SUITE_P(On, C10dLife, ::testing::Values("aaa", "aab", "abc"),
                         [](const auto& machines) { return std::string(machines.param); });

TEST_P(C10dLife, GroupsOverIt) {
  run([](const BackendPtr& backend, const StorePtr& store) {
    const auto group =
        make_process_group(backend, c10::make_intrusive<c10d::PrefixStore>("group", store), 20s);
    EXPECT_EQ(group->backend(), backend->getBackendName());
    EXPECT_EQ(group->c10d()->getBackendName(), backend->getBackendName());
    for (int round = 0; round < 20; ++round) {
      auto tensor = at::ones({100});
      group->all_reduce(tensor);
      EXPECT_EQ(tensor[99].item<int>(), 3);
      expect_sum(*backend);
    }
    const auto pair = group->new_group({0, 2});
    EXPECT_EQ(pair != nullptr, group->rank() != 1);
    if (pair) {
      expect_sum(*pair->c10d());
      const bool is_shared = group->backend() == "shm";
      EXPECT_EQ(pair->backend(), is_shared ? "shm" : "hybrid");
    }
    const auto again =
        make_process_group(backend, c10::make_intrusive<c10d::PrefixStore>("again", store), 20s);
    again->barrier();
  });
}

TEST_P(C10dLife, CallsContinueWithoutTheBackend) {
  run([](BackendPtr backend, const StorePtr&) {
    const int rank = backend->getRank();
    const auto tensor = at::ones({500'000}), received = at::zeros({1000});
    const auto works = {all_reduce(*backend, {tensor}),
                        send(*backend, {at::full({1000}, rank, at::kFloat)}, (rank + 1) % 3),
                        recv(*backend, {received}, (rank + 2) % 3)};
    backend.reset();
    for (const auto& work : works) EXPECT_TRUE(work->wait());
    EXPECT_EQ(tensor.ne(3).sum().item<int>(), 0);
    EXPECT_EQ(received.ne((rank + 2) % 3).sum().item<int>(), 0);
  });
}

// Else a later group at the same address would find the keys of the first one.
TEST_P(C10dLife, AWorkThatIsKeptDoesNotKeepTheStore) {
  const ScratchFolder folder;
  expect_success(start_ranks(3,
                             [&](int rank) {
                               const auto store = store_in(folder, 3);
                               const auto before = store.use_count();
                               auto backend = make_c10d_backend("auto", store, rank, 3, 20s);
                               const auto kept = {all_reduce(*backend, {at::ones({10})}), backend->barrier()};
                               for (const auto& work : kept) EXPECT_TRUE(work->wait());
                               backend.reset();
                               const auto deadline = base::Deadline::in(10s);
                               while (store.use_count() > before && !deadline.expired())
                                 std::this_thread::sleep_for(1ms);
                               EXPECT_EQ(store.use_count(), before);
                             },
                             {.environment = on_machines(GetParam())}));
}

TEST_P(C10dLife, AForkedChildCannotUseIt) {
  run([](BackendPtr backend, const StorePtr&) {
    expect_sum(*backend);
    const auto tensor = at::ones({10});
    auto work = backend->getRank() == 0 ? all_reduce(*backend, {tensor}) : WorkPtr();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      int refused = 0;
      const auto expect_refusal = [&](const std::function<void()>& call) {
        try {
          call();
        } catch (const UsageError& error) {
          refused += std::string(error.what()).find("a forked process cannot use") != std::string::npos;
        }
      };
      expect_refusal([&] { all_reduce(*backend, {at::ones({1})}); });
      expect_refusal([&] { send(*backend, {at::ones({1})}, (backend->getRank() + 1) % 3); });
      expect_refusal([&] { backend->monitoredBarrier({}, false); });
      if (work) expect_refusal([&] { work->wait(); });
      const int expected = work ? 4 : 3;
      work.reset();
      backend.reset();
      ::_exit(refused == expected ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    if (!work) work = all_reduce(*backend, {tensor});
    EXPECT_TRUE(work->wait());
    EXPECT_EQ(tensor.ne(3).sum().item<int>(), 0);
    expect_sum(*backend);
  });
}

TEST_P(C10dLife, AnEndedRankIsNamed) {
  const auto outcomes = C10d(GetParam()).run("auto", [](const BackendPtr& backend, const StorePtr&) {
    expect_sum(*backend);
    if (backend->getRank() == 2) ::kill(::getpid(), SIGKILL);
    try {
      all_reduce(*backend, {at::ones({100'000})})->wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.culprits(), ::testing::ElementsAre(2)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 2 (pid"));
      EXPECT_THAT(error.what(), HasSubstr("hint:"));
    }
    EXPECT_THROW(backend->barrier()->wait(), PeerLostError);
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(outcomes[rank].exit_status, 0) << outcomes[rank].describe();
}

}  // namespace
}  // namespace lockstep::testing
