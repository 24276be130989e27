// Calls and groups release all resources that they use. Nothing remains in the file system, no matter how the
// ranks end.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include <ATen/ATen.h>

#include "shm/local_ranks.h"
#include "shm/mixture.h"
#include "shm/shared.h"
#include "shm/usage.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kFewMib = 300 * 1024;  // KiB; the sanitizer keeps up to 256 MiB of freed memory
#else
constexpr int64_t kFewMib = 6 * 1024;  // KiB
#endif

// Counts resources at construction; later there must not be more.
class Holdings {
 public:
  void expect_unchanged(const char* after) const {
    // A thread that ends is still counted for a moment, with its resources.
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors_; }))
        << after << ": " << open_descriptors() << " descriptors, were " << descriptors_;
    EXPECT_TRUE(eventually([&] { return running_threads() <= threads_; }))
        << after << ": " << running_threads() << " threads, were " << threads_;
    EXPECT_LT(resident_kib(), resident_kib_ + kFewMib) << after;
  }

 private:
  const int descriptors_ = open_descriptors();
  const int threads_ = running_threads();
  const int64_t resident_kib_ = resident_kib();
};

// Waits until the remains of the warm-up have ended; they would hide later leaks.
void wait_for_the_last(int threads, int descriptors) {
  EXPECT_TRUE(eventually([&] { return running_threads() <= threads && open_descriptors() <= descriptors; }));
}

void reduce_some(ProcessGroup& group, int calls) {
  for (int call = 0; call < calls; ++call) {
    auto tensor = at::ones({call % 100 == 0 ? 200'000 : 100});
    group.all_reduce(tensor);
    if (call % 10 == 0) group.barrier();
  }
}

TEST(Resources, TenThousandCallsLeaveNothing) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    Mixture(group, 5).run(300);  // warm-up: allocates what is cached
    reduce_some(group, 300);
    const Holdings before;
    reduce_some(group, 10'000);
    before.expect_unchanged("10,000 calls");
    EXPECT_FALSE(maps_dev_shm());
  });
}

TEST(Resources, TwoHundredGroupsLeaveNothing) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto make_and_drop = [&](int count) {
      for (int i = 0; i < count; ++i) {
        const auto some = group.new_group({0, 1});
        auto tensor = some->empty({50'000}, at::dtype(at::kFloat)).fill_(1);
        some->all_reduce(tensor);
        EXPECT_EQ(tensor[49'999].item<int>(), 2);
      }
    };
    group.barrier();
    const int threads = running_threads(), descriptors = open_descriptors();
    make_and_drop(20);
    group.barrier();
    wait_for_the_last(threads, descriptors);
    const Holdings before;
    make_and_drop(200);
    group.barrier();
    before.expect_unchanged("200 groups");
  });
}

TEST(Resources, BackendsOfOneProcessLeaveNothing) {
  const auto make_and_drop = [](int count) {
    for (int i = 0; i < count; ++i) {
      LocalRanks ranks(3);
      const auto works =
          ranks.start([](int, c10d_backend& backend) { return all_reduce(backend, {at::ones({1000})}); });
      for (const auto& work : works) EXPECT_TRUE(work->wait());
    }
  };
  const int threads = running_threads(), descriptors = open_descriptors();
  make_and_drop(5);
  wait_for_the_last(threads, descriptors);
  const Holdings before;
  make_and_drop(50);
  before.expect_unchanged("50 times three backends");
}

TEST(Resources, RegisteredMemoryIsUsedAgain) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto take_and_return = [&](int count) {
      for (int i = 0; i < count; ++i) {
        auto tensor = group.empty({1'000'000 + i}, at::dtype(at::kFloat)).fill_(1);
        group.all_reduce(tensor);
        EXPECT_EQ(tensor[i].item<int>(), 2);
      }
    };
    take_and_return(10);
    const Holdings before;
    take_and_return(60);
    before.expect_unchanged("60 times 4 MB");
  });
}

TEST(Resources, RegisteredMemoryOutlivesItsGroup) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto some = group.new_group({0, 1});
    auto tensor = some->empty({100'000}, at::dtype(at::kFloat)).fill_(1);
    some->all_reduce(tensor);
    group.barrier();
    some.reset();
    group.barrier();
    tensor.add_(1);
    EXPECT_EQ(tensor.ne(3).sum().item<int64_t>(), 0);
    group.all_reduce(tensor);  // works like ordinary memory
    EXPECT_EQ(tensor.ne(6).sum().item<int64_t>(), 0);
  });
}

// Gives this process a /dev/shm of its own, empty and with almost no space. Returns false if that is not
// permitted.
bool have_own_dev_shm() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") == 0;
}

bool may_have_own_dev_shm() {
  const auto outcomes = start_ranks(1, [](int) { ::_exit(have_own_dev_shm() ? 0 : 77); });
  return outcomes[0].exit_status == 0;
}

TEST(Resources, DevShmIsNotNeeded) {
  if (!may_have_own_dev_shm()) GTEST_SKIP() << "needs the right to mount";
  expect_success(start_ranks(2, [](int) {
    // Each rank has its own /dev/shm, so no name there can be shared.
    ASSERT_TRUE(have_own_dev_shm());
    const auto group = init_process_group({.backend = "shm", .timeout = 20s});
    auto tensor = at::ones({1'000'000});
    group->all_reduce(tensor);
    EXPECT_EQ(tensor.ne(2).sum().item<int64_t>(), 0);
    EXPECT_TRUE(names_in("/dev/shm").empty());
    EXPECT_FALSE(maps_dev_shm());
  }));
}

// All ranks work until they are killed at the same time.
void kill_all_at_work() {
  struct Scene {
    std::atomic<int> at_work{0};
  };
  const Shared<Scene> scene;
  const auto outcomes = start_ranks(3, [&](int rank) {
    const auto group = init_process_group({.backend = "shm", .timeout = 20s});
    auto tensor = group->empty({1'000'000}, at::dtype(at::kFloat));
    for (int step = 0;; ++step) {
      group->all_reduce(tensor.fill_(1));
      if (step == 3) ++scene->at_work;
      // The ranks are in one process group of the kernel.
      if (rank == 0 && scene->at_work == 3) ::kill(0, SIGKILL);
    }
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.signal, SIGKILL) << outcome.describe();
}

TEST(Resources, KillingAllRanksLeavesNoFile) {
  if (may_have_own_dev_shm()) {
    expect_success(start_ranks(1, [](int) {
      ASSERT_TRUE(have_own_dev_shm());
      kill_all_at_work();
      EXPECT_TRUE(names_in("/dev/shm").empty());
    }));
    return;
  }
  // Other programs may use the /dev/shm that all share.
  const auto before = names_in("/dev/shm");
  kill_all_at_work();
  for (const auto& name : names_in("/dev/shm"))
    EXPECT_TRUE(before.count(name) != 0 || name.find("lockstep") == std::string::npos) << name;
}

}  // namespace
}  // namespace lockstep::testing
