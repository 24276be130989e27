// Ranks of one group inside this process, as foreign c10d code and the thread sanitizer like to have them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shm/calls.h"

namespace lockstep::testing {

class LocalRanks {
 public:
  // All made by the calling thread, over one store.
  explicit LocalRanks(int world, std::chrono::milliseconds timeout = std::chrono::seconds(20));

  int world() const { return static_cast<int>(backends_.size()); }
  c10d_backend& operator[](int rank) { return *backends_.at(rank); }
  // This rank leaves.
  void destroy(int rank) { backends_.at(rank).reset(); }

  using Call = std::function<WorkPtr(int rank, c10d_backend& backend)>;
  // Every rank's call by the calling thread, one after the other; none is waited for.
  std::vector<WorkPtr> start(const Call& call);
  // The body in one thread for each rank. An exception that leaves it fails the test.
  void in_threads(const std::function<void(int rank, c10d_backend& backend)>& body);

 private:
  std::vector<c10::intrusive_ptr<c10d_backend>> backends_;
};

// What the action throws, as text; fails the test if it throws nothing.
std::string error_of(const std::function<void()>& action);
// The same for a call that may be refused at once or in its wait. The wait is bounded.
std::string refusal_of(const std::function<WorkPtr()>& call);

// Polls until the condition holds; false when it does not come to hold in time.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds within = std::chrono::seconds(5));

}  // namespace lockstep::testing
