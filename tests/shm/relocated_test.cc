// Tensors that LibTorch has allocated and that are reduced again and again: they are moved into shared memory
// while nobody can tell, except by the map of the process.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <sched.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/error.h>

#include "shm/local_ranks.h"
#include "shm/process_memory.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kMovedElements = 1 << 20;
constexpr int kEnough = 4;  // calls after which a tensor has been moved

// Whether this address is in the memory that peers can access, as the kernel sees it.
bool is_shared(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    char dash = 0;
    std::string access;
    std::istringstream(line) >> std::hex >> from >> dash >> to >> access;
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at < from || at >= to) continue;
    return access.back() == 's' && line.find("lockstep-memory") != std::string::npos;
  }
  return false;
}

bool was_moved(const at::Tensor& tensor) {
  return is_shared(static_cast<const char*>(tensor.data_ptr()) + tensor.nbytes() / 2);
}

size_t in_use() { return shm::process_memory().arena->bytes_in_use(); }

at::Tensor numbers_of(int rank, int64_t count) {
  return at::arange(count).remainder(1000).mul(rank + 1).to(at::kFloat);
}

void reduce_often(ProcessGroup& group, at::Tensor& tensor, int times = kEnough) {
  for (int i = 0; i < times; ++i) {
    tensor.copy_(numbers_of(group.rank(), tensor.numel()));
    group.all_reduce(tensor);
    const auto sum = group.world_size() * (group.world_size() + 1) / 2;
    EXPECT_TRUE(at::equal(tensor, numbers_of(0, tensor.numel()).mul(sum))) << "call " << i;
  }
}

class Relocated : public ::testing::TestWithParam<int> {};  // the number of ranks

TEST_P(Relocated, ATensorIsMovedAtItsAddress) {
  run_ranks(GetParam(), "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements});
    const auto* const address = tensor.data_ptr();
    reduce_often(group, tensor, kEnough - 1);
    EXPECT_FALSE(was_moved(tensor));
    reduce_often(group, tensor, 1);
    EXPECT_TRUE(was_moved(tensor));
    reduce_often(group, tensor, 10);
    EXPECT_EQ(tensor.data_ptr(), address);
  });
}

// A piece that starts and ends within a page, whose neighbours are others' memory.
TEST_P(Relocated, APieceOfATensor) {
  run_ranks(GetParam(), "shm", [](ProcessGroup& group) {
    for (const int64_t first : {0, 1, 777, 1024}) {
      for (const int64_t less : {0, 1, 333}) {
        auto whole = at::full({kMovedElements + 4096}, -5.0F);
        auto piece = whole.narrow(0, first, kMovedElements / 4 - less);
        reduce_often(group, piece, kEnough + 2);
        EXPECT_TRUE(was_moved(piece)) << first << ", " << less;
        EXPECT_TRUE(at::equal(whole.narrow(0, 0, first), at::full({first}, -5.0F)));
        const auto end = first + piece.numel();
        EXPECT_EQ(whole.narrow(0, end, whole.numel() - end).ne(-5).sum().item<int64_t>(), 0);
        auto part = piece.narrow(0, piece.numel() - 70'001, 70'001);
        reduce_often(group, part, kEnough + 1);
        auto wider = whole.narrow(0, first, piece.numel() + 100);
        reduce_often(group, wider, kEnough + 1);  // overlaps what was moved, so it is staged
      }
    }
  });
}

// Every kind of call that reads a large tensor of this rank, with bytes before and after the whole pages.
TEST_P(Relocated, EveryKindReadsWhatWasMoved) {
  run_ranks(GetParam(), "shm", [](ProcessGroup& group) {
    const int world = group.world_size(), rank = group.rank();
    const int64_t count = int64_t{world} * 100'003;
    const auto mine = [&](int of) { return numbers_of(of, count); };
    const auto piece = [&] { return at::empty({count + 10}).narrow(0, 3, count); };
    auto broadcast = piece(), reduced = piece(), gathered = piece(), scattered = piece(), exchanged = piece();
    const auto sum = numbers_of(0, count).mul(world * (world + 1) / 2);
    const int64_t part = count / world;
    for (int round = 0; round < kEnough + 2; ++round) {
      for (auto* tensor : {&broadcast, &reduced, &gathered, &scattered, &exchanged})
        tensor->copy_(mine(rank));
      group.broadcast(broadcast, 1);
      EXPECT_TRUE(at::equal(broadcast, mine(1))) << round;
      group.reduce(reduced, 0);
      EXPECT_TRUE(rank != 0 || at::equal(reduced, sum)) << round;
      auto all = at::empty({world * count});
      group.all_gather_into_tensor(all, gathered);
      for (int of = 0; of < world; ++of) EXPECT_TRUE(at::equal(all.narrow(0, of * count, count), mine(of)));
      auto reduced_part = at::empty({part});
      group.reduce_scatter_tensor(reduced_part, scattered);
      EXPECT_TRUE(at::equal(reduced_part, sum.narrow(0, rank * part, part))) << round;
      auto received = at::empty({count});
      group.all_to_all_single(received, exchanged);
      for (int of = 0; of < world; ++of) {
        EXPECT_TRUE(at::equal(received.narrow(0, of * part, part), mine(of).narrow(0, rank * part, part)));
      }
    }
    EXPECT_EQ(was_moved(broadcast), rank == 1);
    EXPECT_TRUE(was_moved(reduced) && was_moved(gathered) && was_moved(scattered) && was_moved(exchanged));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Relocated, ::testing::Values(2, 3),
                         [](const auto& param) { return std::to_string(param.param); });

TEST(RelocatedInDetail, TheMemoryIsReturnedWithTheTensor) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto before = in_use();
    for (int round = 0; round < 5; ++round) {
      auto tensor = at::empty({kMovedElements});
      auto other = at::empty({2 * kMovedElements}).narrow(0, 100, kMovedElements);
      reduce_often(group, tensor);
      reduce_often(group, other);
      EXPECT_TRUE(was_moved(tensor) && was_moved(other));
      EXPECT_GE(in_use(), before + 2 * tensor.nbytes());
      auto* const data = static_cast<char*>(tensor.data_ptr());
      const at::Tensor copy = tensor.clone();
      tensor.resize_({4 * kMovedElements});  // the storage gets other memory
      EXPECT_TRUE(at::equal(tensor.narrow(0, 0, kMovedElements), copy));
      EXPECT_FALSE(is_shared(data + copy.nbytes() / 2));
    }
    EXPECT_EQ(in_use(), before);
  });
}

