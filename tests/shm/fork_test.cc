// A rank forks. Its child has copies of the tensors and groups. Nothing that the child does with them, and no
// way in which it ends, may affect the parent's memory or the group.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kCount = 1 << 20;  // large enough that its pages are returned when it is freed

// The child has none of LibTorch's threads, so it must use plain loops only. It ends like a process that
// returns from main, or is killed if it hangs.
void in_forked_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    body();
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

at::Tensor numbers(ProcessGroup& group, int64_t count) {
  auto tensor = group.empty({count}, at::kFloat);
  tensor.copy_(at::arange(count).remainder(100).add(group.rank()));
  return tensor;
}

void write_over(const at::Tensor& tensor) { std::memset(tensor.data_ptr(), 0x55, tensor.nbytes()); }

class Fork : public ::testing::TestWithParam<int64_t> {};

TEST_P(Fork, AChildThatWritesAndDropsTensorsLeavesTheParentsAlone) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto tensor = numbers(group, GetParam());
    const auto before = tensor.clone();
    in_forked_child([&] {
      const auto* element = tensor.data_ptr<float>();
      EXPECT_EQ(element[1], 1.0F + group.rank());  // it sees the parent's data
      write_over(tensor);
      EXPECT_NE(element[1], 1.0F + group.rank());
      tensor.reset();
    });
    EXPECT_TRUE(at::equal(tensor, before));
    in_forked_child([&] { tensor.reset(); });
    EXPECT_TRUE(at::equal(tensor, before));
    // Nor is anything sent that a child writes.
    in_forked_child([&] { write_over(tensor); });
    group.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::arange(GetParam()).remainder(100).mul(2).add(1).to(at::kFloat)));
    EXPECT_NO_THROW(group.empty({GetParam()}, at::kFloat));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Fork, ::testing::Values(16, kCount),
                         [](const auto& param) { return std::to_string(param.param); });

TEST(ForkInDetail, AChildCannotUseTheGroup) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    auto subgroup = group.new_group({0, 1});
    auto tensor = numbers(group, 100);
    auto open = group.all_reduce_async(tensor);
    in_forked_child([&] {
      auto mine = tensor;
      EXPECT_THROW(group.all_reduce(mine), UsageError);
      EXPECT_THROW((void)group.all_reduce_async(mine), UsageError);
      EXPECT_THROW(group.send(mine, 1 - group.rank()), UsageError);
      EXPECT_THROW(group.barrier(), UsageError);
      EXPECT_THROW(group.empty({10}, at::kFloat), UsageError);
      open.is_done();
      group.poison(UsageError("a child gives up"));
      subgroup.reset();
    });
    open.wait();
    EXPECT_EQ(tensor[1].item<int>(), 3);
    subgroup->barrier();
    group.barrier();
  });
}

TEST(ForkInDetail, WhileOtherThreadsCommunicate) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    const auto others = group.new_group({0, 1});
    auto kept = numbers(group, kCount);
    const auto before = kept.clone();
    std::thread communicates([&] {
      auto tensor = others->empty({100'000}, at::kFloat);
      for (int round = 0; round < 200; ++round) {
        tensor.fill_(1);
        others->all_reduce_async(tensor).wait();
        if (tensor.ne(2).any().item<bool>()) ADD_FAILURE() << "round " << round;
      }
    });
    for (int i = 0; i < 10; ++i) {
      in_forked_child([&] {
        write_over(kept);
        kept.reset();
      });
    }
    communicates.join();
    EXPECT_TRUE(at::equal(kept, before));
    group.barrier();
  });
}

// Destructors of static objects run when main returns.
TEST(ForkInDetail, TensorsThatLiveToTheEndOfAChild) {
  run_ranks(2, "shm", [](ProcessGroup& group) {
    static at::Tensor to_the_end;
    to_the_end = numbers(group, kCount);
    const auto before = to_the_end.clone();
    in_forked_child([] {});
    EXPECT_TRUE(at::equal(to_the_end, before));
    group.all_reduce(to_the_end);
  });
}

}  // namespace
}  // namespace lockstep::testing
