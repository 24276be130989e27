#include "comm/announcement.h"

#include <fmt/format.h>

#include "comm/diagnose.h"
#include "comm/wire_tags.h"

namespace lockstep::comm {

Announcement::Announcement(Link& link, const Fingerprint& mine, int peer, int tag)
    : mine_(mine), peer_(peer), tag_(tag), heard_(std::make_shared<Fingerprint>()) {
  const bool sends = mine.kind == Kind::Send;
  hearing_ = receive_fingerprint(link, peer, sends ? receiver_tag(tag) : sender_tag(tag), heard_);
  telling_ = send_fingerprint(link, peer, sends ? sender_tag(tag) : receiver_tag(tag), mine, Then::Nothing);
}

void Announcement::verify(const std::function<bool()>& hopeless) const {
  hearing_->wait(hopeless);
  if (heard_->count != mine_.count || heard_->dtype != mine_.dtype) {
    throw Disagreement{peer_, 0, fmt::format("{}, tag {}", describe(mine_), tag_),
                       fmt::format("{}, tag {}", describe(*heard_), tag_)};
  }
  telling_->wait(hopeless);
}

}  // namespace lockstep::comm