TEST(RelocatedInDetail, TensorsOfOneStepAreNotMoved) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto before = in_use();
    for (int step = 0; step < 3 * kEnough; ++step) {
      auto tensor = at::empty({kMovedElements});
      reduce_often(group, tensor, 2);
      EXPECT_FALSE(was_moved(tensor));
    }
    EXPECT_EQ(in_use(), before);
  });
}

TEST(RelocatedInDetail, MemoryOfOthersStaysWhereItIs) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    std::vector<float> owned(kMovedElements);
    auto tensor = at::from_blob(owned.data(), {kMovedElements}, at::kFloat);
    reduce_often(group, tensor, 2 * kEnough);
    EXPECT_FALSE(was_moved(tensor));
  });
}

TEST(RelocatedInDetail, CanBeTurnedOff) {
  const auto outcomes = start_ranks(2,
                                    [](int) {
                                      const auto group = init_process_group({.backend = "shm"});
                                      auto tensor = at::empty({kMovedElements});
                                      reduce_often(*group, tensor, 2 * kEnough);
                                      EXPECT_FALSE(was_moved(tensor));
                                    },
                                    {.environment = [](int) {
                                      return Environment{{"LOCKSTEP_RELOCATE", "0"}};
                                    }});
  expect_success(outcomes);
}

// The calls are under way together, so moving the tensor at any of them would lose what others write.
TEST(RelocatedInDetail, CallsThatNobodyHasWaitedFor) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    // A small one is sent with its arrival, a large one is staged at first.
    for (const int64_t count : {int64_t{10}, kMovedElements}) {
      for (int round = 0; round < 2; ++round) {
        auto tensor = at::ones({count});
        if (round > 0) reduce_often(group, tensor);
        tensor.fill_(1);
        std::vector<Work> works;
        for (int i = 0; i < 3 * kEnough; ++i) works.push_back(group.all_reduce_async(tensor));
        for (auto& work : works) work.wait();
        EXPECT_EQ(tensor.ne(1 << (3 * kEnough)).sum().item<int64_t>(), 0) << count << ", " << round;
      }
    }
  });
}

TEST_P(Relocated, DifferentCallsThatNobodyHasWaitedFor) {
  run_ranks(GetParam(), "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements}), all = at::empty({group.world_size() * kMovedElements});
    reduce_often(group, tensor);
    ASSERT_TRUE(was_moved(tensor));
    for (int round = 0; round < 20; ++round) {
      tensor.fill_(group.rank());
      all.fill_(-1);
      std::vector<Work> works;
      works.push_back(group.broadcast_async(tensor, 1));  // 1
      works.push_back(group.all_reduce_async(tensor));    // world
      works.push_back(group.all_gather_into_tensor_async(all, tensor));
      works.push_back(group.all_reduce_async(tensor));  // world * world
      works.push_back(group.broadcast_async(tensor, 0));
      for (auto& work : works) work.wait();
      const auto world = group.world_size();
      EXPECT_EQ(all.ne(world).sum().item<int64_t>(), 0) << round;
      EXPECT_EQ(tensor.ne(world * world).sum().item<int64_t>(), 0) << round;
    }
  });
}

TEST(RelocatedInDetail, SeveralGroupsUseOneTensor) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements});
    reduce_often(group, tensor);
    auto other = group.new_group({0, 1});
    reduce_often(*other, tensor);
    other.reset();
    reduce_often(group, tensor);
    tensor.fill_(group.rank() + 7);
    group.broadcast(tensor, 1);
    EXPECT_EQ(tensor.ne(8).sum().item<int64_t>(), 0);
    if (group.rank() == 0) group.send(tensor, 1);
    if (group.rank() == 1) group.recv(tensor, 0);
    tensor.fill_(group.rank());
    EXPECT_EQ(group.all_gather(tensor)[1].ne(1).sum().item<int64_t>(), 0);
  });
}

