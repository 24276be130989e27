#include "gloo/announcement.h"

#include <fmt/format.h>
#include <vector>

#include <ATen/ATen.h>

#include "comm/diagnose.h"
#include "gloo/wire_tags.h"

namespace lockstep::gloo {

Announcement::Announcement(c10d_backend& backend, const comm::Fingerprint& mine, int peer, int tag)
    : mine_(mine), peer_(peer), tag_(tag), heard_(at::empty({sizeof(comm::Fingerprint)}, at::kByte)) {
  const bool sends = mine.kind == comm::Kind::Send;
  std::vector<at::Tensor> room{heard_}, header{bytes_of(mine)};
  hearing_ = backend.recv(room, peer, sends ? receiver_tag(tag) : sender_tag(tag));
  telling_ = backend.send(header, peer, sends ? sender_tag(tag) : receiver_tag(tag));
}

void Announcement::verify(Interrupter& waits, const std::function<bool()>& hopeless) const {
  waits.wait(hearing_, hopeless);
  const auto theirs = fingerprint_in(heard_);
  if (theirs.count != mine_.count || theirs.dtype != mine_.dtype) {
    throw comm::Disagreement{peer_, 0, fmt::format("{}, tag {}", describe(mine_), tag_),
                             fmt::format("{}, tag {}", describe(theirs), tag_)};
  }
  waits.wait(telling_, hopeless);
}

}  // namespace lockstep::gloo
