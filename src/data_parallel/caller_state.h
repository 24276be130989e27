// The thread-local state of LibTorch that a forward depends on: grad mode, inference mode, autocast, and the
// current device and stream. A CallerState is read in the calling thread and applies in another thread for
// the lifetime of an Entered.
#pragma once

#include <optional>

#include <ATen/ThreadLocalState.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace lockstep::data_parallel {

class CallerState {
 public:
  CallerState();

  class Entered {
   public:
    // `stream` also selects its device. None: the CPU.
    Entered(const CallerState& state, const std::optional<c10::Stream>& stream);

   private:
    at::ThreadLocalStateGuard guard_;
    std::optional<c10::StreamGuard> stream_;
  };

 private:
  at::ThreadLocalState state_;
  // ThreadLocalState records whether autocast is on, but not these dtypes. They are not restored, because
  // every task sets them.
  c10::ScalarType cpu_dtype_, gpu_dtype_;
};

// The calling thread's current stream on a device that has streams.
c10::Stream current_stream(c10::Device device);

}  // namespace lockstep::data_parallel
