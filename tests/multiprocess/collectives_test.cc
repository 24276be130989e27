// Compares every collective, for every dtype and operation that has a meaning, with a simple reference: each
// rank knows the inputs of all ranks. Sizes: none, one, odd, a few thousand.
#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <thread>

#include <ATen/ATen.h>

#include "foreign/transport.h"
#include "shm/reference.h"
#include "shm/shared.h"
#include "support/data.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {{0}, {1}, {}, {17}, {3, 5}, {4099}};

struct Case {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int salt;
};

template <class Body>
void for_all_cases(Body&& body) {
  int salt = 0;
  for (const auto dtype : all_dtypes()) {
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " " << c10::IntArrayRef(shape));
      body(Case{dtype, shape, ++salt});
    }
  }
}

class Collectives : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  const char* backend() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
};

TEST_P(Collectives, AllReduce) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      const auto inputs = everyones(group.world_size(), c.shape, c.dtype, c.salt);
      for (const auto op : all_ops()) {
        auto tensor = inputs[group.rank()].clone();
        if (!has_meaning(op, c.dtype)) {
          EXPECT_THROW(group.all_reduce(tensor, op), UsageError);
          continue;
        }
        group.all_reduce(tensor, op);
        EXPECT_TRUE(agrees(tensor, expected_reduction(inputs, op), op)) << "op " << static_cast<int>(op);
      }
    });
  });
}

TEST_P(Collectives, Reduce) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      const int root = c.salt % group.world_size();
      const auto inputs = everyones(group.world_size(), c.shape, c.dtype, c.salt);
      for (const auto op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Bxor}) {
        if (!has_meaning(op, c.dtype)) continue;
        auto tensor = inputs[group.rank()].clone();
        group.reduce(tensor, root, op);
        EXPECT_TRUE(group.rank() != root || agrees(tensor, expected_reduction(inputs, op), op));
      }
    });
  });
}

TEST_P(Collectives, Broadcast) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      const int root = c.salt % group.world_size();
      auto tensor = exact_data(c.shape, c.dtype, group.rank(), c.salt);
      group.broadcast(tensor, root);
      EXPECT_TRUE(same(tensor, exact_data(c.shape, c.dtype, root, c.salt)));
    });
  });
}

TEST_P(Collectives, AllGather) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      const auto inputs = everyones(group.world_size(), c.shape, c.dtype, c.salt);
      const auto gathered = group.all_gather(inputs[group.rank()]);
      ASSERT_EQ(gathered.size(), inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(same(gathered[i], inputs[i]));

      auto output = at::empty({group.world_size() * inputs[0].numel()}, inputs[0].options());
      group.all_gather_into_tensor(output, inputs[group.rank()]);
      std::vector<at::Tensor> flat;
      for (const auto& input : inputs) flat.push_back(input.flatten());
      EXPECT_TRUE(same(output, at::cat(flat)));
    });
  });
}

TEST_P(Collectives, ReduceScatter) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      std::vector<int64_t> whole = {group.world_size()};
      whole.insert(whole.end(), c.shape.begin(), c.shape.end());
      const auto inputs = everyones(group.world_size(), whole, c.dtype, c.salt);
      for (const auto op : {ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Bor}) {
        if (!has_meaning(op, c.dtype)) continue;
        auto output = at::empty(c.shape, inputs[0].options());
        group.reduce_scatter_tensor(output, inputs[group.rank()], op);
        EXPECT_TRUE(agrees(output, expected_reduction(inputs, op)[group.rank()], op));
      }
    });
  });
}

TEST_P(Collectives, GatherAndScatter) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      const int root = c.salt % group.world_size();
      const auto inputs = everyones(group.world_size(), c.shape, c.dtype, c.salt);
      const auto gathered = group.gather(inputs[group.rank()], root);
      ASSERT_EQ(gathered.size(), group.rank() == root ? inputs.size() : 0);
      for (size_t i = 0; i < gathered.size(); ++i) EXPECT_TRUE(same(gathered[i], inputs[i]));

      auto output = at::zeros(c.shape, inputs[0].options());
      group.scatter(output, group.rank() == root ? inputs : std::vector<at::Tensor>{}, root);
      EXPECT_TRUE(same(output, inputs[group.rank()]));
    });
  });
}

