#include "data_parallel/caller_state.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// LibTorch 2.4 deprecates these names, but 1.13 has no others.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace lockstep::data_parallel {

CallerState::CallerState()
    : cpu_dtype_(at::autocast::get_autocast_cpu_dtype()),
      gpu_dtype_(at::autocast::get_autocast_gpu_dtype()) {}

CallerState::Entered::Entered(const CallerState& state, const std::optional<c10::Stream>& stream)
    : guard_(state.state_) {
  at::autocast::set_autocast_cpu_dtype(state.cpu_dtype_);
  at::autocast::set_autocast_gpu_dtype(state.gpu_dtype_);
  // In LibTorch 1.13, each thread has its own cache of cast parameters, and the end of autocast clears only
  // that of the calling thread. With the cache, this thread would use the values of an earlier step.
  at::autocast::set_autocast_cache_enabled(false);
  if (stream) stream_.emplace(*stream);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace lockstep::data_parallel
