// The control channel of a group on one machine: exchanges in the control lane of its segments.
#pragma once

#include <memory>

#include "comm/control.h"
#include "shm/endpoint.h"

namespace lockstep::shm {

class Control final : public comm::Control {
 public:
  // `lane`: the control lane (Endpoint::control_lane).
  explicit Control(std::shared_ptr<Endpoint> lane);
  ~Control() override;

 protected:
  std::vector<std::string> exchange_bytes(const char* label, std::string_view mine) override;

 private:
  // Every rank's bytes, one after the other. As many of each.
  void gather(std::string_view mine, std::string& all);

  const std::shared_ptr<Endpoint> lane_;
};

}  // namespace lockstep::shm
