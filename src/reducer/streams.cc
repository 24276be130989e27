#include "reducer/streams.h"

#include <algorithm>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::reducer {

void Streams::note(c10::Device device) {
  if (device.is_cpu()) return;
  const auto current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) streams_.push_back(current);
}

void Streams::join() {
  for (const auto& stream : streams_) {
    const auto current = c10::impl::VirtualGuardImpl(stream.device_type()).getStream(stream.device());
    if (stream == current) continue;
    c10::Event written(stream.device_type());
    written.record(stream);
    written.block(current);
  }
  forget();
}

}  // namespace lockstep::reducer
