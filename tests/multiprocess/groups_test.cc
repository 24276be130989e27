// Groups apart from their collectives: ranks, subgroups, the default group, the world of one rank.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <lockstep/c10d.h>

#include "groups/make_group.h"
#include "rendezvous/foreign_store.h"
#include "rendezvous/meet.h"
#include "support/message_of.h"
#include "support/run_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Behaviour of every backend.
class Groups : public ::testing::TestWithParam<const char*> {
 protected:
  const char* backend() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Backends, Groups, ::testing::Values("gloo", "shm", "hybrid"),
                         [](const auto& backend) { return std::string(backend.param); });

TEST_P(Groups, RanksKnowWhoTheyAre) {
  run_ranks(3, backend(), [](ProcessGroup& group) {
    EXPECT_EQ(group.rank(), std::atoi(std::getenv("RANK")));
    EXPECT_EQ(group.world_size(), 3);
    EXPECT_EQ(group.local_rank(), group.rank());
    EXPECT_EQ(group.local_world_size(), 3);
    const bool is_hybrid = GetParam() == std::string("hybrid");
    EXPECT_EQ(group.node_rank(), is_hybrid && group.rank() == 2 ? 1 : 0);
    EXPECT_EQ(group.num_nodes(), is_hybrid ? 2 : 1);
    EXPECT_EQ(group.backend(), GetParam());
    EXPECT_EQ(get("ws"), 3);
    EXPECT_EQ(get("rank"), group.rank());
    EXPECT_EQ(get("grank"), group.rank());
    EXPECT_EQ(get("lrank"), group.rank());
    EXPECT_THROW(get("size"), UsageError);
    EXPECT_EQ(default_group().get(), &group);
    ASSERT_TRUE(group.c10d());
    EXPECT_EQ(group.c10d()->getRank(), group.rank());
    EXPECT_EQ(group.c10d()->getBackendName(), GetParam());
  });
}

TEST(GroupsByDefault, AreInSharedMemoryOnOneMachine) {
  run_ranks(2, "auto", [](ProcessGroup& group) { EXPECT_EQ(group.backend(), "shm"); });
}

