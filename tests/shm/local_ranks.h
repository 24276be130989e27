// All ranks of a group in this process, for tests that imitate other c10d code and for the thread sanitizer.
//
// The environment variable LOCKSTEP_TEST_C10D chooses their c10d backend: "shm", or "hybrid" with ranks that
// take each other to be on two machines. (Real ranks of one process are never on two.)
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shm/calls.h"

namespace lockstep::testing {

// "shm" or "hybrid".
const std::string& backend_of_local_ranks();
inline bool local_ranks_share_memory() { return backend_of_local_ranks() == "shm"; }
// "shm:all_reduce" for "all_reduce": the name of a call in profiles.
std::string title_of(const std::string& call);

class LocalRanks {
 public:
  // With one store. With shared memory, the calling thread creates all ranks, which connect later. On two
  // machines, they are connected, and the timeout is at least long enough for that.
  explicit LocalRanks(int world, std::chrono::milliseconds timeout = std::chrono::seconds(20));

  int world() const { return static_cast<int>(backends_.size()); }
  c10d_backend& operator[](int rank) { return *backends_.at(rank); }
  // This rank leaves the group.
  void destroy(int rank) { backends_.at(rank).reset(); }

  using Call = std::function<WorkPtr(int rank, c10d_backend& backend)>;
  // Makes every rank's call in the calling thread, one after the other, without waiting.
  std::vector<WorkPtr> start(const Call& call);
  // Runs the body in one thread for each rank. An exception from the body fails the test.
  void in_threads(const std::function<void(int rank, c10d_backend& backend)>& body);

 private:
  std::vector<c10::intrusive_ptr<c10d_backend>> backends_;
};

// Returns the message of what the action throws; fails the test if it throws nothing.
std::string error_of(const std::function<void()>& action);
// The same for a call that may be rejected immediately or in its wait, which is bounded.
std::string refusal_of(const std::function<WorkPtr()>& call);

// Polls until the condition holds; returns false if it does not in time.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds within = std::chrono::seconds(5));

}  // namespace lockstep::testing
