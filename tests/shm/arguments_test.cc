// Invalid arguments are rejected as by Gloo, with its messages, before anything is sent. The group still
// works afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <typeinfo>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "gloo/make_gloo.h"
#include "groups/make_group.h"
#include "shm/layout.h"
#include "shm/local_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

at::Tensor four() { return at::ones({4}); }
at::Tensor five() { return at::ones({5}); }
at::Tensor doubles() { return at::ones({4}, at::kDouble); }
at::Tensor sparse() { return at::ones({2, 2}).to_sparse(); }

class Arguments : public ::testing::Test {
 protected:
  c10d_backend& root() { return ranks_[0]; }
  c10d_backend& other() { return ranks_[1]; }

  void expect_refusal(const char* words, const std::function<WorkPtr()>& call) {
    EXPECT_THAT(refusal_of(call), HasSubstr(words));
  }

  // For cases without a message to repeat: this LibTorch's Gloo lacks the call, or has no check of its own
  // for it.
  void expect_some_refusal(const std::function<WorkPtr()>& call) {
    EXPECT_THAT(refusal_of(call), AllOf(Not(IsEmpty()), Not(HasSubstr("Timed out"))));
  }

  void TearDown() override {
    const auto tensor = at::ones({4});
    const auto works =
        ranks_.start([&](int, c10d_backend& backend) { return all_reduce(backend, {tensor.clone()}); });
    for (const auto& work : works) {
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(work->result().at(0).sum().item<int>(), 8);
    }
  }

 private:
  LocalRanks ranks_{2};
};

TEST_F(Arguments, Broadcast) {
  expect_refusal("invalid root rank: -1", [&] { return broadcast(root(), {four()}, -1); });
  expect_refusal("invalid root rank: 2", [&] { return broadcast(root(), {four()}, 2); });
  expect_refusal("invalid root tensor: -1", [&] { return broadcast(root(), {four()}, 0, -1); });
  expect_refusal("invalid root tensor: 1", [&] { return broadcast(root(), {four()}, 0, 1); });
  expect_refusal("invalid root tensor: 0", [&] { return broadcast(root(), {}); });
  expect_refusal("invalid tensor type", [&] { return broadcast(root(), {four(), doubles()}); });
  expect_refusal("invalid tensor size", [&] { return broadcast(root(), {four(), five()}); });
  expect_refusal("only supports dense tensors", [&] { return broadcast(root(), {sparse()}); });
}

TEST_F(Arguments, AllReduce) {
  expect_refusal("requires non-empty tensor list", [&] { return all_reduce(root(), {}); });
  expect_refusal("invalid tensor type", [&] { return all_reduce(root(), {four(), doubles()}); });
  expect_refusal("invalid tensor size", [&] { return all_reduce(root(), {four(), five()}); });
  expect_refusal("invalid tensor layout", [&] { return all_reduce(root(), {at::ones({2, 2}), sparse()}); });
  expect_refusal("invalid tensor size", [&] {
    return all_reduce(root(), {sparse(), at::ones({3, 3}).to_sparse()});
  });
  for (const auto op : {ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg}) {
    expect_refusal("unsupported reduction operation", [&] { return all_reduce(root(), {sparse()}, op); });
  }
}

TEST_F(Arguments, AllReduceCoalesced) {
  expect_refusal("requires non-empty tensor list", [&] { return all_reduce_coalesced(root(), {}); });
  expect_refusal("tensors must all have the same type", [&] {
    return all_reduce_coalesced(root(), {four(), doubles()});
  });
  expect_refusal("invalid tensor layout", [&] {
    return all_reduce_coalesced(root(), {at::ones({2, 2}), sparse()});
  });
  expect_refusal("unsupported layout", [&] { return all_reduce_coalesced(root(), {sparse()}); });
}

TEST_F(Arguments, Reduce) {
  expect_refusal("invalid root rank: -1", [&] { return reduce(root(), {four()}, -1); });
  expect_refusal("invalid root rank: 2", [&] { return reduce(root(), {four()}, 2); });
  expect_refusal("invalid root tensor: 1", [&] { return reduce(root(), {four()}, 0, ReduceOp::Sum, 1); });
  expect_refusal("requires a single-element tensor list", [&] {
    return reduce(root(), {four(), four()}, 0);
  });
  expect_refusal("only supports dense tensors", [&] { return reduce(root(), {sparse()}, 0); });
}

TEST_F(Arguments, AllGather) {
  expect_refusal("requires non-empty input tensor list", [&] { return all_gather(root(), {}, {}); });
  expect_refusal("requires input/output tensor lists to have the same length",
                 [&] { return all_gather(root(), {}, {four()}); });
  expect_refusal("invalid output tensor list at index 0 (expected length 2, got 1)",
                 [&] { return all_gather(root(), {{four()}}, {four()}); });
  expect_refusal("invalid tensor type", [&] { return all_gather(root(), {{four(), doubles()}}, {four()}); });
  expect_refusal("invalid tensor size", [&] { return all_gather(root(), {{four(), five()}}, {four()}); });
  expect_refusal("only supports dense tensors", [&] {
    return all_gather(root(), {{sparse(), sparse()}}, {sparse()});
  });
}

