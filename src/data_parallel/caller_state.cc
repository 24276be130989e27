#include "data_parallel/caller_state.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// LibTorch 2.4 deprecates the names that are all that 1.13 has.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace lockstep::data_parallel {

CallerState::CallerState()
    : cpu_dtype_(at::autocast::get_autocast_cpu_dtype()),
      gpu_dtype_(at::autocast::get_autocast_gpu_dtype()) {}

CallerState::Entered::Entered(const CallerState& state, const std::optional<c10::Stream>& stream)
    : guard_(state.state_) {
  at::autocast::set_autocast_cpu_dtype(state.cpu_dtype_);
  at::autocast::set_autocast_gpu_dtype(state.gpu_dtype_);
  // Its cache of cast parameters belongs to the thread in LibTorch 1.13, and only the caller's is emptied
  // when autocast ends: in this thread the next step would see this one's values.
  at::autocast::set_autocast_cache_enabled(false);
  if (stream) stream_.emplace(*stream);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace lockstep::data_parallel
