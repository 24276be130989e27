// The handle of an asynchronous collective.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/cxx20.h>

namespace lockstep {

// A cheap handle of a call in progress; copies refer to the same call. It keeps the tensors of the call alive
// until the call is complete. Every Work must be waited for: its outputs are valid only after wait() has
// returned. Not thread-safe.
class [[nodiscard]] Work {
 public:
  struct State;  // src/comm/work.h

  Work() = default;  // refers to no call; is_done() is true
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Blocks until the call is complete on this rank; for CUDA tensors, makes the current stream wait instead.
  // Throws the error of the call; every further wait() throws it again.
  void wait();
  // True once the call is complete: wait() would not block.
  bool is_done() const;
  // Waits, then returns the tensors that the call created (all_gather, gather); empty for other calls.
  std::vector<at::Tensor> result();

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
