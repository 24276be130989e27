// Compares the two ends of a message, on a backend that does not look whether what is sent is what is
// expected (agreement.h). Each end sends the other a header, on tags of their own, while the message is under
// way; its tag is made from what the header says, so that one that does not fit is never received.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "gloo/fingerprint.h"
#include "gloo/interrupter.h"

namespace lockstep::gloo {

class Announcement {
 public:
  // `mine` is a Send or a Recv; the other side is `peer`. Does not wait.
  Announcement(c10d_backend& backend, const Fingerprint& mine, int peer, int tag);

  // Waits until both headers have arrived. Throws as Agreement::verify() does.
  void verify(Interrupter& waits, const std::function<bool()>& hopeless) const;

 private:
  Fingerprint mine_;
  int peer_, tag_;
  at::Tensor heard_;
  c10::intrusive_ptr<c10d::Work> hearing_, telling_;
};

}  // namespace lockstep::gloo
