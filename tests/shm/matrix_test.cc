// Compares every collective of c10d's interface, for every dtype and operation that has a meaning, with a
// simple reference. Sizes: none, one, odd, 4096 and its neighbours, several MiB. Memory: registered with the
// group, ordinary, and both in one call. Each test starts its ranks once for each world size; the loops are
// inside.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shm/calls.h"
#include "shm/reference.h"
#include "support/run_ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

const std::vector<int64_t> kMatrixCounts = {0, 1, 37, 4095, 4096, 4097};

// Mixed: alternates between neighbouring ranks, and between input and output.
enum class Memory { Plain, Registered, Mixed };
constexpr Memory kMemories[] = {Memory::Plain, Memory::Registered, Memory::Mixed};

// One rank: its c10d backend, and memory of each kind.
class Rank {
 public:
  explicit Rank(ProcessGroup& group) : group_(group), rank(group.rank()), world(group.world_size()) {
    at::set_num_threads(1);  // there are enough ranks
    // A group of one rank has no engine, but c10d users can create one.
    backend_ = world > 1 ? group.c10d()
                         : make_c10d_backend("shm", c10::make_intrusive<c10d::HashStore>(), 0, 1, 20s);
  }

  c10d_backend& operator*() { return *backend_; }

  // place() copies values; room() is for results. `index` numbers the tensors of a call.
  at::Tensor place(const at::Tensor& values, Memory memory, int index = 0) {
    return is_registered(memory, index) ? group_.empty(values.sizes(), values.options()).copy_(values)
                                        : values.clone();
  }
  at::Tensor room(at::IntArrayRef sizes, at::ScalarType dtype, Memory memory, int index = 1) {
    return is_registered(memory, index) ? group_.empty(sizes, at::dtype(dtype)).zero_()
                                        : at::zeros(sizes, dtype);
  }
  Tensors rooms(int count, at::IntArrayRef sizes, at::ScalarType dtype, Memory memory) {
    Tensors all;
    for (int i = 0; i < count; ++i) all.push_back(room(sizes, dtype, memory, i + 1));
    return all;
  }

 private:
  bool is_registered(Memory memory, int index) const {
    return memory == Memory::Registered || (memory == Memory::Mixed && (rank + index) % 2 == 0);
  }

  ProcessGroup& group_;
  c10::intrusive_ptr<c10d_backend> backend_;

 public:
  const int rank, world;
};

struct Case {
  at::ScalarType dtype;
  int64_t count;
  Memory memory;
  int salt;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c10::toString(c.dtype) << ", " << c.count << " elements, memory "
             << static_cast<int>(c.memory);
}

// The body makes the same calls on all ranks. Stops after a failure.
template <class Body>
void for_all(const std::vector<at::ScalarType>& dtypes, const std::vector<int64_t>& counts, Body&& body) {
  int salt = 0;
  for (const auto dtype : dtypes) {
    for (const auto count : counts) {
      for (const auto memory : kMemories) {
        if (::testing::Test::HasFailure()) return;
        const Case c{dtype, count, memory, ++salt};
        SCOPED_TRACE(::testing::Message() << c);
        body(c);
      }
    }
  }
}

void finish(const WorkPtr& work) { EXPECT_TRUE(work->wait()); }

void expect_same(const Tensors& got, const Tensors& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], want[i])) << what << ", part " << i;
}

Tensors rows(const at::Tensor& tensor) {
  Tensors parts;
  for (int64_t i = 0; i < tensor.size(0); ++i) parts.push_back(tensor[i]);
  return parts;
}

void check_reductions(Rank& rank, const Case& c, ReduceOp op) {
  const int root = c.salt % rank.world;
  const auto inputs = everyones(rank.world, {c.count}, c.dtype, c.salt);
  const auto& mine = inputs[rank.rank];
  const auto want = expected_reduction(inputs, op);

  auto tensor = rank.place(mine, c.memory);
  finish(all_reduce(*rank, {tensor}, op));
  EXPECT_TRUE(agrees(tensor, want, op)) << "all_reduce";

  tensor = rank.place(mine, c.memory);
  finish(reduce(*rank, {tensor}, root, op));
  EXPECT_TRUE(rank.rank != root || agrees(tensor, want, op)) << "reduce";

  auto first = rank.place(mine, c.memory, 0);
  auto second = rank.place(mine.narrow(0, 0, c.count / 2), c.memory, 1);
  finish(all_reduce_coalesced(*rank, {first, second}, op));
  EXPECT_TRUE(agrees(first, want, op)) << "all_reduce_coalesced";
  EXPECT_TRUE(agrees(second, want.narrow(0, 0, c.count / 2), op)) << "all_reduce_coalesced";
}

