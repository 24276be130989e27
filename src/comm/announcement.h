// Compares the two ends of a message over a link, which does not do so itself. Each end sends a header to the
// other, with separate tags, while the message is in progress. The tag of the message depends on the header,
// so that a message that does not match is never received.
#pragma once

#include <functional>
#include <memory>

#include "comm/fingerprint.h"
#include "comm/link.h"

namespace lockstep::comm {

class Announcement {
 public:
  // `mine` is a send to `peer` or a receive from it. Does not block.
  Announcement(Link& link, const Fingerprint& mine, int peer, int tag);

  // Blocks until both headers have arrived. Throws as Agreement::verify() does.
  void verify(const std::function<bool()>& hopeless) const;

 private:
  Fingerprint mine_;
  int peer_, tag_;
  std::shared_ptr<Fingerprint> heard_;
  TransferPtr hearing_, telling_;
};

}  // namespace lockstep::comm
