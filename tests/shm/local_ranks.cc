#include "shm/local_ranks.h"

#include <gtest/gtest.h>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/deadline.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

LocalRanks::LocalRanks(int world, std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int rank = 0; rank < world; ++rank) {
    backends_.push_back(make_c10d_backend("shm", store, rank, world, timeout));
  }
}

std::vector<WorkPtr> LocalRanks::start(const Call& call) {
  std::vector<WorkPtr> works;
  for (int rank = 0; rank < world(); ++rank) works.push_back(call(rank, *backends_[rank]));
  return works;
}

void LocalRanks::in_threads(const std::function<void(int, c10d_backend&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, *backends_[rank]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
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