void check_scattered_reductions(Rank& rank, const Case& c, ReduceOp op) {
  const auto inputs = everyones(rank.world, {rank.world, c.count}, c.dtype, c.salt);
  const auto want = expected_reduction(inputs, op)[rank.rank];

  auto input = rank.place(inputs[rank.rank], c.memory);
  auto output = rank.room({c.count}, c.dtype, c.memory);
  finish(reduce_scatter_base(*rank, output, input, op));
  EXPECT_TRUE(agrees(output, want, op)) << "_reduce_scatter_base";
  EXPECT_TRUE(same(input, inputs[rank.rank])) << "_reduce_scatter_base changed its input";

  Tensors parts;
  for (const auto& row : rows(inputs[rank.rank]))
    parts.push_back(rank.place(row, c.memory, static_cast<int>(parts.size())));
  output = rank.room({c.count}, c.dtype, c.memory);
  finish(reduce_scatter(*rank, {output}, {parts}, op));
  EXPECT_TRUE(agrees(output, want, op)) << "reduce_scatter";
}

void check_gathering(Rank& rank, const Case& c) {
  const int root = c.salt % rank.world;
  const auto inputs = everyones(rank.world, {c.count}, c.dtype, c.salt);
  const auto mine = rank.place(inputs[rank.rank], c.memory);

  auto outputs = rank.rooms(rank.world, {c.count}, c.dtype, c.memory);
  finish(all_gather(*rank, {outputs}, {mine}));
  expect_same(outputs, inputs, "all_gather");

  auto flat = rank.room({rank.world, c.count}, c.dtype, c.memory);
  finish(all_gather_base(*rank, flat, mine));
  EXPECT_TRUE(same(flat, at::stack(inputs))) << "_allgather_base";

  const auto half = rank.place(inputs[rank.rank].narrow(0, 0, c.count / 2), c.memory, 1);
  TensorLists lists;
  for (int i = 0; i < rank.world; ++i) {
    lists.push_back(
        {rank.room({c.count}, c.dtype, c.memory, i), rank.room({c.count / 2}, c.dtype, c.memory, i + 1)});
  }
  finish(all_gather_coalesced(*rank, lists, {mine, half}));
  for (int i = 0; i < rank.world; ++i)
    expect_same(lists[i], {inputs[i], inputs[i].narrow(0, 0, c.count / 2)}, "allgather_coalesced");

  outputs = rank.rank == root ? rank.rooms(rank.world, {c.count}, c.dtype, c.memory) : Tensors{};
  finish(gather(*rank, rank.rank == root ? TensorLists{outputs} : TensorLists{}, {mine}, root));
  if (rank.rank == root) expect_same(outputs, inputs, "gather");
  EXPECT_TRUE(same(mine, inputs[rank.rank])) << "an input has changed";
}

void check_spreading(Rank& rank, const Case& c) {
  const int root = c.salt % rank.world;
  const auto inputs = everyones(rank.world, {c.count}, c.dtype, c.salt);

  auto tensor = rank.place(inputs[rank.rank], c.memory);
  finish(broadcast(*rank, {tensor}, root));
  EXPECT_TRUE(same(tensor, inputs[root])) << "broadcast";

  Tensors parts;
  for (int i = 0; i < rank.world && rank.rank == root; ++i)
    parts.push_back(rank.place(inputs[i], c.memory, i));
  tensor = rank.room({c.count}, c.dtype, c.memory);
  finish(scatter(*rank, {tensor}, rank.rank == root ? TensorLists{parts} : TensorLists{}, root));
  EXPECT_TRUE(same(tensor, inputs[rank.rank])) << "scatter";

  if (rank.world == 1) return;
  const int next = (rank.rank + 1) % rank.world, previous = (rank.rank + rank.world - 1) % rank.world;
  const auto mine = rank.place(inputs[rank.rank], c.memory);
  tensor = rank.room({c.count}, c.dtype, c.memory);
  const auto sending = send(*rank, {mine}, next, c.salt);
  finish(recv(*rank, {tensor}, previous, c.salt));
  finish(sending);
  EXPECT_TRUE(same(tensor, inputs[previous])) << "send and recv";
}

