// A random mixture of collectives, the same on all ranks. Each result is checked after the wait.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include <lockstep/process_group.h>

namespace lockstep::testing {

// For one thread and one group. All ranks must use the same seed.
class Mixture {
 public:
  Mixture(ProcessGroup& group, unsigned seed);

  // Makes this number of calls, with up to eight in flight, and waits for all of them. Returns false as soon
  // as a result is wrong.
  bool run(int calls);

 private:
  struct Flight {
    std::vector<Work> works;
    std::function<bool()> is_right;
  };

  Flight depart();
  bool land();
  int64_t draw(int64_t bound);  // 0 … bound - 1
  int64_t draw_count();
  at::Tensor input(int64_t count);                             // this rank's
  at::Tensor values(int rank, int step, int64_t count) const;  // the input of any rank
  at::Tensor room(int64_t count);

  ProcessGroup& group_;
  std::mt19937 random_;
  at::Tensor base_;
  int step_ = 0;
  std::deque<Flight> flights_;
};

}  // namespace lockstep::testing