TEST_P(Collectives, AllToAll) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    for_all_cases([&](const Case& c) {
      std::vector<int64_t> whole = {group.world_size()};
      whole.insert(whole.end(), c.shape.begin(), c.shape.end());
      const auto inputs = everyones(group.world_size(), whole, c.dtype, c.salt);
      auto output = at::zeros(whole, inputs[0].options());
      group.all_to_all_single(output, inputs[group.rank()]);
      std::vector<at::Tensor> parts;
      for (const auto& input : inputs) parts.push_back(input[group.rank()]);
      EXPECT_TRUE(same(output, at::stack(parts)));
    });
  });
}

TEST_P(Collectives, SendAndReceiveInARing) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    if (group.world_size() == 1) {  // no other rank to send to
      auto tensor = at::ones({1});
      EXPECT_THROW(group.send(tensor, 0), UsageError);
      EXPECT_THROW(group.recv(tensor, 0), UsageError);
      return;
    }
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    for_all_cases([&](const Case& c) {
      const auto mine = exact_data(c.shape, c.dtype, group.rank(), c.salt);
      auto received = at::zeros(c.shape, mine.options());
      auto sending = group.send_async(mine, next, c.salt);
      group.recv(received, previous, c.salt);
      sending.wait();
      EXPECT_TRUE(same(received, exact_data(c.shape, c.dtype, previous, c.salt)));
    });
  });
}

TEST_P(Collectives, BarrierHoldsEverybodyBack) {
  constexpr int kRounds = 20;
  // Memory that all ranks share, independent of the code under test.
  auto* arrived =
      static_cast<std::atomic<int>*>(::mmap(nullptr, kRounds * sizeof(std::atomic<int>),
                                            PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(arrived, MAP_FAILED);
  run_ranks(world(), backend(), [&](ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      // Another rank is late in each round.
      if (round % group.world_size() == group.rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++arrived[round];
      group.barrier();
      EXPECT_EQ(arrived[round], group.world_size());
    }
  });
  ::munmap(arrived, kRounds * sizeof(std::atomic<int>));
}

// Any strides are allowed: transposed, strided and channels-last tensors give the same results as contiguous
// ones. Memory between their elements is not touched.
TEST_P(Collectives, AnyStrides) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    const auto layouts = std::vector<std::function<at::Tensor(const at::Tensor&)>>{
        [](const at::Tensor& t) { return t.t().contiguous().t(); },
        [](const at::Tensor& t) {
          auto room = at::full({t.size(0), t.size(1) * 2}, 99, t.options());
          auto view = room.slice(1, 0, t.size(1) * 2, 2);
          view.copy_(t);
          return view;
        }};
    const auto inputs = everyones(group.world_size(), {6, 10}, at::kFloat, 1);
    const auto mine = inputs[group.rank()];
    const auto sum = expected_reduction(inputs, ReduceOp::Sum);
    for (const auto& layout : layouts) {
      auto tensor = layout(mine);
      ASSERT_FALSE(tensor.is_contiguous());
      const auto strides = tensor.strides().vec();
      group.all_reduce(tensor);
      EXPECT_TRUE(same(tensor, sum));
      EXPECT_EQ(tensor.strides().vec(), strides);
      if (tensor.stride(1) == 2) {
        EXPECT_EQ(tensor.as_strided({6, 10}, {20, 2}, 1).eq(99).sum().item<int64_t>(), 60);
      }

      tensor = layout(mine);
      group.broadcast(tensor, 0);
      EXPECT_TRUE(same(tensor, inputs[0]));
      const auto gathered = group.all_gather(layout(mine));
      for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(same(gathered[i], inputs[i]));
      tensor = layout(at::zeros_like(mine));
      group.scatter(tensor, group.rank() == 0 ? inputs : std::vector<at::Tensor>{}, 0);
      EXPECT_TRUE(same(tensor, mine));
    }
  });
}

// conj() and expand() are views without memory of their own.
TEST_P(Collectives, LazyViews) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    const auto value = c10::complex<float>(1, 2);
    auto lazy = at::full({4}, value).conj();
    ASSERT_TRUE(lazy.is_conj());
    const auto gathered = group.all_gather(lazy);
    EXPECT_EQ(gathered.back()[0].item<c10::complex<float>>(), std::conj(value));
    group.all_reduce(lazy);
    EXPECT_EQ(lazy[0].item<c10::complex<float>>(),
              c10::complex<float>(1, -2) * static_cast<float>(group.world_size()));

    auto expanded = at::ones({1}).expand({4});
    EXPECT_THROW(group.all_reduce(expanded), UsageError);
    EXPECT_THROW(group.broadcast(expanded), UsageError);
    EXPECT_EQ(group.all_gather(expanded).front().sum().item<int>(),
              4);  // as an input it is valid
  });
}

