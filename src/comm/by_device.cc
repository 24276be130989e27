#include "comm/by_device.h"

#include <utility>

namespace lockstep::comm {

template <class Call>
auto ByDevice::call(const Request& request, Call&& make) {
  auto& transport = of(request.device);
  try {
    return make(transport);
  } catch (const UsageError&) {
    throw;  // nothing has been started
  } catch (const Error& error) {
    (&transport == host_.get() ? device_ : host_)->fail(error);
    throw;
  }
}

void ByDevice::run(Request& request) {
  call(request, [&](Transport& transport) { transport.run(request); });
}

std::shared_ptr<Work::State> ByDevice::start(Request&& request) {
  return call(request, [&](Transport& transport) { return transport.start(std::move(request)); });
}

void ByDevice::fail(const Error& why) noexcept {
  host_->fail(why);
  device_->fail(why);
}

}  // namespace lockstep::comm
