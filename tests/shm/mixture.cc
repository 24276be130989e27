#include "shm/mixture.h"

#include <ATen/ATen.h>

#include "support/data.h"

namespace lockstep::testing {

namespace {

constexpr int64_t kMaxCount = 1 << 16;
constexpr size_t kMaxFlights = 8;

}  // namespace

Mixture::Mixture(ProcessGroup& group, unsigned seed)
    : group_(group), random_(seed), base_(at::remainder(at::arange(kMaxCount, at::kFloat), 251)) {}

bool Mixture::run(int calls) {
  for (int call = 0; call < calls; ++call, ++step_) {
    flights_.push_back(depart());
    const bool at_once = draw(3) == 0;
    while (!flights_.empty() && (at_once || flights_.size() > kMaxFlights)) {
      if (!land()) return false;
    }
  }
  while (!flights_.empty()) {
    if (!land()) return false;
  }
  return true;
}

// Waits for a random one of the calls in flight.
bool Mixture::land() {
  const auto chosen = flights_.begin() + draw(static_cast<int64_t>(flights_.size()));
  Flight flight = std::move(*chosen);
  flights_.erase(chosen);
  for (auto& work : flight.works) work.wait();
  return flight.is_right();
}

int64_t Mixture::draw(int64_t bound) { return static_cast<int64_t>(random_() % bound); }

// Small and large counts, uniform on a logarithmic scale.
int64_t Mixture::draw_count() {
  const int64_t power = int64_t{1} << draw(16);
  return power + draw(power);
}

at::Tensor Mixture::values(int rank, int step, int64_t count) const {
  return base_.narrow(0, 0, count) + (3 * rank + step % 1000);
}

at::Tensor Mixture::room(int64_t count) {
  // Registered on some ranks and not on others.
  const bool registered = (draw(3) + group_.rank()) % 3 == 0;
  return registered ? group_.empty({count}, at::dtype(at::kFloat)) : at::empty({count});
}

at::Tensor Mixture::input(int64_t count) { return room(count).copy_(values(group_.rank(), step_, count)); }

Mixture::Flight Mixture::depart() {
  const int world = group_.world_size(), rank = group_.rank(), step = step_;
  const int root = static_cast<int>(draw(world));
  const int64_t kind = draw(11);
  const int64_t count = draw_count();
  // For calls with a part for each rank: the same total.
  const int64_t part = (count + world - 1) / world;
  // The numbers are exactly representable, and so are their sums.
  const auto sum = [=, this](int64_t n) {
    return base_.narrow(0, 0, n) * world + (3 * world * (world - 1) / 2 + world * (step % 1000));
  };
  const auto everyones = [=, this] {
    std::vector<at::Tensor> all;
    for (int i = 0; i < world; ++i) all.push_back(values(i, step, part));
    return all;
  };
  switch (kind) {
    case 0: {
      auto tensor = input(count);
      return {{group_.all_reduce_async(tensor)}, [=] { return same(tensor, sum(count)); }};
    }
    case 1: {
      auto tensor = input(count);
      return {{group_.broadcast_async(tensor, root)},
              [=, this] { return same(tensor, values(root, step, count)); }};
    }
    case 2: {
      auto tensor = input(count);
      return {{group_.reduce_async(tensor, root)}, [=] { return rank != root || same(tensor, sum(count)); }};
    }
    case 3: {
      auto work = group_.all_gather_async(input(part));
      return {{work}, [=]() mutable { return same(at::stack(work.result()), at::stack(everyones())); }};
    }
    case 4: {
      auto output = room(world * part);
      return {{group_.all_gather_into_tensor_async(output, input(part))},
              [=] { return same(output, at::cat(everyones())); }};
    }
    case 5: {
      auto output = room(part);
      const auto whole = input(part * world);
      return {{group_.reduce_scatter_tensor_async(output, whole)},
              [=] { return same(output, sum(part * world).narrow(0, rank * part, part)); }};
    }
    case 6: {
      auto work = group_.gather_async(input(part), root);
      return {{work}, [=]() mutable {
                return rank == root ? same(at::stack(work.result()), at::stack(everyones()))
                                    : work.result().empty();
              }};
    }
    case 7: {
      auto output = room(part);
      auto inputs = std::vector<at::Tensor>{};
      if (rank == root) inputs = everyones();
      return {{group_.scatter_async(output, inputs, root)},
              [=, this] { return same(output, values(rank, step, part)); }};
    }
    case 8: {
      auto output = room(part * world);
      return {{group_.all_to_all_single_async(output, input(part * world))}, [=, this] {
                std::vector<at::Tensor> parts;
                for (int i = 0; i < world; ++i)
                  parts.push_back(values(i, step, part * world).narrow(0, rank * part, part));
                return same(output, at::cat(parts));
              }};
    }
    case 9: {
      const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
      auto output = room(count);
      const int tag = static_cast<int>(draw(3));
      auto sending = group_.send_async(input(count), next, tag);
      return {{sending, group_.recv_async(output, previous, tag)},
              [=, this] { return same(output, values(previous, step, count)); }};
    }
    default:
      return {{group_.barrier_async()}, [] { return true; }};
  }
}

}  // namespace lockstep::testing