// Arguments may be temporaries; they need not outlive the call.
TEST_P(Collectives, Temporaries) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    const int world = group.world_size(), last = world - 1;
    auto matrix = at::full({3, 4}, group.rank() + 1.0);
    matrix.set_requires_grad(true);
    group.all_reduce(matrix.data().view({-1}));
    EXPECT_EQ(matrix[2][3].item<int>(), world * (world + 1) / 2);
    group.broadcast(matrix.data()[0].fill_(group.rank()), last);
    EXPECT_EQ(matrix[0][3].item<int>(), last);
    group.reduce(matrix.data()[0], 0);
    group.scatter(matrix.data()[1], std::vector<at::Tensor>(group.rank() == 0 ? world : 0, at::ones({4})), 0);
    EXPECT_EQ(matrix[1][3].item<int>(), 1);
    const auto large = at::zeros({world, 2});
    group.all_gather_into_tensor(large.view({-1}), at::full({2}, group.rank(), at::kFloat));
    EXPECT_EQ(large[last][1].item<int>(), last);
    group.reduce_scatter_tensor(matrix.data()[2].slice(0, 0, 2), large.clone());
    EXPECT_EQ(matrix[2][1].item<int>(), world * group.rank());
    group.all_to_all_single(large.view({-1}), at::full({2 * world}, group.rank(), at::kFloat));
    EXPECT_EQ(large[last][1].item<int>(), last);

    std::vector<Work> works;
    works.push_back(group.all_reduce_async(matrix.data().fill_(1).t()));
    works.push_back(group.broadcast_async(large.select(1, 1).fill_(group.rank()), last));
    for (auto& work : works) work.wait();
    EXPECT_EQ(matrix[2][3].item<int>(), world);
    EXPECT_EQ(large[0][1].item<int>(), last);
    if (world == 1) return;
    if (group.rank() == 0) group.send(at::ones({2}), 1);
    if (group.rank() == 1) group.recv(large[0], 0);
    EXPECT_TRUE(group.rank() != 1 || large[0].sum().item<int>() == 2);
  });
}

TEST_P(Collectives, ManyInFlightFinishInAnyOrderOfWaiting) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 32; ++i) tensors.push_back(exact_data({100 + i}, at::kFloat, group.rank(), i));
    for (auto& tensor : tensors) works.push_back(group.all_reduce_async(tensor));
    for (int i = 31; i >= 0; --i) {
      works[i].wait();
      EXPECT_TRUE(works[i].is_done());
      works[i].wait();  // a second wait has no effect
      EXPECT_TRUE(same(tensors[i], expected_reduction(everyones(group.world_size(), {100 + i}, at::kFloat, i),
                                                      ReduceOp::Sum)));
    }
  });
}

TEST_P(Collectives, ParametersThatRequireGradients) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    auto parameter = at::full({3}, group.rank() + 1.0).set_requires_grad(true);
    group.broadcast(parameter, group.world_size() - 1);
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(parameter[0].item<double>(), group.world_size());
  });
}

