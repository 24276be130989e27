// Two transports as one, for a group whose ranks have devices of their own: one transport for tensors on the
// CPU, one for tensors on the devices.
//
// The order of calls is kept on each of the two, not between them.
#pragma once

#include <memory>

#include "comm/transport.h"

namespace lockstep::comm {

class ByDevice final : public Transport {
 public:
  // `host` carries tensors on the CPU; `device` those that it says it carries.
  ByDevice(std::shared_ptr<Transport> host, std::shared_ptr<Transport> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  bool averages(c10::ScalarType dtype, c10::Device device) const override {
    return of(device).averages(dtype, device);
  }
  bool carries(c10::Device device) const override { return of(device).carries(device); }
  bool supplies_memory(c10::Device device) const override { return of(device).supplies_memory(device); }
  bool needs_polling() const override { return host_->needs_polling() || device_->needs_polling(); }
  bool needs_owners() const override { return host_->needs_owners(); }  // of a device, all requests have them
  size_t bucket_bytes() const override { return device_->bucket_bytes(); }
  uint64_t calls() const override { return host_->calls() + device_->calls(); }
  // A rank that waits in one transport learns nothing from the other.
  bool reports_failures() const override { return false; }

  void run(Request& request) override;
  std::shared_ptr<Work::State> start(Request&& request) override;
  void fail(const Error& why) noexcept override;

  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return of(options.device()).allocate(sizes, options);
  }
  bool supplied(const at::Tensor& tensor) const override { return of(tensor.device()).supplied(tensor); }

 private:
  Transport& of(c10::Device device) const { return device.is_cpu() ? *host_ : *device_; }
  // The request's transport makes the call. If it fails, ranks may be waiting for this one in the other
  // transport.
  template <class Call>
  auto call(const Request& request, Call&& make);

  const std::shared_ptr<Transport> host_;
  const std::shared_ptr<Transport> device_;
};

}  // namespace lockstep::comm
