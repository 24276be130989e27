// The control channel of a group on one machine. Exchanges use the control lane of the segments.
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
  // Concatenates the bytes of all ranks, in rank order. All ranks give the same number of bytes.
  void gather(std::string_view mine, std::string& all);

  const std::shared_ptr<Endpoint> lane_;
};

}  // namespace lockstep::shm