// A tensor without elements takes part like any other: the call is not done before the ranks that this rank
// receives from have arrived.
TEST_P(Collectives, WithoutElementsWaitForTheOthers) {
  const Shared<std::atomic<int>> begun;
  run_ranks(world(), backend(), [&](ProcessGroup& group) {
    auto none = at::empty({0, 3}), other = at::empty({0}), room = at::empty({group.world_size(), 0});
    const int world = group.world_size(), last = world - 1;
    const std::vector<at::Tensor> parts(group.rank() == last ? world : 0, none);
    const std::vector<std::function<Work()>> calls = {
        [&] { return group.all_reduce_async(none); },
        [&] { return group.all_reduce_async(none, ReduceOp::Bxor); },
        [&] { return group.broadcast_async(none, last); },
        [&] { return group.reduce_async(none, 0); },
        [&] { return group.all_gather_async(none); },
        [&] { return group.all_gather_into_tensor_async(room, other); },
        [&] { return group.reduce_scatter_tensor_async(other, room); },
        [&] { return group.gather_async(none, 0); },
        [&] { return group.scatter_async(none, parts, last); },
        [&] { return group.all_to_all_single_async(none, other); },
        [&] { return group.rank() == last ? group.send_async(none, 0) : group.recv_async(none, last); }};
    for (size_t i = 0; i < calls.size() && world > 1; ++i) {
      SCOPED_TRACE(i);
      none = at::empty({0, 3}, i == 1 ? at::kInt : at::kFloat);
      const bool message = i + 1 == calls.size();
      if (group.rank() == 0) {
        auto work = calls[i]();
        EXPECT_FALSE(work.is_done());
        *begun = static_cast<int>(i) + 1;
        work.wait();
      } else {
        while (*begun <= static_cast<int>(i)) std::this_thread::yield();
        if (!message || group.rank() == last) calls[i]().wait();
      }
    }
    auto tensor = at::ones({1});
    group.all_reduce(tensor);
    EXPECT_EQ(tensor.item<int>(), world);
  });
}

TEST_P(Collectives, ArgumentsThatCannotBeRightChangeNothing) {
  run_ranks(world(), backend(), [](ProcessGroup& group) {
    auto tensor = at::ones({4});
    auto undefined = at::Tensor();
    auto wrong = at::ones({4 * group.world_size() + 1});
    EXPECT_THROW(group.all_reduce(undefined), UsageError);
    EXPECT_THROW(group.broadcast(tensor, group.world_size()), UsageError);
    EXPECT_THROW(group.broadcast(tensor, -1), UsageError);
    EXPECT_THROW(group.reduce(tensor, 99), UsageError);
    EXPECT_THROW(group.all_gather_into_tensor(wrong, tensor), UsageError);
    EXPECT_THROW(group.reduce_scatter_tensor(tensor, wrong), UsageError);
    EXPECT_THROW(group.scatter(tensor, {}, group.rank()), UsageError);
    EXPECT_THROW(group.send(tensor, group.rank()), UsageError);
    EXPECT_THROW(group.recv(tensor, group.world_size()), UsageError);
    if (group.world_size() > 1) {
      const int other = (group.rank() + 1) % group.world_size();
      EXPECT_THROW(group.send(tensor, other, -1), UsageError);
      EXPECT_THROW(group.recv(tensor, other, 500'000'001), UsageError);
    }
    auto sparse = at::ones({2, 2}).to_sparse();
    EXPECT_THROW(group.all_reduce(sparse), UsageError);
    group.all_reduce(tensor);  // the group still works
    EXPECT_EQ(tensor.sum().item<double>(), 4.0 * group.world_size());
  });
}

// Every wait begins with a short one. This call is done immediately after the short wait has timed out.
class DoneTooLate : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout) throw std::runtime_error("timed out");
    return true;
  }
  bool isCompleted() override { return true; }
};

class LateBackend : public c10d_backend {
 public:
  LateBackend() : c10d_backend(0, 2) {}
  const std::string getBackendName() const override { return "late"; }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return c10::make_intrusive<DoneTooLate>();
  }
};

TEST(ForeignBackends, ACallThatIsDoneJustAfterAShortWaitHasNotFailed) {
  ProcessGroup::Impl group;
  group.world_size = 2;
  foreign::Transport transport(group, c10::make_intrusive<LateBackend>());
  comm::Request barrier;
  transport.run(barrier);
}

std::string name_of(const ::testing::TestParamInfo<Collectives::ParamType>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), ':', '_');
  return name + "_World" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Gloo, Collectives,
                         ::testing::Combine(::testing::Values("gloo"), ::testing::Values(1, 2, 3, 4)),
                         name_of);
// A world of one rank is the same for all backends.
INSTANTIATE_TEST_SUITE_P(Shm, Collectives,
                         ::testing::Combine(::testing::Values("shm"), ::testing::Values(2, 3, 4)), name_of);
INSTANTIATE_TEST_SUITE_P(Hybrid, Collectives,
                         ::testing::Values(std::tuple("hybrid:ab", 2), std::tuple("hybrid:aab", 3),
                                           std::tuple("hybrid:abba", 4), std::tuple("hybrid:abac", 4),
                                           std::tuple("hybrid:aabbb", 5)),
                         name_of);

}  // namespace
}  // namespace lockstep::testing
