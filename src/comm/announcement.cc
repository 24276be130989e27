#include "comm/announcement.h"

#include <fmt/format.h>
#include <vector>

#include <ATen/ATen.h>

#include "comm/wire_tags.h"

namespace lockstep::comm {

Announcement::Announcement(c10d_backend& backend, const Fingerprint& mine, int peer, int tag)
    : mine_(mine), peer_(peer), tag_(tag), header_(bytes_of(mine)) {
  std::vector<at::Tensor> headers{header_};
  travels_ = mine.kind == Fingerprint::Kind::Send ? backend.send(headers, peer, header_tag(tag))
                                                  : backend.recv(headers, peer, header_tag(tag));
}

void Announcement::verify(Interrupter& waits, const std::function<bool()>& hopeless) const {
  waits.wait(travels_, hopeless);
  if (mine_.kind == Fingerprint::Kind::Send) return;
  const auto theirs = fingerprint_in(header_);
  if (theirs.count == mine_.count && theirs.dtype == mine_.dtype) return;
  throw Disagreement{peer_, 0, fmt::format("{}, tag {}", describe(mine_), tag_),
                     fmt::format("{}, tag {}", describe(theirs), tag_)};
}

}  // namespace lockstep::comm