TEST_F(Arguments, AllGatherInItsOtherForms) {
  expect_refusal("requires non-empty input tensor list", [&] {
    return all_gather_coalesced(root(), {{}, {}}, {});
  });
  expect_refusal("output lists should be equal to world size",
                 [&] { return all_gather_coalesced(root(), {{four()}}, {four()}); });
  expect_refusal("invalid output size: (expected length 1, got 2)", [&] {
    return all_gather_coalesced(root(), {{four(), four()}, {four(), four()}}, {four()});
  });
  expect_refusal("invalid size of output tensor at index 0", [&] {
    return all_gather_coalesced(root(), {{five()}, {five()}}, {four()});
  });
  expect_refusal("invalid tensor type", [&] {
    return all_gather_coalesced(root(), {{doubles()}, {doubles()}}, {four()});
  });
  expect_some_refusal([&] { return all_gather_base(root(), five(), four()); });
  expect_some_refusal([&] { return all_gather_base(root(), at::ones({8}, at::kInt), four()); });
}

TEST_F(Arguments, Gather) {
  expect_refusal("invalid root rank: -1", [&] { return gather(root(), {{four(), four()}}, {four()}, -1); });
  expect_refusal("invalid root rank: 2", [&] { return gather(root(), {{four(), four()}}, {four()}, 2); });
  expect_refusal("requires a single-element input tensor list", [&] {
    return gather(root(), {{four(), four()}}, {}, 0);
  });
  expect_refusal("requires a single-element output list", [&] { return gather(root(), {}, {four()}, 0); });
  expect_refusal("Incorrect output list size 1. Output list size should be 2",
                 [&] { return gather(root(), {{four()}}, {four()}, 0); });
  expect_refusal("invalid tensor type", [&] { return gather(root(), {{four(), doubles()}}, {four()}, 0); });
  expect_refusal("invalid tensor size", [&] { return gather(root(), {{four(), five()}}, {four()}, 0); });
  expect_refusal("requires empty output on non-root", [&] {
    return gather(other(), {{four(), four()}}, {four()}, 0);
  });
  expect_refusal("only supports dense tensors", [&] {
    return gather(root(), {{sparse(), sparse()}}, {sparse()}, 0);
  });
}

TEST_F(Arguments, Scatter) {
  expect_refusal("invalid root rank: -1", [&] { return scatter(root(), {four()}, {{four(), four()}}, -1); });
  expect_refusal("invalid root rank: 2", [&] { return scatter(root(), {four()}, {{four(), four()}}, 2); });
  expect_refusal("requires a single-element output tensor list", [&] {
    return scatter(root(), {}, {{four(), four()}}, 0);
  });
  expect_refusal("requires a single-element input list", [&] { return scatter(root(), {four()}, {}, 0); });
  expect_refusal("Incorrect input list size 1. Input list size should be 2",
                 [&] { return scatter(root(), {four()}, {{four()}}, 0); });
  expect_refusal("invalid tensor type", [&] { return scatter(root(), {four()}, {{four(), doubles()}}, 0); });
  expect_refusal("invalid tensor size", [&] { return scatter(root(), {four()}, {{four(), five()}}, 0); });
  expect_refusal("requires empty input on non-root", [&] {
    return scatter(other(), {four()}, {{four(), four()}}, 0);
  });
  expect_refusal("only supports dense tensors", [&] {
    return scatter(root(), {sparse()}, {{sparse(), sparse()}}, 0);
  });
}

TEST_F(Arguments, ReduceScatter) {
  expect_some_refusal([&] { return reduce_scatter(root(), {}, {{four(), four()}}); });
  expect_some_refusal([&] { return reduce_scatter(root(), {four()}, {{four()}}); });
  expect_some_refusal([&] { return reduce_scatter(root(), {four()}, {{four(), five()}}); });
  expect_some_refusal([&] { return reduce_scatter(root(), {four()}, {{four(), doubles()}}); });
  expect_some_refusal([&] { return reduce_scatter_base(root(), four(), five()); });
}

TEST_F(Arguments, AllToAll) {
  expect_refusal("only supports dense tensors", [&] { return all_to_all_base(root(), sparse(), sparse()); });
  expect_some_refusal([&] { return all_to_all_base(root(), five(), five()); });
  expect_some_refusal([&] { return all_to_all_base(root(), four(), four(), {4}, {2, 2}); });
  expect_some_refusal([&] { return all_to_all_base(root(), four(), four(), {2, 2}, {2, 3}); });
  expect_some_refusal([&] { return all_to_all_base(root(), doubles(), four()); });
  expect_some_refusal([&] { return all_to_all(root(), {four()}, {four(), four()}); });
}