void check_exchanging(Rank& rank, const Case& c) {
  const auto inputs = everyones(rank.world, {rank.world, c.count}, c.dtype, c.salt);
  Tensors want;
  for (const auto& input : inputs) want.push_back(input[rank.rank]);

  auto output = rank.room({rank.world, c.count}, c.dtype, c.memory);
  finish(all_to_all_base(*rank, output, rank.place(inputs[rank.rank], c.memory)));
  EXPECT_TRUE(same(output, at::stack(want))) << "alltoall_base";

  Tensors parts;
  for (const auto& row : rows(inputs[rank.rank]))
    parts.push_back(rank.place(row, c.memory, static_cast<int>(parts.size())));
  auto outputs = rank.rooms(rank.world, {c.count}, c.dtype, c.memory);
  finish(all_to_all(*rank, outputs, parts));
  expect_same(outputs, want, "alltoall");

  // Uneven: a part for rank i has i rows more than the case states, and a part from rank r has r rows less.
  const auto share = [&](int from, int to) { return std::max<int64_t>(0, c.count + to - from); };
  const auto all_rows = c.count + rank.world;
  Splits given, taken;
  Tensors sent;
  want.clear();
  for (int i = 0; i < rank.world; ++i) {
    given.push_back(share(rank.rank, i));
    taken.push_back(share(i, rank.rank));
    sent.push_back(exact_data({all_rows}, c.dtype, rank.rank, i).narrow(0, 0, given.back()));
    want.push_back(exact_data({all_rows}, c.dtype, i, rank.rank).narrow(0, 0, taken.back()));
  }
  const auto together = at::cat(want);
  output = rank.room(together.sizes(), c.dtype, c.memory);
  finish(all_to_all_base(*rank, output, rank.place(at::cat(sent), c.memory), taken, given));
  EXPECT_TRUE(same(output, together)) << "alltoall_base, uneven";
}

struct Place {
  int world;
  const char* backend;
};

void PrintTo(const Place& place, std::ostream* out) { *out << place.world << " ranks, " << place.backend; }

class Matrix : public ::testing::TestWithParam<Place> {
 protected:
  template <class Body>
  void with_ranks(Body&& body) const {
    run_ranks(GetParam().world, GetParam().backend, [&](ProcessGroup& group) {
      Rank rank(group);
      body(rank);
    });
  }
};

TEST_P(Matrix, Reductions) {
  with_ranks([](Rank& rank) {
    for_all(all_dtypes(), kMatrixCounts, [&](const Case& c) {
      // Tests each operation with each kind of memory for float, and for some of the other dtypes.
      size_t turn = c.salt;
      for (const auto op : all_ops()) {
        if (!has_meaning(op, c.dtype)) continue;
        if (c.dtype != at::kFloat && kMemories[++turn % 3] != c.memory) continue;
        SCOPED_TRACE(::testing::Message() << "op " << static_cast<int>(op));
        check_reductions(rank, c, op);
        check_scattered_reductions(rank, c, op);
      }
    });
  });
}

TEST_P(Matrix, Movements) {
  with_ranks([](Rank& rank) {
    for_all(all_dtypes(), kMatrixCounts, [&](const Case& c) {
      check_gathering(rank, c);
      check_spreading(rank, c);
      check_exchanging(rank, c);
    });
  });
}

TEST_P(Matrix, SeveralMebibytes) {
  with_ranks([](Rank& rank) {
    const int64_t count = rank.world < 4 ? 1'000'003 : 600'011;
    for_all({at::kFloat, at::kBFloat16}, {count}, [&](const Case& c) {
      if (c.dtype != at::kFloat && c.memory != Memory::Mixed) return;
      check_reductions(rank, c, ReduceOp::Sum);
      check_spreading(rank, c);
      Case part = c;  // the same total
      part.count = count / rank.world;
      check_scattered_reductions(rank, part, ReduceOp::Sum);
      check_gathering(rank, part);
      check_exchanging(rank, part);
    });
  });
}

