// Compares the two ends of a message, for a backend that does not (agreement.h). Each end sends a header to
// the other, with separate tags, while the message is in progress. The tag of the message depends on the
// header, so that a message that does not match is never received.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "comm/fingerprint.h"
#include "gloo/interrupter.h"

namespace lockstep::gloo {

class Announcement {
 public:
  // `mine` is a send to `peer` or a receive from it. Does not block.
  Announcement(c10d_backend& backend, const comm::Fingerprint& mine, int peer, int tag);

  // Blocks until both headers have arrived. Throws as Agreement::verify() does.
  void verify(Interrupter& waits, const std::function<bool()>& hopeless) const;

 private:
  comm::Fingerprint mine_;
  int peer_, tag_;
  at::Tensor heard_;
  c10::intrusive_ptr<c10d::Work> hearing_, telling_;
};

}  // namespace lockstep::gloo