TEST_F(Arguments, PointToPoint) {
  expect_refusal("single", [&] { return send(root(), {four(), four()}, 1); });
  expect_refusal("single", [&] { return recv(root(), {}, 1); });
  expect_refusal("Tag must be nonnegative", [&] { return send(root(), {four()}, 1, -1); });
  expect_refusal("Tag must be nonnegative", [&] { return recv(root(), {four()}, 1, -1); });
  expect_refusal("Tag must be nonnegative", [&] { return recv_from_any(root(), {four()}, -1); });
  expect_refusal("dense", [&] { return send(root(), {sparse()}, 1); });
  expect_some_refusal([&] { return send(root(), {four()}, 2); });
  expect_some_refusal([&] { return recv(root(), {four()}, -1); });
}

TEST_F(Arguments, OperationsThatMeanNothing) {
  for (const auto op : {ReduceOp::Band, ReduceOp::Bor, ReduceOp::Bxor})
    expect_some_refusal([&] { return all_reduce(root(), {four()}, op); });
  const auto whole = at::ones({4}, at::kInt), complex = at::ones({4}, at::kComplexFloat);
  expect_some_refusal([&] { return all_reduce(root(), {whole}, ReduceOp::Avg); });
  expect_some_refusal([&] { return reduce(root(), {complex}, 0, ReduceOp::Max); });
}

// The same exception class, which Python users see first, and the same message after the name of the backend.
TEST(Backends, RefuseArgumentsAsGlooDoes) {
  if (!gloo::has_gloo()) GTEST_SKIP() << "this LibTorch has no Gloo";
  LocalRanks ranks(1);
  const auto gloo =
      gloo::make_gloo(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(20), {"127.0.0.1"});
  using Refused = std::pair<std::string, std::string>;  // class, message
  const auto refusal = [](c10d_backend& backend,
                          const std::function<WorkPtr(c10d_backend&)>& call) -> Refused {
    try {
      call(backend)->wait();
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      auto words = text.substr(text.find(": "));
      if (words.back() == '.')
        words.pop_back();  // as it is with one version of Gloo, and is not with another
      // Gloo's indices do not count the tensor that the others are compared with.
      return {typeid(error).name(), words.substr(0, words.find(" at index"))};
    }
    ADD_FAILURE() << "nothing was refused";
    return {};
  };
  const std::vector<std::function<WorkPtr(c10d_backend&)>> calls = {
      [](c10d_backend& backend) { return broadcast(backend, {four()}, -1); },
      [](c10d_backend& backend) {
        return broadcast(backend, {four(), doubles()});
      },
      [](c10d_backend& backend) { return all_reduce(backend, {}); },
      [](c10d_backend& backend) {
        return all_reduce(backend, {four(), five()});
      },
      [](c10d_backend& backend) { return all_reduce(backend, {sparse()}, ReduceOp::Max); },
      [](c10d_backend& backend) {
        return all_reduce_coalesced(backend, {four(), doubles()});
      },
      [](c10d_backend& backend) { return all_reduce_coalesced(backend, {sparse()}); },
      [](c10d_backend& backend) {
        return reduce(backend, {four(), four()}, 0);
      },
      [](c10d_backend& backend) { return all_gather(backend, {}, {}); },
      [](c10d_backend& backend) { return all_gather(backend, {{five()}}, {four()}); },
      [](c10d_backend& backend) { return gather(backend, {}, {four()}, 0); },
      [](c10d_backend& backend) { return gather(backend, {{four()}}, {four()}, 1); },
      [](c10d_backend& backend) { return scatter(backend, {four()}, {}, 0); },
      [](c10d_backend& backend) { return scatter(backend, {four()}, {{doubles()}}, 0); }};
  for (size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(refusal(ranks[0], calls[i]), refusal(*gloo, calls[i])) << i;
}

TEST(Backends, OneThatDoesNotExistIsRefused) {
  EXPECT_THROW(make_c10d_backend("smoke signals", {}, 0, 1, std::chrono::seconds(1)), UsageError);
}

TEST(Backends, MoreRanksThanSharedMemoryJoinsTakeGloo) {
  std::vector<rendezvous::RankFacts> ranks(shm::kMaxWorld, rendezvous::RankFacts{.machine = "m"});
  EXPECT_EQ(groups::choose_host_backend("auto", ranks), "shm");
  EXPECT_EQ(groups::choose_host_backend("shm", ranks), "shm");
  ranks.push_back(ranks.front());
  EXPECT_EQ(groups::choose_host_backend("auto", ranks), "gloo");
  EXPECT_THAT(error_of([&] { groups::choose_host_backend("shm", ranks); }),
              AllOf(HasSubstr("257 ranks"), HasSubstr("at most 256"), HasSubstr("hint:")));
}

}  // namespace
}  // namespace lockstep::testing