// Also after the parent has changed or freed the tensor, as with any other memory.
TEST(RelocatedInDetail, AForkedChildHasItsOwnCopy) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements});
    reduce_often(group, tensor);
    ASSERT_TRUE(was_moved(tensor));
    const auto before = tensor.clone();
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      char go = 0;
      if (::read(pipe[0], &go, 1) != 1) ::_exit(2);
      const bool same = std::memcmp(tensor.data_ptr(), before.data_ptr(), before.nbytes()) == 0;
      std::memset(tensor.data_ptr(), 0x55, tensor.nbytes());
      tensor.reset();
      ::_exit(same ? 0 : 1);
    }
    EXPECT_TRUE(at::equal(tensor, before));
    reduce_often(group, tensor, kEnough + 1);
    EXPECT_TRUE(was_moved(tensor)) << "again, after the fork";
    const auto later = tensor.fill_(7).clone();
    auto freed = at::empty({kMovedElements});
    reduce_often(group, freed);
    freed.reset();
    ASSERT_EQ(::write(pipe[1], "x", 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(at::equal(tensor, later));
    ::close(pipe[0]);
    ::close(pipe[1]);
  });
}

TEST(RelocatedInDetail, AForkLosesNothingThatAnotherThreadWrites) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements});
    constexpr size_t kWords = kMovedElements;
    auto* const words = static_cast<volatile uint32_t*>(tensor.data_ptr());
    for (int i = 0; i < 10; ++i) {
      reduce_often(group, tensor);
      ASSERT_TRUE(was_moved(tensor));
      if (group.rank() == 1) continue;  // leaves its CPU to the writer
      std::atomic<bool> begun = false, ending = false;
      int64_t lost = 0;
      std::thread writer([&] {
        cpu_set_t others;  // than the CPU of this rank, which the fork uses
        std::memset(&others, 0xff, sizeof others);
        CPU_CLR(::sched_getcpu(), &others);
        ::sched_setaffinity(0, sizeof others, &others);  // fails if there are none
        for (uint32_t pass = 1; !ending; ++pass, begun = true) {
          for (size_t word = 0; word < kWords; ++word) {
            if (pass > 1 && words[word] != pass - 1) ++lost;
            words[word] = pass;
          }
        }
      });
      while (!begun) std::this_thread::yield();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ending = true;
      writer.join();
      EXPECT_EQ(lost, 0);
    }
  });
}

TEST(RelocatedInDetail, AForkWhileACallUsesTheTensor) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = at::empty({kMovedElements});
    reduce_often(group, tensor);
    tensor.fill_(1);
    group.barrier();
    if (group.rank() == 1) ::usleep(100'000);
    auto work = group.all_reduce_async(tensor);
    const pid_t child = ::fork();
    if (child == 0) {
      std::memset(tensor.data_ptr(), 0x55, tensor.nbytes());
      tensor.reset();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    work.wait();
    EXPECT_EQ(tensor.ne(2).sum().item<int64_t>(), 0);
    reduce_often(group, tensor);
  });
}

// What a stopped rank writes later must not reach the tensor of one that has given up.
TEST(RelocatedInDetail, AFailedCallLeavesTheTensorToItsOwner) {
  const auto outcomes = start_ranks(2, [](int rank) {
    const auto group = init_process_group({.backend = "shm", .timeout = std::chrono::seconds(20)});
    auto tensor = at::empty({kMovedElements});
    reduce_often(*group, tensor);
    ASSERT_TRUE(was_moved(tensor));
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    tensor.fill_(3);
    EXPECT_THROW(group->all_reduce(tensor), PeerLostError);
    EXPECT_EQ(tensor.ne(3).sum().item<int64_t>(), 0);
    tensor.fill_(4);
    EXPECT_EQ(tensor.ne(4).sum().item<int64_t>(), 0);
    auto* const middle = static_cast<float*>(tensor.data_ptr()) + kMovedElements / 2;
    EXPECT_EQ(*middle, 4);
    tensor.reset();
  });
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].describe();
}

// A thread that waits for a c10d future does not advance the call; with inline progress, it would otherwise
// wait for the background thread's long pause. That shows in benchmarks only; here it must at least complete.
TEST(RelocatedInDetail, FuturesOfMovedTensors) {
  LocalRanks ranks(2);
  std::vector<at::Tensor> tensors = {at::empty({kMovedElements}), at::empty({kMovedElements})};
  for (int round = 0; round < 3 * kEnough; ++round) {
    ranks.in_threads([&](int rank, c10d_backend& backend) {
      std::vector<at::Tensor> mine = {tensors[rank].fill_(rank + 1)};
      const auto future = backend.allreduce(mine)->getFuture();
      future->waitAndThrow();
      EXPECT_EQ(mine[0].ne(3).sum().item<int64_t>(), 0);
    });
  }
  EXPECT_TRUE(was_moved(tensors[0]) && was_moved(tensors[1]));
}

}  // namespace
}  // namespace lockstep::testing
