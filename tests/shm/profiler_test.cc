// Profilers see every call under the backend's name, with the shapes of its inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/profiler.h>

#include "shm/local_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::IsSupersetOf;
using namespace std::chrono_literals;
namespace profiler = torch::autograd::profiler;

using Shapes = std::vector<std::vector<int64_t>>;

at::Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes); }

// For each event with this name, the shape of its first input, or an empty shape if it has none.
Shapes first_shapes(const std::string& name, const std::function<void()>& action) {
  profiler::enableProfilerLegacy(
      profiler::ProfilerConfig(profiler::ProfilerState::CPU, /*report_input_shapes=*/true, false));
  action();
  const auto threads = profiler::disableProfilerLegacy();
  Shapes shapes;
  for (const auto& events : threads) {
    for (const auto& event : events) {
      if (event.name() != name || event.kindStr() != "push") continue;
      const auto inputs = event.shapes();
      shapes.push_back(inputs.empty() ? std::vector<int64_t>{} : inputs[0]);
    }
  }
  return shapes;
}

// If ranks may differ, the first dimension of rank r's call is r + 2.
void expect_recorded(const std::string& name, const Shapes& shapes, const LocalRanks::Call& call) {
  LocalRanks ranks(2);
  const auto seen = first_shapes(name, [&] {
    for (const auto& work : ranks.start(call)) EXPECT_TRUE(work->wait());
  });
  EXPECT_EQ(seen.size(), 2) << name;
  EXPECT_THAT(seen, IsSupersetOf(shapes)) << name;
}

TEST(Profiler, Collectives) {
  const Shapes alike = {{6, 3}, {6, 3}};
  expect_recorded(title_of("all_reduce"), alike, [](int, c10d_backend& backend) {
    return all_reduce(backend, {ones({6, 3})});
  });
  expect_recorded(title_of("broadcast"), alike, [](int, c10d_backend& backend) {
    return broadcast(backend, {ones({6, 3})});
  });
  expect_recorded(title_of("reduce"), alike, [](int, c10d_backend& backend) {
    return reduce(backend, {ones({6, 3})}, 0);
  });
  expect_recorded(title_of("all_gather"), alike, [](int, c10d_backend& backend) {
    return all_gather(backend, {{ones({6, 3}), ones({6, 3})}}, {ones({6, 3})});
  });
  expect_recorded(title_of("gather"), alike, [](int rank, c10d_backend& backend) {
    return gather(backend, rank == 0 ? TensorLists{{ones({6, 3}), ones({6, 3})}} : TensorLists{},
                  {ones({6, 3})}, 0);
  });
  expect_recorded(title_of("scatter"), {{6, 3}}, [](int rank, c10d_backend& backend) {
    return scatter(backend, {ones({6, 3})},
                   rank == 0 ? TensorLists{{ones({6, 3}), ones({6, 3})}} : TensorLists{}, 0);
  });
  expect_recorded(title_of("reduce_scatter"), alike, [](int, c10d_backend& backend) {
    return reduce_scatter(backend, {ones({6, 3})}, {{ones({6, 3}), ones({6, 3})}});
  });
  expect_recorded(title_of("all_to_all"), {{2, 5}, {3, 5}}, [](int rank, c10d_backend& backend) {
    // Rank 0 keeps one row and gives one; rank 1 keeps one and gives two.
    return rank == 0 ? all_to_all_base(backend, ones({3, 5}), ones({2, 5}), {1, 2}, {1, 1})
                     : all_to_all_base(backend, ones({2, 5}), ones({3, 5}), {1, 1}, {2, 1});
  });
  expect_recorded(title_of("barrier"), {}, [](int, c10d_backend& backend) { return backend.barrier(); });
}

TEST(Profiler, PointToPoint) {
  LocalRanks ranks(2);
  const auto exchange = [&](bool from_anybody) {
    const auto sending = send(ranks[0], {ones({4, 7})}, 1);
    const auto receiving =
        from_anybody ? recv_from_any(ranks[1], {ones({4, 7})}) : recv(ranks[1], {ones({4, 7})}, 0);
    EXPECT_TRUE(receiving->wait());
    EXPECT_TRUE(sending->wait());
  };
  const Shapes one = {{4, 7}};
  EXPECT_EQ(first_shapes(title_of("send"), [&] { exchange(false); }), one);
  EXPECT_EQ(first_shapes(title_of("recv"), [&] { exchange(false); }), one);
  if (local_ranks_share_memory()) {
    EXPECT_EQ(first_shapes(title_of("recvAnySource"), [&] { exchange(true); }), one);
  }
}

// A call that no other rank answers is recorded as well.
TEST(Profiler, CallsThatAreGivenUp) {
  LocalRanks ranks(2);
  const auto shapes = first_shapes(title_of("send"), [&] {
    const auto sending = send(ranks[0], {ones({4, 7})}, 1);
    sending->abort();
    EXPECT_FALSE(sending->wait());
  });
  EXPECT_EQ(shapes, Shapes({{4, 7}}));
}

}  // namespace
}  // namespace lockstep::testing