TEST(GroupsByDefault, WithoutLocalVariablesTheRanksLookAtEachOther) {
  expect_success(start_ranks(3,
                             [](int rank) {
                               const auto group = init_process_group({.timeout = 20s});
                               EXPECT_EQ(group->local_rank(), rank);
                               EXPECT_EQ(group->local_world_size(), 3);
                               EXPECT_EQ(group->num_nodes(), 1);
                             },
                             {.environment = [](int) {
                               return Environment{{"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}};
                             }}));
}

TEST_P(Groups, SubgroupsWorkSideBySide) {
  run_ranks(4, backend(), [](ProcessGroup& group) {
    const auto even = group.new_group({2, 0});  // sorted, as in PyTorch
    const auto odd = group.new_group({1, 3});
    const auto last = group.new_group({3});
    const auto everyone = group.new_group({0, 1, 2, 3});
    const bool is_even = group.rank() % 2 == 0;
    EXPECT_EQ(even != nullptr, is_even);
    EXPECT_EQ(odd != nullptr, !is_even);
    EXPECT_EQ(last != nullptr, group.rank() == 3);

    const auto& mine = is_even ? even : odd;
    EXPECT_EQ(mine->rank(), group.rank() / 2);
    EXPECT_EQ(mine->world_size(), 2);
    auto half = at::full({5}, group.rank());
    auto whole = at::full({5}, group.rank());
    auto first = mine->all_reduce_async(half);
    auto second = everyone->all_reduce_async(whole);
    second.wait();
    first.wait();
    EXPECT_EQ(half[0].item<int>(), is_even ? 2 : 4);
    EXPECT_EQ(whole[0].item<int>(), 6);
    // A subgroup of a subgroup.
    const auto inner = mine->new_group({1});
    EXPECT_EQ(inner != nullptr, mine->rank() == 1);
    group.barrier();  // rank 0 hosts the store in which the odd ranks have just met
  });
}

TEST_P(Groups, BadMembersAreRefused) {
  run_ranks(2, backend(), [](ProcessGroup& group) {
    EXPECT_THROW(group.new_group({}), UsageError);
    EXPECT_THROW(group.new_group({0, 0}), UsageError);
    EXPECT_THROW(group.new_group({0, 2}), UsageError);
    EXPECT_THROW(group.new_group({-1}), UsageError);
    EXPECT_NE(group.new_group({0, 1}), nullptr);
  });
}

TEST_P(Groups, DifferentMembersAreAMismatch) {
  run_ranks(3, backend(), [](ProcessGroup& group) {
    const auto members = group.rank() == 2 ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 1};
    // By now, ranks 0 and 2 know of the mismatch; rank 0 hosts the store.
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto message = message_of<MismatchError>([&] { group.new_group(members); });
    EXPECT_THAT(message, HasSubstr("[0, 1, 2]"));
    EXPECT_THAT(message, HasSubstr("[0, 1]"));
    EXPECT_THAT(message, HasSubstr("hint:"));
  });
}

TEST_P(Groups, TheDefaultGroupComesAndGoes) {
  expect_success(start_ranks(2,
                             [this](int) {
                               EXPECT_THROW(default_group(), UsageError);
                               EXPECT_THROW(get("rank"), UsageError);
                               for (int round = 0; round < 3; ++round) {
                                 auto group = init_process_group({.backend = backend(), .timeout = 20s});
                                 EXPECT_THROW(init_process_group({.timeout = 20s}), UsageError);
                                 auto tensor = at::ones({2});
                                 group->all_reduce(tensor);
                                 EXPECT_EQ(tensor[0].item<int>(), 2);
                                 destroy_process_group();
                                 EXPECT_THROW(default_group(), UsageError);
                                 group->all_reduce(tensor);  // works as long as somebody holds it
                                 EXPECT_EQ(tensor[0].item<int>(), 4);
                               }
                               destroy_process_group();  // a second call has no effect
                             },
                             {.environment = environment_for(backend(), 2)}));
}

TEST(GroupsByDefault, AWorldOfOneNeedsNothing) {
  expect_success(start_ranks(
      1,
      [](int) {
        const auto group = init_process_group();
        EXPECT_EQ(group->world_size(), 1);
        EXPECT_EQ(group->backend(), "single");
        auto tensor = at::arange(6, at::kFloat);
        auto output = at::zeros({6});
        group->all_reduce(tensor, ReduceOp::Avg);
        group->broadcast(tensor);
        group->all_gather_into_tensor(output, tensor);
        EXPECT_TRUE(at::equal(output, tensor));
        group->reduce_scatter_tensor(output, tensor * 2);
        EXPECT_TRUE(at::equal(output, tensor * 2));
        group->all_to_all_single(output, tensor);
        EXPECT_TRUE(at::equal(output, tensor));
        auto gathered = group->gather(tensor, 0);
        ASSERT_EQ(gathered.size(), 1);
        gathered[0].add_(1);  // a copy, not the caller's tensor
        EXPECT_EQ(tensor[0].item<int>(), 0);
        group->barrier();
        EXPECT_EQ(group->new_group({0})->world_size(), 1);
        EXPECT_EQ(group->c10d()->getSize(), 1);
      },
      {.environment = [](int) {
        return Environment{{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", ""}, {"MASTER_PORT", ""}};
      }}));
}

TEST_P(Groups, EmptyGivesMemoryOfTheRightKind) {
  run_ranks(2, backend(), [](ProcessGroup& group) {
    auto tensor = group.empty({3, 4}, at::dtype(at::kDouble)).fill_(group.rank());
    group.all_reduce(tensor);
    EXPECT_EQ(tensor.sum().item<double>(), 12);
  });
}

TEST_P(Groups, ThreadsUseGroupsOfTheirOwn) {
  run_ranks(2, backend(), [](ProcessGroup& group) {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(group.new_group({0, 1}));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < 50; ++round) {
          auto tensor = at::full({64}, i + round);
          groups[i]->all_reduce(tensor);
          if (tensor[63].item<int>() != 2 * (i + round)) ++wrong;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  });
}

// One rank gives up. The others, which wait for it, get its error long before the timeout.
TEST_P(Groups, PoisonEndsThemOnAllRanks) {
  run_ranks(3, backend(), [](ProcessGroup& group) {
    auto own = group.new_group({0, 1, 2});
    auto tensor = at::ones({1000});
    own->all_reduce(tensor);
    if (group.rank() == 1) own->poison(UsageError("the data of rank 1 is broken"));
    const auto message = message_of<UsageError>([&] { own->all_reduce(tensor); });
    EXPECT_THAT(message, HasSubstr("the data of rank 1 is broken"));
    EXPECT_THAT(message_of<UsageError>([&] { own->barrier(); }), HasSubstr("the data of rank 1 is broken"));
    group.barrier();  // other groups still work
  });
}

bool blocks_sigpipe(const std::filesystem::path& task) {
  std::ifstream file(task / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigBlk:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) != 0;
  }
  return false;
}

// A write to a dead peer must be an error and must not end this process. The user's threads are not changed.
TEST(GroupsOnGloo, ThreadsOfTheBackendTakeNoSigpipe) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    EXPECT_GE(std::count_if(begin(tasks), end(tasks), blocks_sigpipe), 3);  // two workers, a listener
    EXPECT_FALSE(blocks_sigpipe("/proc/thread-self"));
    group.barrier();
  });
}

