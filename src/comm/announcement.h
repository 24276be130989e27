// Announces a message to its receiver, on a backend that does not look whether what is sent is what is
// expected (agreement.h). The header and the message are under way at the same time, on tags of their own;
// that of the message is made from what the header says, so that one that does not fit is never received.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <lockstep/c10d.h>

#include "comm/fingerprint.h"
#include "comm/interrupter.h"

namespace lockstep::comm {

class Announcement {
 public:
  // `mine` is a Send or a Recv; the other side is `peer`. Does not wait.
  Announcement(c10d_backend& backend, const Fingerprint& mine, int peer, int tag);

  // Waits until the header has been received, or taken by the receiver. Throws as Agreement::verify() does;
  // Disagreement on the receiver only.
  void verify(Interrupter& waits, const std::function<bool()>& hopeless) const;

 private:
  Fingerprint mine_;
  int peer_, tag_;
  at::Tensor header_;
  c10::intrusive_ptr<c10d::Work> travels_;
};

}  // namespace lockstep::comm
