// The transport and the control channel for world size 1: the rank takes what it gives.
#pragma once

#include "comm/control.h"
#include "comm/transport.h"

namespace lockstep::comm {

class SingleTransport final : public Transport, private OnePass {
 public:
  bool averages(c10::ScalarType, c10::Device) const override { return true; }
  bool carries(c10::Device) const override { return true; }
  bool reports_failures() const override { return true; }  // there is no other rank

  void run(Request& request) override;
  std::shared_ptr<Work::State> start(Request&& request) override;
  OnePass* one_pass() override { return this; }
  void fail(const Error&) noexcept override {}

 private:
  void update(Request& request, Transform& transform) override;
  std::vector<Range> updated_ranges(const Request& request) const override;
};

class SingleControl final : public Control {
 public:
  SingleControl() : Control(0, 1) {}

 protected:
  std::vector<std::string> exchange_bytes(const char*, std::string_view mine) override {
    return {std::string(mine)};
  }
};

}  // namespace lockstep::comm