// Each rank may use other strides. Memory between the elements is not touched.
TEST_P(Matrix, AnyStrides) {
  const auto layouts = std::vector<std::function<at::Tensor(const at::Tensor&)>>{
      [](const at::Tensor& t) { return t.t().contiguous().t(); },
      [](const at::Tensor& t) {
        auto spread = at::full({t.size(0), t.size(1) * 2}, 99, t.options()).slice(1, 0, t.size(1) * 2, 2);
        return spread.copy_(t);
      },
      [](const at::Tensor& t) { return t.clone(); }};
  with_ranks([&](Rank& rank) {
    for (size_t turn = 0; turn < layouts.size(); ++turn) {
      const auto lay_out = layouts[(turn + rank.rank) % layouts.size()];
      const auto inputs = everyones(rank.world, {rank.world * 3, 10}, at::kFloat, static_cast<int>(turn));
      const auto& mine = inputs[rank.rank];
      const auto zeros = at::zeros_like(mine);
      const auto sum = expected_reduction(inputs, ReduceOp::Sum);
      const auto part = [&](const at::Tensor& t, int i) { return t.narrow(0, i * 3, 3); };

      auto tensor = lay_out(mine);
      const auto strides = tensor.strides().vec();
      finish(all_reduce(*rank, {tensor}));
      EXPECT_TRUE(same(tensor, sum)) << "all_reduce";
      EXPECT_EQ(tensor.strides().vec(), strides);
      if (tensor.stride(1) == 2) {
        const auto between = tensor.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset() + 1);
        EXPECT_EQ(between.ne(99).sum().item<int64_t>(), 0);
      }
      tensor = lay_out(mine);
      finish(broadcast(*rank, {tensor}, rank.world - 1));
      EXPECT_TRUE(same(tensor, inputs.back())) << "broadcast";

      Tensors outputs;
      for (int i = 0; i < rank.world; ++i) outputs.push_back(lay_out(zeros));
      finish(all_gather(*rank, {outputs}, {lay_out(mine)}));
      expect_same(outputs, inputs, "all_gather");

      Tensors parts;
      for (int i = 0; i < rank.world; ++i) parts.push_back(lay_out(part(mine, i)));
      tensor = lay_out(part(zeros, 0));
      finish(reduce_scatter(*rank, {tensor}, {parts}));
      EXPECT_TRUE(same(tensor, part(sum, rank.rank))) << "reduce_scatter";

      tensor = lay_out(zeros);
      finish(all_to_all_base(*rank, tensor, lay_out(mine)));
      Tensors want;
      for (const auto& input : inputs) want.push_back(part(input, rank.rank));
      EXPECT_TRUE(same(tensor, at::cat(want))) << "alltoall_base";

      tensor = lay_out(part(zeros, 0));
      finish(scatter(*rank, {tensor}, rank.rank == 0 ? TensorLists{parts} : TensorLists{}, 0));
      EXPECT_TRUE(same(tensor, part(inputs[0], rank.rank))) << "scatter";
    }
  });
}

// Views of registered memory may begin at any element.
TEST_P(Matrix, PartsOfRegisteredMemory) {
  with_ranks([](Rank& rank) {
    for (const int64_t offset : {1, 3, 17, 1000}) {
      const auto inputs = everyones(rank.world, {5000}, at::kHalf, static_cast<int>(offset));
      auto whole = rank.room({7000}, at::kHalf, Memory::Registered).fill_(7);
      auto view = whole.narrow(0, offset, 5000).copy_(inputs[rank.rank]);
      finish(all_reduce(*rank, {view}));
      EXPECT_TRUE(same(view, expected_reduction(inputs, ReduceOp::Sum)));
      EXPECT_EQ(whole.narrow(0, 0, offset).ne(7).sum().item<int64_t>(), 0);
      EXPECT_EQ(whole.narrow(0, offset + 5000, 2000 - offset).ne(7).sum().item<int64_t>(), 0);
    }
  });
}

// As in sharded training: this rank's part is already in its place.
TEST_P(Matrix, OutputsAndInputsThatShareMemory) {
  with_ranks([](Rank& rank) {
    for (const auto memory : kMemories) {
      const int64_t count = 10'007;
      const auto inputs = everyones(rank.world, {count}, at::kFloat, 1);
      auto all = rank.room({rank.world, count}, at::kFloat, memory);
      auto own = all[rank.rank].copy_(inputs[rank.rank]);
      finish(all_gather_base(*rank, all, own));
      EXPECT_TRUE(same(all, at::stack(inputs))) << "_allgather_base";

      const auto wholes = everyones(rank.world, {rank.world, count}, at::kFloat, 2);
      auto whole = rank.place(wholes[rank.rank], memory);
      own = whole[rank.rank];
      finish(reduce_scatter_base(*rank, own, whole));
      EXPECT_TRUE(same(own, expected_reduction(wholes, ReduceOp::Sum)[rank.rank])) << "_reduce_scatter_base";
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<Place>& place) {
  return "World" + std::to_string(place.param.world);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Matrix,
                         ::testing::Values(Place{1, "shm"}, Place{2, "shm"}, Place{3, "shm"}, Place{4, "shm"},
                                           Place{7, "shm"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Machines, Matrix,
                         ::testing::Values(Place{2, "hybrid"}, Place{3, "hybrid"}, Place{4, "hybrid"}),
                         name_of);

}  // namespace
}  // namespace lockstep::testing
