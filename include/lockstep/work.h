// The handle of an asynchronous collective.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/cxx20.h>

namespace lockstep {

// Holds the tensors of its call until it is done. A cheap handle: copies refer to the same call.
// Every Work must be waited for; until then its outputs are not valid. Not thread-safe.
class [[nodiscard]] Work {
 public:
  struct State;  // src/comm/work.h

  Work() = default;  // done already
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Blocks until the call is complete here. Throws what went wrong; called again, it does the same again.
  void wait();
  // True once wait() would not block.
  bool is_done() const;
  // Waits, then gives the tensors of a call that makes some (all_gather, gather); empty for the others.
  std::vector<at::Tensor> result();

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