TEST_P(Groups, AForkedChildMayDropThem) {
  run_ranks(2, backend(), [](ProcessGroup& group) {
    auto other = group.new_group({0, 1});
    auto tensor = at::ones({1});
    // A group in use has all its threads.
    for (auto* used : {&group, other.get()}) {
      used->all_reduce(tensor);
      used->rank() == 0 ? used->send(tensor, 1) : used->recv(tensor, 0);
    }
    const pid_t child = ::fork();
    if (child == 0) {
      other.reset();
      destroy_process_group();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    // The parent's groups still work.
    other->barrier();
    group.barrier();
  });
}

// A store that is slow to return the addresses of peers.
class SlowFile : public c10d::FileStore {
 public:
  SlowFile(const std::string& path, bool slow) : c10d::FileStore(path, 3), slow_(slow) {}
  std::vector<uint8_t> get(const std::string& key) override {
    if (slow_ && key.find("c10d") != std::string::npos) std::this_thread::sleep_for(200ms);
    return c10d::FileStore::get(key);
  }

 private:
  bool slow_;
};

// Gloo considers a peer connected as soon as the kernel does.
TEST_P(Groups, NobodyIsLeftAloneWhileItConnects) {
  const ScratchFolder folder;
  const auto path = (folder / "store").string();
  expect_success(start_ranks(
      3,
      [&](int rank) {
        const auto deadline = base::Deadline::in(20s);
        const auto file = c10::make_intrusive<SlowFile>(path, rank == 2);
        // Never destroyed: its destructor writes to the file. If a rank ended while another thread does that,
        // the other ranks would read an incomplete record, at which LibTorch waits forever.
        c10::intrusive_ptr<SlowFile>(file).release();
        const auto store = c10::make_intrusive<rendezvous::KeyStore>(
            std::make_shared<rendezvous::ForeignStore>(file, rank), "test", deadline.budget());
        const auto ranks = rendezvous::meet(*store, rendezvous::facts_of_this_process(rank, 3), deadline);
        groups::make_group("test", {.host = backend()}, rank, ranks, rendezvous::placement_of(rank, ranks),
                           {store, 3}, deadline);
      },
      {.environment = environment_for(backend(), 3)}));
}

// A message takes ten times as long if the event thread takes the CPU from the thread that it waits for
// (gloo/make_gloo.cc).
TEST(Gloo, ItsEventThreadIsPatientAndNobodyElseIs) {
  run_ranks(2, "gloo", [](ProcessGroup& group) {
    group.barrier();
    int patient = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (::sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH) ++patient;
    }
    EXPECT_EQ(patient, 1);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  });
}

}  // namespace
}  // namespace lockstep::testing
