// What LibTorch keeps for each thread and a forward depends on: grad mode, inference mode, autocast, the
// device and its stream. Taken from the calling thread, in force in another one for the life of an Entered.
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
    // `stream` has its device with it; none: the CPU.
    Entered(const CallerState& state, const std::optional<c10::Stream>& stream);

   private:
    at::ThreadLocalStateGuard guard_;
    std::optional<c10::StreamGuard> stream_;
  };

 private:
  at::ThreadLocalState state_;
  // ThreadLocalState has whether autocast is on, but not these. They need no restoring: every task sets them.
  c10::ScalarType cpu_dtype_, gpu_dtype_;
};

// The calling thread's current stream of a device that has streams.
c10::Stream current_stream(c10::Device device);

}  // namespace lockstep::data_parallel
