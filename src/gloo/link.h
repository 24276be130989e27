// The messages of LibTorch's Gloo backend as a link.
#pragma once

#include <lockstep/c10d.h>

#include "comm/link.h"
#include "gloo/interrupter.h"

namespace lockstep::gloo {

class Link final : public comm::Link {
 public:
  // `gloo` must be one of LibTorch's Gloo backends, and exist as long as the link is used.
  explicit Link(c10d_backend& gloo) : gloo_(gloo) {}

  comm::TransferPtr send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) override;
  comm::TransferPtr receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) override;
  void hang_up() noexcept override;

 private:
  class Message;
  template <class Start>
  comm::TransferPtr begin(int peer, Start&& start);

  c10d_backend& gloo_;
  Interrupter interrupter_;
};

}  // namespace lockstep::gloo
