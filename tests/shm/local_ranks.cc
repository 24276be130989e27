#include "shm/local_ranks.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/deadline.h"
#include "groups/make_group.h"
#include "network/offer.h"
#include "rendezvous/foreign_store.h"
#include "rendezvous/meet.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds kLongEnoughToConnect = 3s;

// Blocks until all ranks are connected.
c10::intrusive_ptr<c10d_backend> make_on_two_machines(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                      int world, std::chrono::milliseconds timeout) {
  const auto deadline = base::Deadline::in(std::max(timeout, kLongEnoughToConnect));
  const auto keys = c10::make_intrusive<rendezvous::KeyStore>(
      std::make_shared<rendezvous::ForeignStore>(std::move(store), rank), "test", deadline.budget());
  auto mine = rendezvous::facts_of_this_process(rank, world);
  mine.machine = rank < (world + 1) / 2 ? "first" : "second";
  mine.network = network::offer_of_this_process("127.0.0.1");
  const auto ranks = rendezvous::meet(*keys, mine, deadline);
  return groups::make_group("c10d group", {.host = "hybrid"}, rank, ranks,
                            rendezvous::placement_of(rank, ranks), {keys, world}, deadline)
      ->c10d();
}

void in_threads_of(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

const std::string& backend_of_local_ranks() {
  static const std::string name = [] {
    const char* const chosen = std::getenv("LOCKSTEP_TEST_C10D");
    return chosen != nullptr ? chosen : "shm";
  }();
  return name;
}

std::string title_of(const std::string& call) { return backend_of_local_ranks() + ':' + call; }

LocalRanks::LocalRanks(int world, std::chrono::milliseconds timeout) : backends_(world) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  if (!local_ranks_share_memory() && world > 1) {
    in_threads_of(world,
                  [&](int rank) { backends_[rank] = make_on_two_machines(store, rank, world, timeout); });
    return;
  }
  for (int rank = 0; rank < world; ++rank) {
    backends_[rank] = make_c10d_backend("shm", store, rank, world, timeout);
  }
}

std::vector<WorkPtr> LocalRanks::start(const Call& call) {
  std::vector<WorkPtr> works;
  for (int rank = 0; rank < world(); ++rank) works.push_back(call(rank, *backends_[rank]));
  return works;
}

void LocalRanks::in_threads(const std::function<void(int, c10d_backend&)>& body) {
  in_threads_of(world(), [&](int rank) { body(rank, *backends_[rank]); });
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::string refusal_of(const std::function<WorkPtr()>& call) {
  return error_of([&] { call()->wait(5s); });
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds within) {
  const auto deadline = base::Deadline::in(within);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

}  // namespace lockstep::testing
